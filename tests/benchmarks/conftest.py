"""The database of ``lab``."""

from __future__ import annotations

from lab import lab

__all__ = ["lab"]
