"""One file per analysis: its question, its formula, where that comes from, and its limits."""
