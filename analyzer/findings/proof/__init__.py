"""Remedies, tried: the model as it is and as it would be, visited in turn."""
