"""What a machine can do at most: its rate of arithmetic and its bandwidths.

Here stands the measurement; what its networks are stands in ``bricks.reference``, what their times mean in
``db.samples.rates``.
"""
