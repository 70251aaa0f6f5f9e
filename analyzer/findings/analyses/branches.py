"""Branches that do not depend on each other and run one after another.

Saving: the sum of what is executed less its critical path, as in Benanza (IPDPS 2020), section III.D, Q1 and Q2: profit
of parallel execution = sequential - critical path; and no more than all threads at once would save of the sum. It
supposes that branches do not contend for memory, and that what an operator takes with all threads it takes with its
share of them; so it is the most that there can be. Only trying shows how much of it there is: ONNX Runtime's parallel
execution costs something for each operator, and often saves nothing.

With one thread nothing runs at once; whether the model gains from a thread for each branch is tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ....generator.machine.cores import physical_cores
from ..analysis import Analysis, Idea, finding
from ..finding import Finding, Remedy
from ..subject import Node, Spent, Subject

__all__ = ["ANALYSIS"]

_WORTH = 0.03
"""Least share of the sum that lies off the critical path for it to be tried."""
_SHOWN = 3
_TITLE = "independent branches run one after another"


def _run(subject: Subject) -> Iterable[Finding]:
    choice = subject.choice
    threads = 1 if choice is None else choice.conditions.threads
    current, longest = subject.spent(subject.nodes), _longest(subject)
    if threads < 2 or not _applies(subject) or current is None or not subject.latency_ms:
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
    found = finding(
        subject,
        "branches",
        f"{_TITLE}: {len(off)} operators wait for others that they do not need",
        layers=(),
        current=current,
        saving=Spent(saving, saving / current.ms * current.half_ms, ()),
        evidence=[
            f"its operators one after another take {current.ms:.4g} ms, those along the longest path {path.ms:.4g} ms",
            f"the longest of those beside it: {', '.join(names)}",
        ],
        remedy=_remedy(beside, max(1, threads // beside)),
    )
    yield replace(found, at_most=True)


def _ideas(subject: Subject) -> Iterable[Idea]:
    estimate, cores = subject.estimate, len(physical_cores())
    total, path = estimate.sequential_ms, estimate.critical_path_ms
    if not _applies(subject) or cores < 2 or not total or path is None:
        return
    if (total - path) / total < _WORTH:
        return
    evidence = f"its operators one after another take {total:.4g} ms, along the longest path {path:.4g} ms"
    yield Idea("branches", _TITLE, _remedy(cores), (evidence,))


def _applies(subject: Subject) -> bool:
    choice = subject.choice
    return (
        choice is not None
        and (choice.stack.backend, choice.stack.device) == ("onnxruntime", "cpu")
        and dict(choice.stack.options).get("execution") != "parallel"
    )


def _remedy(cores: int, threads: int = 1) -> Remedy:
    """Parallel execution of so many operators, each with so many threads: together no more than there are cores."""
    return Remedy(
        "session_option",
        f"Run {cores} independent operators at the same time, each with {threads} of the threads; or, where branches "
        "share their weights, put what goes into them into one batch.",
        {"execution": "parallel", "inter_op": str(cores), "threads": str(threads)},
        "options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL\n"
        f"options.inter_op_num_threads = {cores}\noptions.intra_op_num_threads = {threads}",
    )


def _longest(subject: Subject) -> list[Node]:
    """The executed operators along the path that takes longest."""
    graph = subject.model.graph
    nodes = {node.layer.index: node for node in subject.nodes}
    until: dict[int, float] = {}
    back: dict[int, int | None] = {}
    for index, node in nodes.items():
        makers = [one for name in node.layer.node.input if (one := graph.producer(name)) in until and one is not None]
        back[index] = max(makers, key=until.__getitem__, default=None)
        until[index] = (node.ms or 0.0) + max((until[one] for one in makers), default=0.0)
    last, path = max(until, key=until.__getitem__, default=None), []
    while last is not None:
        path.append(nodes[last])
        last = back[last]
    return path


ANALYSIS = Analysis("branches", run=_run, ideas=_ideas)
