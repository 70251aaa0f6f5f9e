"""What the exceptions of a runtime mean. Most share no base class, and their text is their only detail."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import BackendError, UnsupportedBrick

__all__ = ["Wording"]

_MEMORY = re.compile(
    r"bad_alloc|bad allocation|(failed to|can(no|')t|cannot) alloc|not enough memory|out of memory", re.IGNORECASE
)
_SOURCE = re.compile(r"(?<![\w.@+/-])[\w.@+/-]+\.(cc|h|hpp|cpp|cu):\d+:?")
"""Places in a runtime's own source: a stored reason must not name them."""
_NOTHING = re.compile(r"(?!)")
_REASON_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Wording:
    """How a runtime words what went wrong.

    Attributes:
        runtime: Its name.
        unsupported: Found where it cannot express a network.
        memory: Found where there was not enough memory, beside what runtimes have in common.
        noise: What names no cause, or a place: left out of a reason.
    """

    runtime: str
    unsupported: re.Pattern[str]
    memory: re.Pattern[str] = _NOTHING
    noise: re.Pattern[str] = _NOTHING

    def meaning(
        self, error: Exception, *, where: str = "", cause: str | None = None, unsupported: bool = False
    ) -> Exception:
        """What an exception means, as a backend raises it (``BackendError``, ``UnsupportedBrick``, ``MemoryError``).

        Args:
            error: Of the runtime; one of dlbricks' own is returned as it is.
            where: Operators that it was at, as far as it is known.
            cause: The part of its text that names the cause; None: all of it.
            unsupported: Whether it is known to mean that the runtime cannot express the network.
        """
        if isinstance(error, BackendError):
            return error
        text = _line(str(error))
        noiseless = _SOURCE.sub(" ", self.noise.sub(" ", text if cause is None else _line(cause)))
        reason = _line(noiseless).strip(" :")[:_REASON_LENGTH] or type(error).__name__
        if isinstance(error, MemoryError) or _MEMORY.search(text) or self.memory.search(text):
            return MemoryError(f"{where}: {reason}" if where else reason)
        if unsupported or self.unsupported.search(text):
            return UnsupportedBrick(f"{self.runtime} cannot express {where or 'it'}: {reason}")
        return BackendError(f"{self.runtime} failed{f' in {where}' if where else ''}: {reason}")


def _line(text: str) -> str:
    return " ".join(text.split())
