"""Code that runs inside the worker: the timed loop, passes of packs, extraction of executed graphs.

The package contains all code that holds an executable. It neither starts processes nor writes to a database.
"""
