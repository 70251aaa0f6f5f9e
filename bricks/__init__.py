"""The model processor: from a skeleton to the unique sequences that models share.

``build_graph`` makes the DAG of layers. ``split`` and ``sequences`` cut it, and ``build_brick`` writes a sequence as a
brick. ``write_suite`` and ``Suite`` carry bricks to the machines that measure them.
"""
