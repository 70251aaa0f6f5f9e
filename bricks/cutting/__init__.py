"""Cutting: from a graph to its sequences of at most G layers, and the key of each.

Here stand Algorithms 1 and 2 of DLBricks (``split``), overlapping windows, the units of a runtime's fusions, and cuts
along them (``fused``), and wiring.
"""
