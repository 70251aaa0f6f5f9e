"""Measuring: ``run`` and ``measure``, from options to results in the database.

Here stands the session that asks workers for samples, what it measures (``item``, ``subjects``, ``pending``), and
what it writes (``journal``); ``sampling`` decides how much of what, ``data`` and ``ceilings`` are measurements of
their own. ``profiling`` takes the kernels of what was measured, ``agreement`` holds what two backends compute against
each other.
"""
