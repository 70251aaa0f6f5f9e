"""The analyses, by kind: each with its question, its formula, the source of the formula, and its limits."""
