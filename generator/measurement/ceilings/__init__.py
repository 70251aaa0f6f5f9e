"""What a machine can do at most: its rate of arithmetic and its bandwidths.

Here stands the measurement (``ceilings``) and what its networks compute and move (``rates``).
"""
