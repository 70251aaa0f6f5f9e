"""Bricks on disk: one small ONNX file each, the folder that contains them, and decoys."""
