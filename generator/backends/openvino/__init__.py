"""OpenVINO: compiled models, and the nodes that it executes.

Here stands what is true of OpenVINO alone.
"""
