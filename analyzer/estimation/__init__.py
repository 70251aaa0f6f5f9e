"""Estimates of models from stored measurements.

``estimate.py`` holds the public ``estimate`` and ``estimate_between``, ``estimates.py`` their results. ``query.py``
chooses the stored combination, ``reading.py`` reads the measurements of bricks and models, and ``tasks.py`` names the
commands that measure missing ones. The arithmetic is in the constructor.
"""
