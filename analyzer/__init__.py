"""What stored measurements say: estimates, comparisons, histories, findings, rewrites, and the report on all of it.

Modules beside the rooms are the commands that join several of them.
"""
