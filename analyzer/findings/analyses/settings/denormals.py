"""Denormal numbers, on which a processor takes many times as long.

Saving: what ``measure --data`` stored: the latency of every executed layer with the model's own values less that with
synthetic ones, in turn (docs/measuring.md). Where nothing is stored, it is tried. The remedy is ONNX Runtime's option
``session.set_denormal_as_zero``.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...analysis import LATENCY, Analysis, Idea
from ...finding import Finding, Remedy
from ...subject import Subject

__all__ = ["ANALYSIS"]

_REMEDY = Remedy(
    "session_option",
    "Treat denormal numbers as zero.",
    {"denormal_as_zero": "on"},
    'options.add_session_config_entry("session.set_denormal_as_zero", "1")',
)


def _applies(subject: Subject) -> bool:
    choice = subject.choice
    return (
        choice is not None
        and choice.stack.backend == "onnxruntime"
        and choice.stack.device == "cpu"
        and dict(choice.stack.options).get("denormal_as_zero") != "on"
    )


def _run(subject: Subject) -> Iterable[Finding]:
    term = (subject.estimate.attribution or {}).get("data")
    if not _applies(subject) or term is None or term.ms is None or term.ci95_ms is None or not subject.latency_ms:
        return
    yield Finding(
        kind="denormals",
        title="the model's own values make it slower",
        layers=(),
        current_ms=subject.latency_ms,
        achievable_ms=subject.latency_ms - term.ms,
        saving_ms=term.ms,
        ci95_ms=term.ci95_ms,
        share=term.ms / subject.latency_ms,
        evidence=(f"with its own values it takes {term.ms:.3g} ms longer than with synthetic ones, layer by layer",),
        keys=(),
        remedy=_REMEDY,
    )


def _ideas(subject: Subject) -> Iterable[Idea]:
    if _applies(subject):
        yield Idea("denormals", "denormal numbers", _REMEDY, ("nothing is stored of what the model's own values cost",))


ANALYSIS = Analysis("denormals", frozenset({LATENCY}), _run, _ideas)
