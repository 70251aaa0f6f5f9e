"""Rewrites of whole models that keep their results: each tells where it applies, and applies itself.

Rewrites know ONNX and the model's graph, and no runtime.
"""
