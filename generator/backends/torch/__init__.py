"""PyTorch, eager and compiled: a network as a program of its operators, and the kernels that these run.

Everything here is specific to PyTorch; ``operators`` has one function per ONNX operator.
"""
