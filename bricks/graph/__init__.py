"""The ModelGraph: a model as a DAG of layers with a type on every edge.

``assembly.py`` builds it, and ``graph.py`` also describes executed graphs. ``control.py`` and ``expansion.py`` expand
control flow. ``flow.py`` finds the readers of values, ``footprint.py`` counts the bytes that a model touches.
"""
