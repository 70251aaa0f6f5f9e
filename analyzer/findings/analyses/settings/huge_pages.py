"""Weights on pages of 4 KiB, where the kernel grants pages of 2 MiB on request.

A model that reads many weights for little arithmetic (a decoder's step, large products of one row) waits for the
processor to find its pages. What it saves is not predicted: what is stored with the option is compared by
``alternatives``, and otherwise it is tried.
"""

from __future__ import annotations

from collections.abc import Iterable

from .....errors import DlbricksError
from .....generator.backends.huge_pages import HUGE_PAGES, VARIABLE, why_no_huge_pages
from .....generator.backends.registry import get
from ...analysis import LATENCY, Analysis, Idea
from ...finding import Remedy
from ...subject import Subject

__all__ = ["ANALYSIS", "REMEDY"]

_LEAST = 32 << 20
"""Bytes of weights: fewer lie on pages that a processor remembers, some thousands of 4 KiB."""

REMEDY = Remedy(
    "session_option",
    "Take memory in huge pages.",
    {HUGE_PAGES.name: "on"},
    "=".join(VARIABLE) + " python ...  # of the process that serves the model",
)


def _ideas(subject: Subject) -> Iterable[Idea]:
    if subject.choice is None or subject.graph.weight_bytes < _LEAST or why_no_huge_pages():
        return
    stack = subject.choice.stack
    if HUGE_PAGES.name in dict(stack.options) or not _has_option(stack.backend, stack.device):
        return
    mib = subject.graph.weight_bytes / (1 << 20)
    yield Idea("huge_pages", "its weights lie on small pages", REMEDY, (f"it has {mib:.0f} MiB of weights",))


def _has_option(backend: str, device: str) -> bool:
    """Whether a backend has it on a device."""
    try:
        get(backend).resolve(device, REMEDY.settings)
    except DlbricksError:
        return False
    return True


ANALYSIS = Analysis("huge_pages", frozenset({LATENCY}), ideas=_ideas)
