"""Where networks run: one ordered stream of work, and a clock in it (``device``), on the CPU and on NVIDIA GPUs.

``host`` is the CPU, ``cuda`` a GPU through CuPy, ``nvml`` what NVIDIA's management library tells of it.
"""
