"""Two models that were really measured and profiled, one of them with hostile names, and the page of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from dlbricks.analyzer.findings.finding import Finding, Proof, Remedy
from dlbricks.analyzer.report.page.page import render_page
from dlbricks.analyzer.report.section import Section
from dlbricks.analyzer.reporting import report
from dlbricks.db import Store
from dlbricks.generator.measurement.ceilings import measure_ceilings
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.models import find_models
from lab import lab

__all__ = ["Reported", "finding", "lab", "reported"]

HOSTILE = (
    "<script>window.hit = 1</script>",
    "</script><script>window.hit = 2</script>",
    "\"quoted\" 'twice' `thrice` ${window.hit = 3} {{ 7 * 7 }} &amp;",
    "<img src=x onerror='window.hit = 4'>",
    "\u05e9\u05dc\u05d5\u05dd \u202eright to left\u2066",
    "long " * 2000,
)
"""Names of layers; the file has a name like them."""


@dataclass(frozen=True)
class Reported:
    """Models as reported, and where from."""

    sections: tuple[Section, ...]
    store: str

    def page(
        self, *names: str, findings: dict[str, tuple[Finding, ...]] | None = None, untried: tuple[str, ...] = ()
    ) -> str:
        """The page of some of the models, with findings by name, and what was not tried of each."""
        chosen = [one for one in self.sections if not names or one.name in names]
        given = findings or {}
        return render_page([dataclasses.replace(one, findings=given.get(one.name), untried=untried) for one in chosen])


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory, write_branches: Callable[[Path], Path]) -> Reported:
    folder = tmp_path_factory.mktemp("reported")
    write_branches(folder / "branches.onnx")
    hostile = onnx.load(write_branches(folder / "plain.onnx"))
    for node, name in zip(hostile.graph.node, HOSTILE, strict=True):
        node.name = name
    onnx.save(hostile, folder / "<b onclick='window.hit = 5'>bold.onnx")
    models = find_models([folder / "branches.onnx", folder / "<b onclick='window.hit = 5'>bold.onnx"])
    database = str(folder / "dlbricks.db")
    with Store.open(database) as store:
        small = {"gemm_sizes": (256,), "sizes": (1 << 20,), "visits": 3, "processes": 1}
        measure_ceilings(store=store, backend="onnxruntime", dtype="float32", **small)  # else all of them are measured
        report(models, store=store, suite=folder / "suite", visits=6, prove=False)
        run(folder / "suite", store=store, kernels=True)
        measure(models[:1], store=store, cache="model", kernels=True, visits=6)
        made = report(models, store=store, measure=False)
    assert made.complete
    return Reported(made.sections, database)


@pytest.fixture
def finding() -> Finding:
    """A finding that was proven; its texts are hostile as well."""
    return Finding(
        kind="unfused",
        title="A bias is added in a layer of its own <script>window.hit = 6</script>",
        layers=HOSTILE[:2],
        current_ms=2.0,
        achievable_ms=1.5,
        saving_ms=0.5,
        ci95_ms=(0.4, 0.6),
        share=0.05,
        evidence=("The sum takes 2.0 ms, the fused form 1.5 ms.",),
        keys=("ab" * 32,),
        remedy=Remedy("rewrite", "Fold the bias into the convolution.", code="<b>model</b>.fold()"),
        proof=Proof(10.0, 9.6, 0.4, (0.3, 0.5), 1e-6, "improved.onnx"),
    )
