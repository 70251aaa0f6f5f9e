"""What a runtime's optimiser leaves in the graphs that it makes: its own operators, and how it names values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ...bricks.graph.executed import Layouts

__all__ = ["OptimiserTraits"]


@dataclass(frozen=True, slots=True)
class OptimiserTraits:
    """By what the operators of an optimised graph are matched with those that they came from.

    Attributes:
        layouts: How layouts of the runtime's own show in a graph.
        transposing: Its operators that take a transposition over from one in front of or behind them; its layout
            changes do as well.
        prefixes: What it puts before the name of an operator that it fused or laid out anew.
        blocked: Matches the name of an operator that it laid out anew: the group ``value`` is the value that the
            operator stands for, which may end in the group ``step``. None: it gives no such names.
        renamed: Matches the name of an operator that it copied or gave another layout: the group ``name`` is that which
            the operator had before. None: it renames none.
        summands: The first slot of such an operator in which it reads what is added to its result.
    """

    layouts: Layouts = field(default_factory=Layouts)
    transposing: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    blocked: re.Pattern[str] | None = None
    summands: int = 0
    renamed: re.Pattern[str] | None = None

    def stands_for(self, name: str) -> tuple[str, str] | None:
        """The values that an operator may be named after, the likelier one first; None where it kept its own name."""
        found = self.blocked.fullmatch(name) if self.blocked is not None else None
        return None if found is None else (found["value"] + (found["step"] or ""), found["value"])

    def plain(self, name: str) -> str:
        """The name that an operator had before it was copied or laid out anew; its own where it was not."""
        found = self.renamed.fullmatch(name) if self.renamed is not None else None
        return name if found is None else found["name"]

    def family(self, kind: str) -> str:
        """What operators have in common that differ in layout, or in what is fused to them, alone."""
        name = kind.rpartition(".")[2]
        for prefix in self.prefixes:
            name = name.removeprefix(prefix)
        return name
