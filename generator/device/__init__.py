"""Devices that run networks: an ordered stream of work and a clock (``device``), on the CPU and on NVIDIA GPUs.

``host`` is the CPU and finds devices by name; ``cuda`` is a GPU through CuPy.
"""
