"""Rewrites of whole models that hold for every input: engines propose, one prover decides, a search times.

All of it runs in a process of its own (``process``), since it executes untrusted models with ONNX Runtime.
"""
