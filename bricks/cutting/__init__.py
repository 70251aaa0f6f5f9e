"""Cutting a graph into sequences of at most G layers, each with the key of its brick.

``sequences.py`` contains Algorithms 1 and 2 of DLBricks (``split``), overlapping windows, and the wiring of a sequence.
``fused.py`` cuts along a runtime's fusions.
"""
