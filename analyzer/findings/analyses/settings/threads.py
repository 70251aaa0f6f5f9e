"""One thread where the machine has more cores, or many for a model that has too little to share.

Nothing is predicted: what is stored of other threads is compared by ``alternatives``, and otherwise it is tried.
"""

from __future__ import annotations

from collections.abc import Iterable

from .....generator.machine.cores import physical_cores
from ...analysis import LATENCY, Analysis, Idea
from ...finding import Remedy
from ...subject import Subject

__all__ = ["ANALYSIS"]


def _ideas(subject: Subject) -> Iterable[Idea]:
    cores = len(physical_cores())
    if subject.choice is None or subject.choice.stack.device != "cpu" or cores < 2:
        return
    now = subject.choice.conditions.threads
    wanted = cores if now == 1 else 1
    text = f"Run with {wanted} thread{'s' if wanted > 1 else ''}."
    evidence = f"it runs with {now} of {cores} cores"
    yield Idea("threads", text, Remedy("threads", text, {"threads": str(wanted)}), (evidence,))


ANALYSIS = Analysis("threads", frozenset({LATENCY}), ideas=_ideas)
