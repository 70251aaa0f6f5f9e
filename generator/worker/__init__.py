"""The isolated worker, a process that runs untrusted networks, and the parent's handle on it.

The package contains both ends of the pipe: ``client`` for the parent, ``worker`` and ``serving`` for the process.
``messages`` defines their requests and replies, and ``execution`` runs inside the worker. Other packages decide
which brick is measured when.
"""
