"""Improve the models of ``benchmarks/traps``, and count the wrong files: ``docs/results/wrong-files.json``.

    python benchmarks/wrong_files.py [ROUND ...] [--timed] [--only NAME] [--out FOLDER]

Each trap has legal inputs on which a tempting rewrite is wrong. Without ``--timed`` every proven rewrite is written,
whether it saves time or not; with it, the command's own decision counts. The prover is also asked for the tempting
rewrite itself, which it must refuse. A file is wrong if an output differs from the original's on one of these inputs by
0.1 % of its largest value or more. ``tables.py`` counts them. Rounds: ``guards`` ``texts`` ``products``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from dlbricks.analyzer.rewriting.checked_model import CheckedModel, read_subject
from dlbricks.analyzer.rewriting.checking import Checker
from dlbricks.analyzer.rewriting.engines import ENGINES
from dlbricks.analyzer.rewriting.prover import Prover
from dlbricks.analyzer.rewriting.recording import Values
from dlbricks.analyzer.rewriting.rewrite import Rewrite, RewriteGraph
from dlbricks.analyzer.rewriting.search import Search, SearchRequest, step_path
from dlbricks.errors import DlbricksError
from dlbricks.models.subgraphs import rename
from dlbricks.models.user_inputs import UserInputs
from figures import parser, read, write
from onnx import numpy_helper
from traps.trap import DIFFERENT, Trap, apart, outputs

ROUNDS = {
    "guards": ("guards_vision", "guards_signals"),
    "texts": ("text_and_ranking", "weights_and_types"),
    "products": ("against_optimisers", "from_products"),
}
"""Modules of the traps by blind round, in the order of writing."""


def main() -> None:
    """Improve the traps of some rounds."""
    arguments = parser(__doc__)
    arguments.add_argument("rounds", nargs="*", choices=[*ROUNDS, []], help="all without one")
    arguments.add_argument("--timed", action="store_true", help="keep what saves time only")
    arguments.add_argument("--only", metavar="NAME", help="one trap")
    arguments.add_argument("--budget", type=float, default=20.0, metavar="SECONDS")
    options = arguments.parse_args()
    file = options.out / ("wrong-files-timed.json" if options.timed else "wrong-files.json")
    rows = {row["name"]: row for row in read(file, [])}
    for round_, name, make in traps(options.rounds or list(ROUNDS)):
        if options.only in {None, name}:
            row = {"name": name, "round": round_, **tried(make(), options.budget, everything=not options.timed)}
            rows[name] = row
            told = str({key: value for key, value in row.items() if value not in ("", [], None)})
            if options.only is None:
                write(file, [rows[name] for name in sorted(rows)], told)
            else:
                print(told, flush=True)


def traps(rounds: list[str]) -> Iterator[tuple[str, str, Callable[[], Trap]]]:
    """Yield the round, the name and the maker of each trap."""
    for round_ in rounds:
        for name in ROUNDS[round_]:
            module = import_module(f"traps.{name}")
            for own, value in vars(module).items():
                if callable(value) and getattr(value, "__module__", "") == module.__name__ and own[0] != "_":
                    yield round_, own, value


def sizes(made: Trap) -> Iterator[tuple[str, int]]:
    """Yield the dynamic dimensions with their sizes in the first ordinary input."""
    for value in made.model.graph.input:
        dims, shape = value.type.tensor_type.shape.dim, made.ordinary[0][value.name].shape
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if not dim.HasField("dim_value"):
                yield dim.dim_param or f"{value.name}[{axis}]", size


def proof_of_wrong(made: Trap, subject: CheckedModel) -> str:
    """Return the reason for which the prover accepts the tempting rewrite; empty if it refuses, as it must."""
    graph, checker = RewriteGraph(subject.model), Checker(subject, threads=1, noise_ok=False)
    values = Values(graph, checker.usable, checker.others)
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.wrong.graph.initializer}
    inner = {name for node in made.wrong.graph.node for name in node.output if name} - set(graph.wanted)
    names = {name: graph.fresh("wrong") for name in (*inner, *tensors)}
    nodes = []
    for node in made.wrong.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        rename(copy, names)
        nodes.append(copy)
    constants = {names[name]: array for name, array in tensors.items()}
    return Prover(values, {}).prove(Rewrite("traps: wrong", graph.wanted, tuple(nodes), constants)).reason


def tried(made: Trap, budget_s: float, *, everything: bool) -> dict[str, Any]:
    """Improve one trap and compare the file with the original."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.onnx"
        onnx.save(made.model, path)
        data = Path(name) / "own.npz"
        np.savez(data, **made.ordinary[0])
        dims = dict(sizes(made))
        request = SearchRequest(str(path), name, dims=tuple(dims.items()), budget_s=budget_s, everything=everything)
        try:
            subject = read_subject(path, None, dims, UserInputs((data,)))
            found = Search(subject, request).run(ENGINES)
        except DlbricksError as error:
            return {"steps": [], "wrong": False, "difference": 0.0, "error": str(error), "rejected": []}
        changed = onnx.load(step_path(Path(name), len(found.steps)))
    reason = proof_of_wrong(made, subject)
    pairs = zip(outputs(made.model, made.rare), outputs(changed, made.rare), strict=True)
    gap = max(apart(first, second) for first, second in pairs) if found.steps else 0.0
    return {
        "steps": [f"{step.kind} x {step.places} ({step.reason})" for step in found.steps],
        "wrong": gap >= DIFFERENT,
        "proven_wrongly": reason,
        "difference": gap,
        "rejected": [f"{kind}: {reason}" for kind, reason in found.rejected],
        "untried": list(found.untried),
        "wall_s": time.monotonic() - begun,
    }


if __name__ == "__main__":
    main()
