"""Backends: the runtimes that can execute networks, one room each, behind the interface in ``base``.

This room has the interface (``base``), the search for backends (``registry``), shared code (``reports``, ``geometry``;
``library`` for GPU libraries), and environments for runtimes with special pins.
"""
