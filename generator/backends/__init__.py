"""Backends: the runtimes that can execute networks, each in a room of its own, behind the seam of ``base``.

Here stands the seam (``base``), how a backend is found (``registry``), what several of them share (``reports``,
``geometry``; of a GPU's libraries ``library``), and environments for runtimes with pins of their own.
"""
