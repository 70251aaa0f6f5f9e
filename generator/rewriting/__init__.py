"""Rewrites of whole models that keep what they compute: one file each, with where it applies and how it is done.

What stands here knows ONNX and the model's own graph, and no runtime.
"""
