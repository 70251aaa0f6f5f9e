"""Branches that do not depend on each other and run one after another.

Saving: the sum of what is executed less its critical path, as in Benanza (IPDPS 2020), section III.D, Q1 and Q2: profit
of parallel execution = sequential - critical path. It supposes that branches do not contend for memory, and that each
keeps its threads; so it is the most that there can be, and no finding until it was tried.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....generator.machine.cores import physical_cores
from ..analysis import Analysis, Idea
from ..finding import Remedy
from ..subject import Subject

__all__ = ["ANALYSIS"]

_WORTH = 0.03
"""Least share of the sum that lies off the critical path for it to be tried."""


def _ideas(subject: Subject) -> Iterable[Idea]:
    estimate, choice, cores = subject.estimate, subject.choice, len(physical_cores())
    total, path = estimate.sequential_ms, estimate.critical_path_ms
    if choice is None or choice.stack.backend != "onnxruntime" or choice.stack.device != "cpu" or cores < 2:
        return
    if dict(choice.stack.options).get("execution") == "parallel" or not total or path is None:
        return
    if (total - path) / total < _WORTH:
        return
    yield Idea(
        "branches",
        "independent branches run one after another",
        Remedy(
            "session_option",
            f"Run independent operators at the same time, on {cores} cores.",
            {"execution": "parallel", "inter_op": str(cores)},
            f"options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL\noptions.inter_op_num_threads = {cores}",
        ),
        (f"its operators one after another take {total:.4g} ms, along the longest path {path:.4g} ms",),
    )


ANALYSIS = Analysis("branches", ideas=_ideas)
