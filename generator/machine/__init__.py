"""This machine: its hardware, drivers and state, where its workers run, and who may measure on it now.

Here stands what describes or reserves the machine itself. It knows nothing of networks, backends or samples.
"""
