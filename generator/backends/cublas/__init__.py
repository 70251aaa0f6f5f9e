"""cuBLAS as a library: bricks that are one matrix product, with what its epilogues do behind it.

``problem`` leads from ONNX to one call of the library. ``backend`` executes it by cuBLASLt with any of its algorithms,
or by cuBLAS itself.
"""
