"""How answers are shown: tables, plots, pages, and what is written for other tools."""
