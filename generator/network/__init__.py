"""Networks: the runnable ONNX of a brick or a model, with seeded weights and legal inputs.

This room makes and changes networks before a runtime loads them: assembly, copies, values and
their domains, and export for other tools. No module here names a runtime.
"""
