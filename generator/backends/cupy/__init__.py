"""CuPy for operators that the libraries lack: data movers, poolings, and pointwise operators, one per brick.

The kernels are CuPy's or this room's, and not tuned: their latency is an upper limit for the operator's.
``kernel_call`` has a brick in memory, with a function per pointwise operator; ``raw_kernels`` has a function per data
mover and pooling.
"""
