"""A model as ONNX with a note at each node, which viewers such as Netron show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import onnx

from ...errors import UsageError
from ...models import ModelSource
from ...models.reader import read_full
from .export import write_file
from .network import export_network

__all__ = ["annotate_model"]


def annotate_model(
    source: ModelSource, notes: Mapping[str, Mapping[str, str]], path: str | os.PathLike[str], *, seed: int = 0
) -> int:
    """Write a model with notes in its nodes' metadata (``metadata_props``) and documentation (``doc_string``).

    A file is written as it is but for the notes, weights and all; a model of the zoo with synthetic weights.

    Args:
        source: The model.
        notes: By the name of a node's first output: names and values.
        path: File to write; it appears complete or not at all.
        seed: Of synthetic weights.

    Returns:
        How many nodes have a note.

    Raises:
        ModelError: The model cannot be read.
        UsageError: Its weights lie in files beside it, and ``path`` is in another folder; or ``path`` is the model.
        BackendError: It is larger than a protobuf can be.
        OSError: The file cannot be written.
    """
    path = Path(path)
    if source.path is None or source.problem is not None:
        model = onnx.load_from_string(export_network(source.skeleton().model, seed))
    else:
        if path.exists() and path.samefile(source.path):
            raise UsageError(f"{path} is the model itself, which stays as it is", remedy="name another file")
        model, _ = read_full(source.path)
        folder = source.path.parent
        beside = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer)
        if beside and path.parent.resolve() != folder.resolve():
            raise UsageError(
                f"the weights of {source.name} lie in files beside it", remedy=f"write to {folder / path.name}"
            )
    count = 0
    for node in model.graph.node:
        found = notes.get(next(iter(node.output), ""))
        if found is None:
            continue
        count += 1
        for name, value in found.items():
            node.metadata_props.add(key=f"dlbricks.{name}", value=value)
        note = "; ".join(f"{name} {value}" for name, value in found.items())
        node.doc_string = f"{note}\n{node.doc_string}" if node.doc_string else note
    write_file(path, model.SerializeToString())
    return count
