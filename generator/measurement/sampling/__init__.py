"""Sampling: who is sampled when, when it is enough, and what the samples say.

Here stand functions of numbers. Nothing here talks to a worker or a database.
"""
