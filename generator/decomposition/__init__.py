"""From models to suites: the choice of the graph, the cuts, and the bricks.

The package contains ``generate`` and its needs from a runtime: shapes, executed graphs, fusions, and the source layers
of both. Nothing here is timed.
"""
