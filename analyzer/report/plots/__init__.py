"""Plots: pure functions from results to matplotlib figures.

Nothing is shown or saved here; ``save`` writes a figure as PNG or SVG. matplotlib is imported when the first
figure is made.
"""
