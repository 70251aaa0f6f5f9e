"""cuDNN as a library: bricks as operation graphs, and the execution plans that cuDNN offers for them.

``operations`` holds the values, their places in memory, and the graph while it is built. ``operators`` leads from ONNX
to them, ``plans`` to the library and what it offers; the process that asks stands in ``planning`` and needs no GPU.
``backend`` executes plans on one.
"""
