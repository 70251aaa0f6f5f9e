"""Bricks on disk: one small ONNX file each, the folder that carries them, decoys, and models rebuilt from them.

Here stands what reads or writes bricks.
"""
