"""What runs inside the worker: the timed loop, rotations, execution layer by layer, and extraction of executed graphs.

Here stands what holds an executable. Nothing of it starts a process or writes to a database.
"""
