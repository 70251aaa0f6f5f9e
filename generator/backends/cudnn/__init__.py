"""cuDNN as a library: bricks as operation graphs, and the execution plans that cuDNN offers for them.

``operations`` holds the values. ``translation``, with ``building``, ``operators`` and ``attention``, leads from ONNX to
them, ``dimensions`` to fewer dimensions, ``lowering`` to the library. ``plans`` is what the library offers, ``library``
whether it can be loaded, ``device`` the GPU that plans are for; the process that asks stands in ``planning`` and needs
no GPU. ``backend`` executes plans on one: ``values`` is what lies in its memory, ``execution`` a brick there.
"""
