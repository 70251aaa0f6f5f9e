"""Composition: from the latencies of sequences to that of a model.

Here stand the sums: sequential, critical path, the cheapest cover of overlapping windows, and the lower bound.
"""
