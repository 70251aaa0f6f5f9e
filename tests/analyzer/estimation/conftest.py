"""The models and the database of ``lab``."""

from __future__ import annotations

from lab import chain, fork, graph_of_fixture, keys_of_fixture, lab

__all__ = ["chain", "fork", "graph_of_fixture", "keys_of_fixture", "lab"]
