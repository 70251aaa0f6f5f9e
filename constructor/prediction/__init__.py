"""From raw sums to a prediction of the model, and the distance between both by causes.

Here stand the terms of the attribution.
"""
