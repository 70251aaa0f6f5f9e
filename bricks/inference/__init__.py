"""Static types of every value, and the constants that decide shapes.

Here stand shape inference, folding, and the integer arithmetic that they need.
"""
