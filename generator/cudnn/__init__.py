"""cuDNN as a library: bricks as operation graphs, and the execution plans that cuDNN offers for them.

``operations`` the values, ``translation`` and ``operators`` from ONNX to them, ``lowering`` from them to the library,
``plans`` what it offers, ``library`` whether it can be loaded, ``device`` the GPU that plans are for, ``planner`` the
process that asks. Nothing here executes a plan.
"""
