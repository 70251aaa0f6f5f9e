"""Messages between parent and worker: frozen dataclasses, one JSON object per line.

Here stands what is said, and nothing that acts on it.
"""
