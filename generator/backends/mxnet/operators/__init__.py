"""ONNX operators as symbols of MXNet 1.9."""
