"""Arithmetic of operators: a small function for each, with its formula."""
