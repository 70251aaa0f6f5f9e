"""MXNet 1.9, in a separate environment with the packages in ``pins.txt``.

Everything here is specific to MXNet; ``operators`` translates ONNX operators to its symbols.
"""
