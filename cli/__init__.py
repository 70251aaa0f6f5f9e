"""The command line: a thin shell over the public functions."""

from __future__ import annotations

from .commands import commands, main

__all__ = ["commands", "main"]
