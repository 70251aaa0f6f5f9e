"""CuPy for what no library has: data movers, poolings, and pointwise operators, one per brick.

Its kernels are CuPy's or of this room, no library's best: a latency of theirs bounds an operator's from above, where
there is no other. ``call`` is a brick in memory, with a function per pointwise operator; ``operators`` has one per
data mover and pooling.
"""
