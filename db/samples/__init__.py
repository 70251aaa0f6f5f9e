"""Arithmetic on what is stored, and on nothing else: statistics of samples, rates of what was timed."""
