"""cuBLAS as a library: bricks that are one matrix product, with what its epilogues do behind it.

``problem`` leads from ONNX to one call of the library, ``light`` executes it by cuBLASLt with any of its algorithms,
``plain`` by cuBLAS itself.
"""
