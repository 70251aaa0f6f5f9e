"""Arithmetic on stored values: statistics of samples, rates of reference networks."""
