"""Answers of ``generate``, ``export`` and ``backends plans``, and lines about dimensions and control flow."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ....bricks.suite.brick import Carried, signature_of
from ....bricks.suite.suite import Suite
from ....errors import DlbricksError, UsageError
from ....generator.decomposition.cut import Cut
from ....generator.decomposition.decomposer import Decomposer
from ....generator.network import export
from ....generator.planning.library_plans import PlanReport
from ....models import ModelSource
from ....tabular import Field
from ..tables import Answer, control_lines, dimension_lines, invented_lines
from ..units import counted, percent, size
from .bricks import find_key

if TYPE_CHECKING:
    from ....generator.decomposition.generate import GenerateReport


# What the exporting commands answer.


def export_brick(beginning: str, suite: Path, out: Path | None, *, seed: int, force: bool = False) -> Answer:
    """Write one brick.

    Args:
        beginning: Beginning of its key.
        suite: Folder of its suite.
        out: File to write; None: ``<key>.onnx`` in the working folder.
        seed: Seed of the weights.
        force: Replace an existing file.

    Raises:
        UsageError: The key is ambiguous, or the file exists.
        SuiteError: The suite or the brick is missing or invalid.
        OSError: The file cannot be written.
    """
    opened = Suite.open(suite)
    key = find_key(beginning, opened.keys, f"suite {suite}")
    path = out or Path(f"{key}.onnx")
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", remedy="name a new file, or give --force")
    written = export.export_brick(opened.brick(key), path, seed=seed)
    row = {"key": key, "file": str(path), "bytes": written, "seed": seed}
    return Answer([row], summary=[f"{path}: {size(written)}"])


def export_models(
    sources: Sequence[ModelSource],
    folder: Path,
    *,
    force: bool = False,
    opened: bool = False,
    attention: bool = False,
    weights: str | None = None,
) -> tuple[Answer, bool]:
    """Write models of the zoo into a folder.

    Args:
        sources: Models of the zoo.
        folder: The folder; made if it is missing.
        force: Replace existing files with other content, for example with trained weights.
        opened: Leave lengths of decoders with a cache open.
        attention: Make attention one operator.
        weights: Type of the stored weights of products; None: unchanged.

    Returns:
        One row per model, and true if all were written.

    Raises:
        UsageError: A model is a file already, or dimensions are both given and left open.
        OSError: A file cannot be written.
    """
    for source in sources:
        if source.path is not None:
            raise UsageError(f"{source.name} is not a model of the zoo", remedy="'dlbricks models list' names them")
    if opened and any(source.dims for source in sources):
        raise UsageError("--dim sets a dimension that --open leaves open", remedy="leave one of them out")
    rows: list[dict[str, object]] = []
    for source in sources:
        path = folder / f"{source.name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            written = export.export_model(
                source, path, force=force, opened=opened, attention=attention, weights=weights
            )
        except DlbricksError as error:
            rows.append({"name": source.name, "file": None, "bytes": None, "error": str(error)})
        else:
            rows.append({"name": source.name, "file": str(path), "bytes": written, "error": None})
    answer = Answer(
        rows,
        columns=[Field("name", "model"), Field("file"), Field("bytes", "size", "bytes")],
        summary=[f"{row['name']}: {row['error']}" for row in rows if row["error"]],
    )
    return answer, all(row["error"] is None for row in rows)


# The answer of ``backends plans``: what a vendor's library offers for each brick.


def plans_answer(report: PlanReport) -> Answer:
    """One result per brick, precision and layout; the table shows a row for all bricks of the same operators."""
    bricks = {row.key for row in report.rows}
    offered = {row.key for row in report.rows if row.plans}
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    plans = sum(len(row.plans) for row in report.rows)
    failed = sum(row.failed for row in report.rows)
    share = f"{counted(plans, 'plan')} for {len(offered)} of {counted(len(bricks), 'brick')}"
    summary = [f"{report.gpu.name}, {versions}: {share}; nothing was executed"]
    if failed:
        summary.append(f"the library broke on {counted(failed, 'row')}: --json has the reasons")
    return Answer.of(
        report.records(),
        table=report.by_operators,
        columns=[
            Field("operators", "operators", "words"),
            *map(Field, ("dtype", "layout", "bricks")),
            Field("offered", "with plans"),
            Field("plans", "plans", _whole),
            Field("engines", "engines", _whole),
            Field("tensor_cores", "first: Tensor Cores"),
            Field("reason", "why none"),
        ],
        summary=summary,
    )


def _whole(value: object) -> str:
    return "" if value is None else f"{value:g}"


_TEXTS = 5
"""Texts of a suite that are listed."""


def generate_answer(report: GenerateReport) -> Answer:
    """Return the answer of ``generate``: one row per model, the suite as totals."""
    suite = None if report.suite is None else str(report.suite.path)
    unique_share = report.unique / report.sequences if report.sequences else 0.0
    decoys = f", and {report.decoys} decoys" if report.decoys else ""
    counts = f"{report.unique} unique of {report.sequences} sequences ({percent(unique_share)})"
    summary = [f"{suite or 'no suite'}: {counts} at G={report.granularity}{decoys}"]
    for row in report.rows:
        summary += [f"{row.name}: {row.error}"] if row.error else []
        summary += [f"{row.name}: cut along its own graph, not along fusions: {row.unfused}"] if row.unfused else []
        after = Counter(layer.cause for layer in row.skipped)
        summary += [
            f"{row.name}: {layer.layer} skipped: {layer.reason}"
            + (f"; and {counted(after[layer.layer], 'layer')} after it" if after[layer.layer] else "")
            for layer in row.skipped
            if not layer.cause
        ]
        summary += [f"{row.name}: {parts.layer} in bricks apart: {parts.reason}" for parts in row.apart]
        if row.uncounted:
            operators = ", ".join(f"{count} {name}" for name, count in row.uncounted.items())
            summary.append(f"{row.name}: work unknown for {operators}")
    summary += dimension_lines((row.name, row.bound) for row in report.rows)
    summary += invented_lines((row.name, row.invented) for row in report.rows)
    summary += control_lines((row.name, row.control) for row in report.rows)
    summary += _carried(report.carried)
    if report.suite is not None:
        summary.append(f"next: {shlex.join(['dlbricks', 'run', str(report.suite.path)])}")
    return Answer.of(
        report.records(),
        columns=[
            Field("name", "model"),
            *map(Field, ("layers", "folded", "sequences", "unique")),
            Field("macs", "MACs", "count"),
            Field("weight_bytes", "weights", "bytes"),
        ],
        summary=summary,
    )


def _carried(carried: Carried) -> list[str]:
    """Return a line on the content of the models that leaves with the suite; nothing without any."""
    parts = [counted(carried.values, "value") + " of small constants and lists"] if carried.values else []
    if carried.texts:
        texts = ", ".join(map(repr, carried.texts[:_TEXTS]))
        rest = f", and {len(carried.texts) - _TEXTS} more" if len(carried.texts) > _TEXTS else ""
        parts.append(f"{counted(len(carried.texts), 'text')} ({texts}{rest})")
    return [f"bricks carry {' and '.join(parts)} of the models"] if parts else []


def names_of(suite: Path | None, models: Sequence[ModelSource]) -> dict[str, dict[str, str | int | None]]:
    """Return more columns by key, for private tables.

    Args:
        suite: Describe its bricks by operators, shapes, strides and work; None: no brick.
        models: Describe these models by name, batch, dimensions and bricks (at the suite's granularity).

    Raises:
        SuiteError: The suite or a brick of it cannot be read.
        ModelError: A model cannot be read, or a dimension has no value.
    """
    opened = None if suite is None else Suite.open(suite)
    columns_by_key: dict[str, dict[str, str | int | None]] = {}
    for key in opened.keys if opened is not None else ():
        brick = opened.brick(key) if opened is not None else None
        if brick is not None:
            macs = None if brick.cost is None else brick.cost.macs
            columns_by_key[key] = {"operators": "+".join(brick.operators), **asdict(signature_of(brick)), "macs": macs}
    held: dict[str, list[str]] = {}
    with Decomposer(Cut(1 if opened is None else opened.granularity)) as decomposer:
        for model in map(decomposer, models):
            bound = model.own.bound
            values = " ".join(f"{name}={size}" for name, size in bound.items())
            columns_by_key[model.own.key] = {"model": model.name, "batch": bound.get("batch"), "dimensions": values}
            for key, count in Counter(part.key for part in model.sequences).items():
                held.setdefault(key, []).append(f"{model.name} x {count}")
    for key, places in held.items():
        columns_by_key.setdefault(key, {})["model"] = "; ".join(places)
    return columns_by_key
