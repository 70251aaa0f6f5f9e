"""How uncertain a composed latency is.

Here stand intervals, the constants of the method's own error with their source, and ratios of what was visited in turn.
"""
