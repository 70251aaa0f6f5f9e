"""Estimates of models from what is stored: what decomposes them, reads the database and asks the constructor.

Here stands the public ``estimate``, which stored combination it is made from (``selection``), how models are cut
(``cutting``, ``survey``) and their decompositions kept (``archive``, ``records``), what is looked up of their bricks
(``lookup``, ``ceilings``, ``profiled``), and the tasks that would measure what is missing. The arithmetic is the
constructor's.
"""
