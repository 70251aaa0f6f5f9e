"""Measuring: ``run`` and ``measure``, from options to results in the database.

``execution`` leads a run: ``selection`` finds the bricks and models to measure, ``plan`` groups them, ``scheduler``
asks workers for samples, ``pace`` limits their number, and ``recorder`` stores them. ``ceilings`` and ``trial`` are
separate measurements. ``agreement`` compares the outputs of two backends.
"""
