"""Measure the savings of `improve` on real files: ``docs/results/improved.json``.

    python benchmarks/improved.py MODEL... [--dim NAME=N ...] [--budget 30] [--out FOLDER]
    python benchmarks/improved.py --list FILES.tsv [--budget 30] [--out FOLDER]

Each model is improved once on one thread; rows of other models stay. A list has a line for each file: path, dimensions
as ``NAME=N,NAME=N``, the package and version that it is from. Models of the built-in zoo have random weights, and are
counted apart.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from dlbricks.analyzer.findings.improve import improve
from dlbricks.errors import DlbricksError
from dlbricks.generator.network.inputs import make_inputs
from dlbricks.models import ModelSource, find_models

Row = dict[str, Any]
ZOO = "zoo"
USEFUL = 0.05
"""Share of a useful saving."""


def main() -> None:
    """Improve the models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="files, or names of the zoo")
    parser.add_argument("--list", type=Path, metavar="FILES.tsv", help="files with dimensions, package and version")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="value of a dynamic dimension")
    parser.add_argument("--budget", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), metavar="FOLDER")
    options = parser.parse_args()
    asked = [(name, ",".join(options.dim), ZOO) for name in options.models]
    if options.list:
        asked += [tuple(line.split("\t"))[:3] for line in options.list.read_text().splitlines() if line.strip()]
    file = options.out / "improved.json"
    done = {row["name"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    for name, dims, package in asked:
        row = {**model(name, sizes(dims), options.budget), "package": package}
        done[row["name"]] = row
        file.write_text(json.dumps([done[name] for name in sorted(done)], indent=1) + "\n")
        print(text(row), flush=True)
    print(summary([*done.values()]))


def sizes(dims: str) -> dict[str, int]:
    """Return dimensions by name."""
    return {name: int(size) for name, size in (pair.rsplit("=", 1) for pair in dims.split(",") if pair)}


def model(name: str, dims: dict[str, int], budget_s: float) -> Row:
    """Improve one model, and compare the file with the original on other inputs than the tool's."""
    (source,) = find_models([name], dims=dims) if dims else find_models([name])
    with tempfile.TemporaryDirectory() as folder:
        better = Path(folder) / "better.onnx"
        try:
            found = improve(source, better, budget_s=budget_s)
            (row,) = found.records().results
        except DlbricksError as error:
            return {"name": source.name, "error": str(error)}
        own = {key: value for key, value in row.items() if key not in {"path", "command"}}
        return {**own, "difference": difference(source, better) if found.path else None}


def difference(source: ModelSource, better: Path) -> float | None:
    """Return the largest difference of outputs on inputs that the search has not seen, relative to the largest."""
    if source.path is None:
        return None
    skeleton = source.skeleton()
    given = [value for value in skeleton.model.graph.input if value.name in inputs_of(source.path)]
    types = [
        (value.name, onnx_type(value), tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim))
        for value in given
    ]
    feeds = make_inputs(skeleton.model, types, seed=77)[0]
    old, new = (session(path).run(None, feeds) for path in (source.path, better))
    gaps = [
        float(np.abs(np.asarray(mine, np.float64) - theirs).max() / (np.abs(theirs).max() + 1e-12))
        for mine, theirs in zip(new, old, strict=True)
        if np.asarray(theirs).dtype.kind in "fiu" and np.asarray(theirs).size
    ]
    return max(gaps, default=0.0)


def onnx_type(value: Any) -> str:
    """Return the element type of an input by ONNX's name."""
    import onnx

    return str(onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)).lower()


def session(path: Path) -> Any:
    """Load a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs_of(path: Path) -> set[str]:
    """Return the names of a model's inputs."""
    return {value.name for value in session(path).get_inputs()}


def text(row: Row) -> str:
    """Return a line about one model."""
    if row.get("error"):
        return f"{row['name']}: {row['error'].splitlines()[0][:100]}"
    changes = ", ".join(f"{one['kind']} x {one['places']} ({percent(one['saving'])})" for one in row["changes"])
    seen = f"{percent(row['saving'])} of {row['before_ms']:.3f} ms" if row["changes"] else "nothing proven"
    return f"{row['name']}: {seen}; {changes}; {row['wall_s']:.0f} s, {row['proving_s']:.1f} s of proofs"


def summary(rows: list[Row]) -> str:
    """Return how many files are faster, trained ones and the zoo's."""
    lines = []
    for kind, own in (
        ("trained", [r for r in rows if r["package"] != ZOO]),
        ("zoo", [r for r in rows if r["package"] == ZOO]),
    ):
        ran = [row for row in own if not row.get("error")]
        useful = [row for row in ran if row["changes"] and row["saving"] >= USEFUL]
        files = [row for row in useful if any(one["reason"] != "setting" for one in row["changes"])]
        seconds = sorted(row["wall_s"] for row in ran) or [0.0]
        lines.append(
            f"{kind}: {len(useful)} of {len(ran)} faster by 5 % or more, {len(files)} of them by a file; "
            f"{seconds[len(seconds) // 2]:.0f} s at the median, {seconds[-1]:.0f} s at most; "
            f"{len(own) - len(ran)} refused"
        )
    return "\n".join(lines)


def percent(share: float | None) -> str:
    """Format a share in per cent."""
    return "" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    main()
