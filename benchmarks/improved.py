"""Measure the savings of `improve` on real files: ``docs/results/improved.json``.

    python benchmarks/improved.py MODEL... [--dim NAME=N ...] [--budget 30] [--out FOLDER]
    python benchmarks/improved.py --list FILES.tsv [--budget 30] [--out FOLDER]

Each model is improved once on one thread; rows of other models stay. A list has a line for each file: path, dimensions
as ``NAME=N,NAME=N``, the package and version that it is from. Models of the built-in zoo have random weights, and are
counted apart (``tables.py``).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from dlbricks.analyzer.findings.improve import improve
from dlbricks.errors import DlbricksError
from dlbricks.generator.network.inputs import make_inputs
from dlbricks.models import ModelSource, find_models
from figures import parser, percent, read, write
from traps.trap import apart

Row = dict[str, Any]


def main() -> None:
    """Improve the models."""
    arguments = parser(__doc__)
    add_files(arguments)
    arguments.add_argument("--budget", type=float, default=30.0, metavar="SECONDS")
    options = arguments.parse_args()
    file = options.out / "improved.json"
    rows = {row["name"]: row for row in read(file, [])}
    for name, dims, package in files(options):
        row = {**model(name, dims, options.budget), "package": package}
        rows[row["name"]] = row
        write(file, [rows[name] for name in sorted(rows)], text(row))


def add_files(arguments: argparse.ArgumentParser) -> None:
    """Add the arguments that name files."""
    arguments.add_argument("models", nargs="*", help="files, or names of the zoo")
    arguments.add_argument("--list", type=Path, metavar="FILES.tsv", help="files with dimensions, package and version")
    arguments.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="value of a dynamic dimension")


def files(options: argparse.Namespace) -> list[tuple[str, dict[str, int], str]]:
    """Return paths or names of the zoo, each with its dimensions and its package."""
    lines = [[name, ",".join(options.dim), "zoo"] for name in options.models]
    if options.list:
        lines += [line.split("\t")[:3] for line in options.list.read_text().splitlines() if line.strip()]
    return [
        (path, {name: int(size) for name, size in (pair.rsplit("=", 1) for pair in sizes.split(",") if pair)}, package)
        for path, sizes, package in lines
    ]


def model(name: str, dims: dict[str, int], budget_s: float) -> Row:
    """Improve one model, and compare the file with the original on other inputs than the tool's."""
    (source,) = find_models([name], dims=dims) if dims else find_models([name])
    with tempfile.TemporaryDirectory() as folder:
        better = Path(folder) / "better.onnx"
        try:
            improved = improve(source, better, budget_s=budget_s)
            (row,) = improved.records().results
        except DlbricksError as error:
            return {"name": source.name, "error": str(error)}
        figures = {key: value for key, value in row.items() if key not in {"path", "command"}}
        return {**figures, "difference": difference(source, better) if improved.path else None}


def difference(source: ModelSource, better: Path) -> float | None:
    """Return the largest difference of outputs on inputs that the search has not seen, relative to the largest."""
    if source.path is None:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    old, new = (
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for path in (source.path, better)
    )
    names, skeleton = {value.name for value in old.get_inputs()}, source.skeleton().model
    types = []
    for value in (value for value in skeleton.graph.input if value.name in names):
        tensor = value.type.tensor_type
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        types.append((value.name, kind, tuple(dim.dim_value for dim in tensor.shape.dim)))
    feeds = make_inputs(skeleton, types, seed=77)[0]
    return apart(old.run(None, feeds), new.run(None, feeds))


def text(row: Row) -> str:
    """Return a line about one model."""
    if row.get("error"):
        return f"{row['name']}: {row['error'].splitlines()[0][:100]}"
    changes = ", ".join(f"{one['kind']} x {one['places']} ({percent(one['saving'])})" for one in row["changes"])
    seen = f"{percent(row['saving'])} of {row['before_ms']:.3f} ms" if row["changes"] else "nothing proven"
    return f"{row['name']}: {seen}; {changes}; {row['wall_s']:.0f} s, {row['proving_s']:.1f} s of proofs"


if __name__ == "__main__":
    main()
