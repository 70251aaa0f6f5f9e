"""The isolated worker: what runs untrusted networks, and the parent's handle on it.

Here stand both ends of the pipe (``client`` for the parent, ``worker`` and ``serving`` for the process), what they
say to each other (``requests``, ``replies``), the sandbox, and what runs inside (``execution``). Which brick is
measured when is decided elsewhere.
"""
