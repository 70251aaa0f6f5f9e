"""PyTorch, eager and compiled: a network as a program of its operators, and the kernels that these run.

Here stands what is true of PyTorch alone; ``operators`` has one function per ONNX operator.
"""
