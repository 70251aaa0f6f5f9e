"""MXNet 1.9, in an environment of its own whose packages ``pins.txt`` names.

Here stands what is true of MXNet alone; ``operators`` translates ONNX operators to its symbols.
"""
