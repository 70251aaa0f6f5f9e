"""The table of operators by domain: which decompose, have a formula for their work, and are measured, per backend.

    python benchmarks/operators.py [--run] [--check]

``--run`` decomposes every model of the onnx wheel's node tests, and the graphs that ONNX Runtime executes for quantised
files (``quantised.py``), at G=1, measures each brick there is with ONNX Runtime, and writes, operator by operator, what
came of it to ``docs/results/operators.json``. docs/operators.md is written from that file, from that of ``classes.py``
(shares by class of files) and from the code: which operators have a formula, and which of them PyTorch, MXNet, cuDNN
and CuPy have here. ``--check`` writes nothing, and fails where the page would change; a test does the same.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import blocks
import classes
from dlbricks.bricks.costs import FORMULAS
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.suite.brick import Brick, build_brick
from dlbricks.bricks.suite.writing import write_suite
from dlbricks.db import Store, Subject
from dlbricks.errors import DlbricksError
from dlbricks.generator.decomposition.cutter import Cut, Cutter
from dlbricks.generator.decomposition.oracle import WorkerOracle
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource, find_models
from dlbricks.models.names import plain_domain

PAGES = (Path("docs/operators.md"),)

_RESULT = Path("docs/results/operators.json")
_ONNX = "ai.onnx"
_QUANTISED = ("squeezenet", "minilm_l6")
"""Models whose quantised files bring the runtime's own operators."""

Counts = dict[str, dict[str, int]]


def main() -> None:
    """Run where that is asked for; then write the page, or check it."""
    if "--run" in sys.argv:
        sys.argv.remove("--run")
        result = experiment()
        (blocks.TOP / _RESULT).write_text(json.dumps(result, indent=1) + "\n")
    blocks.write(PAGES, lambda text: rendered(text, blocks.TOP), __doc__ or "", "run python benchmarks/operators.py")


def rendered(text: str, top: Path) -> str:
    """The page with its tables made anew.

    Args:
        text: The page.
        top: Folder of the project.
    """
    result = {**json.loads((top / _RESULT).read_text()), **_found(top)}
    return blocks.rendered(text, lambda name: _BLOCKS[name](result))


def _found(top: Path) -> dict[str, Any]:
    """What ``classes.py`` found; its versions stand beside those of the run."""
    found = json.loads((top / classes.RESULT).read_text())
    return {"classes": found["classes"], "class_versions": found["versions"]}


def experiment() -> dict[str, Any]:
    """Decompose, measure, and count by operator."""
    logging.disable(logging.CRITICAL)  # the quantizer writes to the root logger
    counts: Counts = defaultdict(Counter)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory(prefix="dlbricks-operators-") as place:
        folder = Path(place)
        with Store.open(folder / "operators.db") as store, WorkerOracle() as oracle:
            stack = ""
            for graph, sources in (("source", _node_tests(folder / "nodes")), ("runtime", _quantised(folder))):
                with Cutter(Cut(1, graph=graph), oracle=oracle) as cutter:
                    bricks, of = _decomposed(sources, cutter, counts)
                    bound = Cut(1, graph=graph).bound_to()
                suite = write_suite(folder / graph, bricks, granularity=1, graph=graph, bound_to=bound)
                done = run(suite, store=store, visits=10, processes=1, sessions=1)
                failed = {one.key for one in store.failures(subject=Subject.BRICK)} | {key for key, _ in done.failures}
                for key, operator in of.items():
                    counts[operator]["bricks"] += 1
                    counts[operator]["measured"] += key not in failed
                stack = done.stack
            versions = dict(store.stacks()[stack].versions)
    return {"versions": versions, "operators": {name: dict(counts[name]) for name in sorted(counts)}}


def _decomposed(
    sources: Sequence[ModelSource], cutter: Cutter, counts: Counts
) -> tuple[dict[str, Brick], dict[str, str]]:
    """The bricks of models by key, and the operator of each; layers are counted by what became of them."""
    bricks: dict[str, Brick] = {}
    of: dict[str, str] = {}
    for source in sources:
        try:
            cut = cutter(source)
        except DlbricksError:
            continue  # a test that is no model on its own, or that the runtime cannot load
        for layer in cut.graph.layers:
            name = _name(plain_domain(layer.domain), layer.op_type)
            counts[name]["layers"] += 1
            counts[name]["decomposed"] += layer.state is not LayerState.SKIPPED
        for part in cut.sequences:
            (index,) = part.layers
            layer = cut.graph.layers[index]
            if part.key not in bricks:
                bricks[part.key] = build_brick(cut.graph, part)
                of[part.key] = _name(plain_domain(layer.domain), layer.op_type)
    return bricks, of


def _name(domain: str, operator: str) -> str:
    return f"{domain or _ONNX}.{operator}"


def _node_tests(folder: Path) -> list[ModelSource]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    folder.mkdir()
    for case in cases:
        (folder / f"{case.name}.onnx").write_bytes(case.model.SerializeToString())
    return find_models([folder])


def _quantised(folder: Path) -> list[ModelSource]:
    import quantised

    return [source for _, source in quantised.files(folder, _QUANTISED, quantised.CLASSES)[0]]


def _torch() -> set[str]:
    from dlbricks.generator.backends.torch.operators.registry import operators

    return set(operators())


def _mxnet() -> set[str]:
    from dlbricks.generator.backends.mxnet.operators.node import translations

    return set(translations())


def _cudnn() -> set[str]:
    from dlbricks.generator.backends.cudnn.operators import OPERATORS

    return set(OPERATORS)


def _cupy() -> set[str]:
    from dlbricks.generator.backends.cupy.movers import MOVERS
    from dlbricks.generator.backends.cupy.pointwise import POINTWISE
    from dlbricks.generator.backends.cupy.pooling import POOLINGS

    return {*MOVERS, *POINTWISE, *POOLINGS}


_BACKENDS = {"PyTorch": _torch, "MXNet": _mxnet, "cuDNN": _cudnn, "CuPy": _cupy}
"""Backends that express each operator by a function of their own, with the operators of ONNX that they have."""


def _domains(result: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Each domain with its operators: those of the run, and those that have a formula."""
    names = {*result["operators"], *(_name(domain, operator) for domain, operator in FORMULAS)}
    domains: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        domain, _, operator = name.rpartition(".")
        domains[domain].append(operator)
    yield from sorted(domains.items())


def _tables(result: Mapping[str, Any]) -> str:
    known = {name: find() for name, find in _BACKENDS.items()}
    lines = [""]
    for domain, operators in _domains(result):
        rest = list(known) if domain == _ONNX else []
        lines += [
            f"### {domain}",
            "",
            " | ".join(["| operator", "layers decomposed", "work", "ONNX Runtime", *rest, ""]),
        ]
        lines.append("|---" * (4 + len(rest)) + "|")
        for operator in operators:
            counts = result["operators"].get(f"{domain}.{operator}", {})
            cost = (("" if domain == _ONNX else domain), operator) in FORMULAS
            cells = [
                operator,
                _of(counts.get("decomposed"), counts.get("layers")),
                "yes" if cost else "-",
                _of(counts.get("measured"), counts.get("bricks")),
                *("yes" if operator in known[name] else "-" for name in rest),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _of(some: int | None, among: int | None) -> str:
    """A count; empty where nothing was tried."""
    return "" if not among else f"{some or 0} of {among}"


def _summary(result: Mapping[str, Any]) -> str:
    lines = ["", "| domain | operators seen | layers that decompose | bricks measured | operators with a formula |"]
    lines.append("|---|---:|---:|---:|---:|")
    for domain, operators in _domains(result):
        counts = [result["operators"].get(f"{domain}.{one}", {}) for one in operators]
        total: Counter[str] = Counter()
        for one in counts:
            total.update(one)
        costed = sum((("" if domain == _ONNX else domain), one) in FORMULAS for one in operators)
        seen = sum(bool(one) for one in counts)
        lines.append(
            f"| {domain} | {seen} | {_of(total['decomposed'], total['layers'])} "
            f"| {_of(total['measured'], total['bricks'])} | {costed} of {len(operators)} |"
        )
    return "\n".join([*lines, ""])


def _versions(result: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in result["versions"].items())


def _class_versions(result: Mapping[str, Any]) -> str:
    return _versions({"versions": result["class_versions"]})


_BLOCKS = {
    "classes": classes.table,
    "class-versions": _class_versions,
    "operators": _tables,
    "summary": _summary,
    "versions": _versions,
}


if __name__ == "__main__":
    main()
