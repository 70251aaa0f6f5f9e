"""Decompositions in the user's cache folder: a model is cut once per version, runtime and instruction set."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import msgspec
import onnx

from ...bricks.cutting.sequences import KeyedWindow
from ...bricks.decomposition import Decomposition
from ...bricks.graph.model_graph import ExecutedModel, ModelGraph
from ...bricks.layer import LayerSequence
from ...db.values import content_key
from ...errors import DlbricksError
from ...models import ModelSource
from ...models.cache import keep, kept
from ...models.source import fingerprint
from ...version import __version__
from ..backends.custom_ops import asked
from ..backends.registry import optimiser_of
from .cut import Cut

_KEPT, _FILE = "decompositions", "decomposition.msgpack.z"
"""Folder within the cache folder, and the file of an entry."""

_FORMAT = 2
"""Version of the entries."""

_DECIDING = ("bricks", "models", "generator/decomposition")
"""Folders of the package whose code decides a decomposition."""


_Kept = tuple[
    ModelGraph | None, ExecutedModel | None, tuple[LayerSequence, ...], tuple[tuple[int, ...], ...], int,
    tuple[KeyedWindow, ...],
]  # fmt: skip
"""``own`` (None: that of ``executed``), ``executed``, ``sequences``, ``units``, ``footprint_class`` and ``windows``."""


def keep_decomposition(model: Decomposition, cut: Cut) -> None:
    """Keep a decomposition, if its model can be identified and the cache folder can be written."""
    entry = _entry(model.source, cut)
    if entry is None:
        return
    executed, model_graph = model.executed, replace(model.own, identity=model.own.key)
    if executed is not None:
        executed = replace(executed, source=model_graph)
    content: _Kept = (
        None if executed is not None else model_graph, executed, model.sequences, model.units, model.footprint_class,
        model.windows,
    )  # fmt: skip
    try:
        written = msgspec.msgpack.encode(content, enc_hook=_written)
    except OverflowError:
        return  # a size beyond 64 bits: it is cut again
    keep(_KEPT, entry, lambda folder: _write(folder / _FILE, written))


def kept_decomposition(source: ModelSource, cut: Cut) -> Decomposition | None:
    """Return the kept decomposition of a model; None without one."""
    entry = _entry(source, cut)
    folder = kept(_KEPT, entry) if entry is not None else None
    if folder is None:
        return None
    try:
        model_graph, executed, sequences, units, footprint_class, windows = _decoder().decode(
            zlib.decompress((folder / _FILE).read_bytes())
        )
    except (OSError, ValueError, zlib.error):
        return None  # damaged: it is cut again
    model_graph = model_graph if executed is None else executed.source
    if model_graph is None:
        return None
    graph = executed.graph if executed is not None and cut.graph == "runtime" else model_graph
    return Decomposition(source, model_graph, graph, sequences, units, footprint_class, windows, executed)


def _entry(source: ModelSource, cut: Cut) -> str | None:
    """Return the name of a decomposition in the cache folder; None if model or runtime are unknown."""
    model = fingerprint(source)
    if model is None:
        return None
    width = [cut.granularity, cut.overlap, cut.connected, cut.graph]
    try:
        by_threads = cut.graph != "source" and optimiser_of(cut.runtime.backend).by_threads
        runtime = None if cut.graph == "source" else [_salt(cut), cut.threads if by_threads else 0]
    except DlbricksError:
        return None
    return content_key([model, width, runtime, asked(), [_FORMAT, __version__, onnx.__version__, _newest()]])


@lru_cache(maxsize=8)
def _salt(cut: Cut) -> str:
    return cut.salt()


@cache
def _newest() -> int:
    """Return when the deciding code was last changed, for a checkout that is being edited."""
    root = Path(__file__).parents[2]
    return max(path.stat().st_mtime_ns for folder in _DECIDING for path in (root / folder).rglob("*.py"))


@cache
def _decoder() -> msgspec.msgpack.Decoder[_Kept]:
    return msgspec.msgpack.Decoder(_Kept, dec_hook=_read)


def _written(value: object) -> bytes:
    if isinstance(value, onnx.NodeProto):
        return bytes(value.SerializeToString())
    raise NotImplementedError(type(value))


def _read(kind: type, value: bytes) -> onnx.NodeProto:
    if kind is onnx.NodeProto:
        node: onnx.NodeProto = onnx.NodeProto.FromString(value)
        return node
    raise NotImplementedError(kind)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(zlib.compress(content, level=1))
