"""This machine: its hardware, drivers and state, the cores of workers, and the lock of measurements.

Nothing here knows of networks, backends or samples.
"""
