"""Savings of other settings: threads, independent branches at once, denormal numbers as zeros."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ....generator.machine.cores import physical_cores
from ..analysed_model import AnalysedModel, Node, Spent
from ..finding import LATENCY, Analysis, Finding, Remedy, finding_of, lines_of

# Branches that do not depend on each other and run one after another.
#
# Saving: the sum of what is executed less its critical path, as in Benanza (IPDPS 2020), section III.D, Q1 and Q2:
# profit of parallel execution = sequential - critical path; and no more than all threads at once would save of the
# sum. It supposes that branches do not contend for memory, and that what an operator takes with all threads it takes
# with its share of them; so it is the most that there can be. Only trying shows how much of it there is: ONNX
# Runtime's parallel execution costs something for each operator, and often saves nothing.
#
# With one thread nothing runs at once; whether the model gains from a thread for each branch is tried.


_WORTH = 0.03
"""Smallest share of the sum off the critical path for a trial."""
_SHOWN = 3
_TITLE = "independent branches run one after another"


def _branches_run(subject: AnalysedModel) -> Iterable[Finding]:
    choice = subject.choice
    threads = 1 if choice is None else choice.conditions.threads
    current, longest = subject.spent(subject.nodes), _longest(subject)
    if threads < 2 or not _can_set(subject, "execution", "parallel") or current is None or not subject.latency_ms:
        return
    path = subject.spent(longest)
    assert path is not None  # noqa: S101  # all are measured
    beside = min(threads, math.ceil(current.ms / path.ms)) if path.ms else 1  # work over span: so many at once
    saving = min(current.ms - path.ms, current.ms * (1 - 1 / threads))
    if saving < _WORTH * current.ms:
        return
    along = {id(node) for node in longest}
    off = sorted((node for node in subject.nodes if id(node) not in along), key=lambda node: -(node.ms or 0.0))
    names = subject.names(index for node in off[:_SHOWN] for index in sorted(node.origins)[:1])
    idea = Finding(
        "branches",
        f"{_TITLE}: {len(off)} operators wait for others that they do not need",
        _remedy(beside, max(1, threads // beside)),
        (
            f"its operators one after another take {current.ms:.4g} ms, those along the longest path {path.ms:.4g} ms",
            f"the longest of those beside it: {', '.join(names)}",
        ),
    )
    finding = finding_of(subject, idea, current, Spent(saving, saving / current.ms * current.half_ms, ()))
    yield replace(finding, at_most=True)


def _branches_ideas(subject: AnalysedModel) -> Iterable[Finding]:
    estimate, cores = subject.estimate, len(physical_cores())
    total, path = estimate.sums.sequential_ms, estimate.sums.critical_path_ms
    if not _can_set(subject, "execution", "parallel") or cores < 2 or not total or path is None:
        return
    if (total - path) / total < _WORTH:
        return
    evidence = f"its operators one after another take {total:.4g} ms, along the longest path {path:.4g} ms"
    yield Finding("branches", _TITLE, _remedy(cores), (evidence,))


def _can_set(subject: AnalysedModel, option: str, value: str) -> bool:
    """Return true if the model runs on a CPU in ONNX Runtime, without this value of an option."""
    choice = subject.choice
    return (
        choice is not None
        and (choice.stack.backend, choice.stack.device) == ("onnxruntime", "cpu")
        and dict(choice.stack.options).get(option) != value
    )


def _remedy(cores: int, threads: int = 1) -> Remedy:
    """Parallel execution of so many operators, each with so many threads: together no more than there are cores."""
    settings = {"execution": "parallel", "inter_op": str(cores), "threads": str(threads)}
    return Remedy(
        "session_option",
        f"Run {cores} independent operators at the same time, each with {threads} of the threads; or, where branches "
        "share their weights, put what goes into them into one batch.",
        settings,
        lines_of(settings),
    )


def _longest(subject: AnalysedModel) -> list[Node]:
    """Return the executed operators along the critical path."""
    graph = subject.model.graph
    nodes = {node.layer.index: node for node in subject.nodes}
    until: dict[int, float] = {}
    back: dict[int, int | None] = {}
    for index, node in nodes.items():
        makers = [
            maker for name in node.layer.node.input if (maker := graph.producer(name)) in until and maker is not None
        ]
        back[index] = max(makers, key=until.__getitem__, default=None)
        until[index] = (node.ms or 0.0) + max((until[maker] for maker in makers), default=0.0)
    last, path = max(until, key=until.__getitem__, default=None), []
    while last is not None:
        path.append(nodes[last])
        last = back[last]
    return path


BRANCHES = Analysis("branches", run=_branches_run, ideas=_branches_ideas)


# One thread where the machine has more cores, or many for a model that has too little to share.
#
# Nothing is predicted: what is stored of other threads is compared by ``alternatives``, and otherwise it is tried.


def _threads_ideas(subject: AnalysedModel) -> Iterable[Finding]:
    cores = len(physical_cores())
    if subject.choice is None or subject.choice.stack.device != "cpu" or cores < 2:
        return
    now = subject.choice.conditions.threads
    threads = cores if now == 1 else 1
    text = f"Run with {threads} thread{'s' if threads > 1 else ''}."
    evidence = f"it runs with {now} of {cores} cores"
    yield Finding("threads", text, Remedy("threads", text, {"threads": str(threads)}), (evidence,))


THREADS = Analysis("threads", frozenset({LATENCY}), ideas=_threads_ideas)


# Denormal numbers, on which a processor takes many times as long.
#
# Bricks have none (docs/explanation/measuring.md), so that only a trial of the model tells what they cost. It comes
# first if the file has such weights, or if bricks do not explain the model: activations may become such numbers, too.
# The remedy is ONNX Runtime's option ``session.set_denormal_as_zero``.


_AS_ZERO = {"denormal_as_zero": "on"}
_REMEDY = Remedy("session_option", "Treat denormal numbers as zero.", _AS_ZERO, lines_of(_AS_ZERO))


def _denormals_ideas(subject: AnalysedModel) -> Iterable[Finding]:
    if _can_set(subject, "denormal_as_zero", "on"):
        evidence = ["a processor takes many times as long for them, and bricks have none"]
        if held := subject.denormal_layers:
            names = ", ".join(f"{subject.names([index])[0]} ({count:,})" for index, count in [*held.items()][:_SHOWN])
            rest = f" and {len(held) - _SHOWN} more layers" if len(held) > _SHOWN else ""
            evidence.append(f"weights that are denormal numbers: {names}{rest}")
        yield Finding("denormals", "denormal numbers", _REMEDY, tuple(evidence))


DENORMALS = Analysis("denormals", frozenset({LATENCY}), ideas=_denormals_ideas)


# Operators that the runtime put in: reorders into and out of a layout of its own, transpositions, conversions.
#
# They serve the kernels around them, so that their time is the most that another layout could save, and no finding
# until it was tried.


_INSERTED_WORTH = 0.01
_EXTENDED = {"optimization": "extended"}


def _inserted_ideas(subject: AnalysedModel) -> Iterable[Finding]:
    nodes = [node for node in subject.nodes if not node.origins]
    spent, latency = subject.spent(nodes), subject.latency_ms
    if spent is None or not latency or spent.ms / latency < _INSERTED_WORTH or subject.choice is None:
        return
    level = dict(subject.choice.stack.options).get("optimization")
    if subject.layouts.changes.isdisjoint(node.layer.kind for node in nodes) or level != "all":
        return
    counts = ", ".join(f"{count} x {name}" for name, count in Counter(node.layer.op_type for node in nodes).items())
    yield Finding(
        "inserted_operators",
        "the runtime changes layouts on the way",
        Remedy(
            "session_option",
            "Keep images in the model's own layout.",
            _EXTENDED,
            lines_of(_EXTENDED),
        ),
        (f"it put in {counts}, which take {spent.ms:.3g} ms",),
    )


INSERTED = Analysis("inserted_operators", ideas=_inserted_ideas)
