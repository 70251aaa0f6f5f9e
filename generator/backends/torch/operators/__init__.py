"""ONNX operators as functions of PyTorch."""
