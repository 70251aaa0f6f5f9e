"""The ModelGraph: a model as a DAG of layers with a type on every edge.

``assembly.py`` builds it, ``control.py`` and ``expansion.py`` write control flow out, ``flow.py`` tells which layers
read a value, and ``footprint.py`` tells the bytes that a model touches. ``graph.py`` also describes the graph that a
runtime executes. ``bricks/cutting`` cuts graphs.
"""
