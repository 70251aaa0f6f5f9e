"""Backends: the runtimes that can execute networks, each in a room of its own, behind the seam of ``base``.

Here stands the seam (``base``), how a backend is found and asked what it has (``registry``, ``requirements``), what
several of them share (``package``, ``wording``, ``launches``; of a GPU's libraries ``library``, ``memory`` and
``plan_times``), and environments for runtimes with pins of their own.
"""
