"""cuDNN as a library: bricks as operation graphs, and cuDNN's execution plans for them.

``operations`` has the tensors, their memory layout, and the graph under construction. ``lowering`` translates from
ONNX, ``plans`` asks the library for its plans; the asking process (``planning``) needs no GPU. ``backend`` executes
plans on a GPU.
"""
