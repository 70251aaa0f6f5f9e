"""Cutting: from a graph to its sequences of at most G layers, and the key of each.

``sequences.py`` holds Algorithms 1 and 2 of DLBricks (``split``), overlapping windows, and the wiring of a sequence.
``fused.py`` cuts along the units of a runtime's fusions.
"""
