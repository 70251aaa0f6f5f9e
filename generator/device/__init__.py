"""Where networks run: one ordered stream of work, and a clock in it (``device``), on the CPU and on NVIDIA GPUs.

``host`` is the CPU, ``cuda`` a GPU through CuPy, ``opening`` finds them by name.
"""
