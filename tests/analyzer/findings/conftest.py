"""The model of the bench as analyses see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dlbricks.analyzer.findings.subject import Subject
from dlbricks.constructor.decomposition import Decomposition, cut_of
from dlbricks.constructor.estimate import estimates_under
from dlbricks.constructor.result import Estimate
from dlbricks.constructor.selection import Query, choose
from dlbricks.constructor.survey import decompose_all
from dlbricks.generator.decomposition.decomposer import Cut
from dlbricks.generator.decomposition.oracle import WorkerOracle


@pytest.fixture
def subject_of() -> Callable[[Any], Subject]:
    """The model of a bench as analyses see it, as if its own graph were executed."""

    def made(bench: Any, source: Any = None) -> Subject:
        query = Query(backend="onnxruntime", threads=1, dtype="float32")
        blank = Estimate(name="", granularity=1)
        with WorkerOracle() as oracle:
            (model,) = found = decompose_all([source or bench.source], cut_of(Cut(1), "source"), oracle, blank)
            assert isinstance(model, Decomposition)
            choice = choose(bench.store, {part.key for part in model.sequences}, query)
            (estimate,) = estimates_under(choice, found, store=bench.store, query=query, blank=blank, oracle=oracle)
        return Subject(model, estimate, choice, bench.store)

    return made
