"""ONNX Runtime: sessions, the graph that it executes and its profile.

Here stands what is true of ONNX Runtime alone.
"""
