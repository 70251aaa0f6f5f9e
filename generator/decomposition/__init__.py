"""From models to suites: which graph is cut, where, and into which bricks.

Here stands ``generate`` and what it needs of a runtime: shapes, executed graphs, fusions, and which source layers
they came from. Nothing here is timed.
"""
