"""cuDNN as a library: bricks as operation graphs, and the execution plans that cuDNN offers for them.

``operations`` holds the values. ``translation``, with ``building``, ``operators`` and ``attention``, leads from ONNX to
them, ``dimensions`` to fewer dimensions, ``lowering`` to the library. ``plans`` is what the library offers, ``library``
whether it can be loaded, ``device`` the GPU that plans are for, ``planner`` the process that asks. Nothing here
executes a plan.
"""
