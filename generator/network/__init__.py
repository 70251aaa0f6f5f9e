"""Networks: the runnable ONNX of a brick or a model, with seeded weights and legal inputs.

Here stands what makes or changes a network before any runtime sees it: assembly, copies, padded channels, values and
their domains, the networks of our own, and export for other tools. No runtime is named here.
"""
