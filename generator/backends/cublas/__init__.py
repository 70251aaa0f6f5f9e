"""cuBLAS as a library: bricks of one matrix product, with an epilogue.

``problem`` translates from ONNX to one call of the library. ``backend`` executes it with any algorithm of cuBLASLt, or
with cuBLAS.
"""
