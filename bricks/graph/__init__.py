"""The ModelGraph: a model as a DAG of layers with a type on every edge.

``model_graph.py`` builds it from what ``assembly.py`` makes of layers, and describes executed graphs. ``control.py``
and ``expansion.py`` expand control flow. ``flow.py`` finds the readers of values, ``footprint.py`` counts the bytes
that a model touches.
"""
