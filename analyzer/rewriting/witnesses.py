"""Other optimisers as witnesses: their result for the whole model is a rewrite like any other, checked and timed.

A witness runs in a separate process with a time limit: some of them do not end.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import onnx
from onnx import numpy_helper

from ...errors import DlbricksError
from ...models.normal import normalise
from ...models.subgraphs import rename
from .recording import Values
from .rewrite import Rewrite

_LEAST_S, _MOST_S = 1.0, 15.0


@dataclass(frozen=True, slots=True)
class Optimiser:
    """An optimiser of somebody else.

    Attributes:
        package: The package that must be installed.
        code: Python that reads the file ``source`` and writes the file ``target``.
    """

    package: str
    code: str


WITNESSES: Mapping[str, Optimiser] = {
    "onnxslim": Optimiser("onnxslim", "import onnxslim; onnx.save(onnxslim.slim(onnx.load(source)), target)"),
    "onnxscript": Optimiser(
        "onnxscript",
        "import onnxscript.optimizer as o, onnxscript.rewriter as r; "
        "onnx.save(r.rewrite(o.optimize(onnx.load(source))), target)",
    ),
    "onnxruntime.transformers": Optimiser(
        "onnxruntime.transformers",
        "from onnxruntime.transformers import optimizer as o; "
        "o.optimize_model(source, model_type='bert', num_heads=0, hidden_size=0, opt_level=0, use_gpu=False)"
        ".save_model_to_file(target)",
    ),
}
"""By name."""


def installed(name: str) -> bool:
    """Return True if a witness is available here."""
    try:
        return find_spec(WITNESSES[name].package) is not None
    except ModuleNotFoundError:
        return False


def witnesses(values: Values, deadline: float) -> list[Rewrite]:
    """Return the rewrites of all installed optimisers."""
    found = list[Rewrite]()
    with tempfile.TemporaryDirectory(prefix="dlbricks-witness-") as name:
        source = Path(name) / "model.onnx"
        source.write_bytes(values.graph.build().SerializeToString())
        for witness in filter(installed, WITNESSES):
            left_s = min(deadline - time.perf_counter(), _MOST_S)
            if left_s < _LEAST_S:
                break
            target = Path(name) / f"{witness}.onnx"
            if not _asked(witness, source, target, left_s):
                continue
            with contextlib.suppress(DlbricksError):  # a witness may write a broken model, which is no proposal
                if rewrite := _rewrite(values, witness, target):
                    found.append(rewrite)
    return found


def _asked(name: str, source: Path, target: Path, limit_s: float) -> bool:
    """Run a witness in a separate process; return True if it wrote a model."""
    code = f"import onnx, sys; source, target = sys.argv[1:]; {WITNESSES[name].code}"
    command = [sys.executable, "-c", code, str(source), str(target)]
    try:
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=limit_s, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return False
    return target.exists()


def _rewrite(values: Values, name: str, path: Path) -> Rewrite | None:
    """Return the whole model of a witness as a rewrite of the outputs."""
    graph = values.graph
    model = normalise(onnx.load(path), keep_weights=True).model
    same = {node.name: node for node in graph.nodes}
    made = {node.name for node in model.graph.node}
    gone = [index for index, node in enumerate(graph.nodes) if node.name not in made]
    if len(gone) == 0 and len(model.graph.node) >= len(same):
        return None
    outputs, given = set(graph.wanted), graph.given
    names = {
        value: graph.fresh("witness")
        for node in model.graph.node
        for value in node.output
        if value and value not in outputs
    }
    names |= {tensor.name: graph.fresh("witness") for tensor in model.graph.initializer if tensor.name not in given}
    constants = {
        names[tensor.name]: numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name in names
    }
    nodes = list[onnx.NodeProto]()
    for node in model.graph.node:
        rename(node, names)
        node.output[:] = [names.get(value, value) for value in node.output]
        nodes.append(node)
    if {value for node in nodes for value in node.output if value} & outputs != outputs:
        return None
    saving_ns = max(values.cost_of(gone) / 2, 0.01 * values.total_ns)
    note = f"pip install {WITNESSES[name].package.split('.')[0]}"
    return Rewrite(f"witnesses: {name}", graph.wanted, tuple(nodes), constants, graph.names(gone), saving_ns, note)
