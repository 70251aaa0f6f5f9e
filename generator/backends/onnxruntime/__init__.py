"""ONNX Runtime: sessions, executed graphs and profiles. Everything here is specific to ONNX Runtime."""
