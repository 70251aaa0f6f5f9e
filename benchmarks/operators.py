"""Write the table of operators by domain: decomposition, formula for the work, and measurement, per backend.

    python benchmarks/operators.py [--check]

docs/reference/operators.md comes from ``docs/results/operators.json`` (layers and bricks of ONNX's node tests and of
quantised files, by operator), from ``docs/results/classes.json`` (shares by class of files), and from the code:
operators with a formula, and operators of PyTorch, MXNet, cuDNN and CuPy. Both files come from finished experiments.
``--check`` writes nothing and fails if the page would change; a test does the same.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import blocks
from dlbricks.bricks.operators import OPERATORS
from figures import RESULTS, percent, read, table, versions

PAGES = (Path("docs/reference/operators.md"),)

_ONNX = "ai.onnx"

Counts = Mapping[str, Mapping[str, int]]
"""Layers and bricks by operator."""


def main() -> None:
    """Write the page, or check it."""
    blocks.write(PAGES, lambda text: rendered(text, blocks.TOP), __doc__ or "", "run python benchmarks/operators.py")


def rendered(text: str, top: Path) -> str:
    """Return the page with new tables.

    Args:
        text: The page.
        top: Folder of the project.
    """
    run, classes = (read(top / RESULTS / f"{name}.json") for name in ("operators", "classes"))
    texts = {
        "classes": lambda: _classes(classes["classes"]),
        "class-versions": lambda: versions(classes, between=", "),
        "operators": lambda: _tables(run["operators"]),
        "summary": lambda: _summary(run["operators"]),
        "versions": lambda: versions(run, between=", "),
    }
    return blocks.rendered(text, lambda name: texts[name]())


def _by_backend() -> dict[str, Collection[str]]:
    """Return the ONNX operators of the backends that have a function per operator."""
    from dlbricks.generator.backends.cudnn.lowering import OPERATORS
    from dlbricks.generator.backends.cupy.kernel_call import POINTWISE
    from dlbricks.generator.backends.cupy.raw_kernels import MOVERS, POOLINGS
    from dlbricks.generator.backends.mxnet.operators.translation import translations
    from dlbricks.generator.backends.torch.operators.arguments import operators

    cupy = {*MOVERS, *POINTWISE, *POOLINGS}
    return {"PyTorch": set(operators()), "MXNet": set(translations()), "cuDNN": set(OPERATORS), "CuPy": cupy}


def _domains(run: Counts) -> Iterator[tuple[str, list[str], set[str]]]:
    """Return each domain with the operators of the run and those with a formula, and the latter alone."""
    formulas = {
        f"{domain or _ONNX}.{operator}" for (domain, operator), row in OPERATORS.items() if row.work or row.each
    }
    domains: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted({*run, *formulas}):
        domain, _, operator = name.rpartition(".")
        domains[domain].append(operator)
    for domain, operators in sorted(domains.items()):
        yield domain, operators, {operator for operator in operators if f"{domain}.{operator}" in formulas}


def _tables(run: Counts) -> str:
    backends = _by_backend()
    lines = [""]
    for domain, operators, formulas in _domains(run):
        others = ["other backends"] if domain == _ONNX else []
        rows = []
        for operator in operators:
            counts = run.get(f"{domain}.{operator}", {})
            names = [", ".join(name for name in backends if operator in backends[name]) for _ in others]
            work = "yes" if operator in formulas else "-"
            rows.append(
                [operator, _decomposed(counts), work, _of(counts.get("measured"), counts.get("bricks")), *names]
            )
        lines += [f"### {domain}", table(("operator", "layers decomposed", "work", "ONNX Runtime", *others), rows)]
    return "\n".join(lines)


def _summary(run: Counts) -> str:
    rows = []
    for domain, operators, formulas in _domains(run):
        counts = [run.get(f"{domain}.{operator}", {}) for operator in operators]
        total = sum(map(Counter, counts), Counter[str]())
        measured = _of(total["measured"], total["bricks"])
        rows.append([domain, sum(map(bool, counts)), _decomposed(total), measured, f"{len(formulas)}/{len(operators)}"])
    head = ("domain", "operators seen", "layers that decompose", "bricks measured", "operators with a formula")
    return table(head, rows)


def _classes(classes: Mapping[str, Any]) -> str:
    """Layers that decompose by class of files; names are left out of the reasons."""
    lines = []
    for name, rows in classes.items():
        for row in rows:
            rest = Counter[str]()
            for reason, count in (*row["reasons"].items(), *row["unreadable"].items()):
                rest[re.sub("^(input|output) … ", "", reason)] += count
            others = "; ".join(f"{count} x {reason}" for reason, count in rest.most_common())
            share = percent(row["decomposed"] / row["layers"])
            lines.append([name, f"`{row['graph']}`", row["files"], _decomposed(row), share, others])
    return table(("class", "graph", "files", "layers that decompose", "", "the others"), lines)


def _decomposed(counts: Mapping[str, int]) -> str:
    return _of(counts.get("decomposed"), counts.get("layers"))


def _of(some: int | None, among: int | None) -> str:
    """Format a count; empty without a trial."""
    return "" if not among else f"{some or 0}/{among}"


if __name__ == "__main__":
    main()
