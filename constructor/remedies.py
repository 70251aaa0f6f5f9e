"""What would measure what is missing, as commands: whoever knows the runtimes that are installed writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..models import ModelSource

__all__ = ["Remedies"]


class Remedies(Protocol):
    """Commands for what an estimate misses; None where nothing does it."""

    def measure(
        self,
        source: ModelSource,
        *,
        graph: str | None = None,
        cache: str | None = None,
        algorithms: Sequence[str] = (),
    ) -> str | None:
        """Decompose the model and measure its bricks.

        Args:
            source: The model.
            graph: Another graph than the one that was decomposed.
            cache: Another cache state than the one that was asked for.
            algorithms: By which bricks are measured as well.
        """

    def again(self, source: ModelSource) -> str | None:
        """The same, trying again what failed."""

    def examine(self, source: ModelSource) -> str | None:
        """Measure what the model's own values cost."""

    def ceilings(self) -> str:
        """Measure what the machine does at most."""
