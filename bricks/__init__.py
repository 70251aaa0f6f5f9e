"""The model processor: from a skeleton to the unique sequences that models share.

``build_graph`` makes the DAG of layers, ``split`` and ``sequences`` cut it, ``build_brick`` writes what is unique of
it, ``write_suite`` and ``Suite`` carry it to the machine where it is measured.
"""
