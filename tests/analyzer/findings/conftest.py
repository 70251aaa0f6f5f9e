"""The model of the bench as analyses see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dlbricks.analyzer.estimation.cutting import cut_of
from dlbricks.analyzer.estimation.estimate import estimates_under
from dlbricks.analyzer.estimation.query import Query, choose
from dlbricks.analyzer.estimation.survey import decompose_all
from dlbricks.analyzer.findings.subject import Subject
from dlbricks.constructor.decomposition import Decomposition
from dlbricks.generator.decomposition.cutter import Cut
from dlbricks.generator.decomposition.oracle import WorkerOracle


@pytest.fixture
def subject_of() -> Callable[..., Subject]:
    """The model of a bench as analyses see it, as if its own graph were executed."""

    def made(bench: Any, source: Any = None, threads: int = 1) -> Subject:
        query, cut = Query(backend="onnxruntime", threads=threads, dtype="float32"), cut_of(Cut(1), "source")
        with WorkerOracle() as oracle:
            (model,) = decompose_all([source or bench.source], cut, oracle)
            assert isinstance(model, Decomposition)
            choice = choose(bench.store, {part.key for part in model.sequences}, query)
            (estimate,) = estimates_under(choice, [model], store=bench.store, query=query, cut=cut, oracle=oracle)
        return Subject(model, estimate, choice, bench.store)

    return made
