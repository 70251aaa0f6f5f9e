"""What a language model takes to answer: its prompt and its steps, from bricks measured at a few lengths.

``lengths.py`` finds the models and their dimensions, ``tokens.py`` measures what is missing and reads between the
lengths (``constructor/curve.py``, ``constructor/tokens.py``), ``answer.py`` says it.
"""
