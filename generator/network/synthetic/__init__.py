"""Synthetic weights: which distribution each weight takes, from the model's structure, and its numbers."""
