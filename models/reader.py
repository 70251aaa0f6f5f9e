"""Reading the structure of a model file: everything except the values of large constants."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Self

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from ..errors import BrokenModel, ModelNotFound, UnsupportedModel
from .external import LFS_HEAD, LFS_POINTER, LFS_REMEDY, ExternalFolder, check_tensor, count_elements
from .skeleton import KEPT_ELEMENTS
from .subgraphs import is_constant
from .wire import compact

EXTERNAL_MARK = b"location"
"""Key in the entry of every external tensor; files without it need no second look."""

_DIRECT_BYTES = 4 << 20
"""Files up to this size are parsed directly, which is faster than the walk and needs little memory."""


def read_structure(path: Path) -> ModelProto:
    """Read a model file without the values of its large constants.

    For files above 4 MiB payloads are skipped; smaller files may keep theirs. External tensors of up to
    ``KEPT_ELEMENTS`` elements are read and embedded; larger ones are checked and keep their reference. Memory and time
    depend only on the structure.

    Raises:
        ModelNotFound: The file does not exist.
        BrokenModel: The file is unreadable, not ONNX, empty, truncated, or without a graph.
        UnsupportedModel: The opset or the IR version is newer than the installed onnx.
        UnsafePath: External data is outside the model's folder.
        MissingExternalData: External data is missing or too short.
    """
    with _OpenFile(path) as file:
        whole = file.size <= _DIRECT_BYTES
        data = file.read(0, file.size) if whole else compact(file.read, file.size)
    model = _parse(data)
    if whole:
        _check_filled(model)
    if _may_be_external(data):
        _resolve_external(model, ExternalFolder(path.parent))
    return model


def read_full(path: Path) -> tuple[ModelProto, ExternalFolder]:
    """Read a model file with its weights; large external tensors keep their reference.

    Returns:
        The model, and the folder with its external files.

    Raises:
        DlbricksError: As ``read_structure``.
    """
    with _OpenFile(path) as file:
        data = file.read(0, file.size)
    model = _parse(data)
    folder = ExternalFolder(path.parent)
    if _may_be_external(data):
        _resolve_external(model, folder)
    return model, folder


def external_locations(path: Path) -> tuple[str, ...]:
    """Return the external files of a model, sorted, relative to its folder.

    Raises:
        DlbricksError: As ``read_structure``.
    """
    with _OpenFile(path) as file:
        data = file.read(0, file.size) if file.size <= _DIRECT_BYTES else compact(file.read, file.size)
    folder = ExternalFolder(path.parent)
    for tensor, _ in _tensors(_parse(data)):
        if tensor.data_location == TensorProto.EXTERNAL:
            folder.locate(tensor)
    return tuple(sorted(folder.locations))


_HEAD_BYTES = 512
_KINDS = (
    (re.compile(re.escape(LFS_HEAD)), LFS_POINTER, LFS_REMEDY),
    (re.compile(rb"(\xef\xbb\xbf)?\s*<(!|\?xml|html|head|body)", re.I), "a web page", "download the file itself"),
    (re.compile(rb"(\xef\xbb\xbf)?\s*[{\[]\s*[\"{\[}\]]"), "a text in JSON", "download the file itself"),
    (re.compile(rb".\x00\x00\x00ORTM", re.DOTALL), "a model in ORT format", "give the ONNX file that it was made from"),
    (re.compile(rb".\x00\x00\x00TFL3", re.DOTALL), "a TensorFlow Lite model", "convert it with tf2onnx"),
    (re.compile(rb"PK\x03\x04|\x1f\x8b"), "an archive", "unpack it"),
)
"""Beginning of a file that is often taken for a model, what it is, and the remedy."""


def _other_kind(head: bytes) -> tuple[str, str]:
    """Return what a file is that is not ONNX, and the remedy; empty if it may be ONNX."""
    return next(((f"not ONNX, but {what}", remedy) for kind, what, remedy in _KINDS if kind.match(head)), ("", ""))


class _OpenFile:
    """A regular file, open for reading at any offset."""

    def __init__(self, path: Path) -> None:
        try:
            # Without O_NONBLOCK a named pipe would block forever.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise ModelNotFound(f"no such file: {path}") from error
        except (OSError, ValueError) as error:
            raise BrokenModel(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        problem = ""
        if not stat.S_ISREG(status.st_mode):
            problem = "is a folder" if stat.S_ISDIR(status.st_mode) else "is not a regular file"
        elif self.size == 0:
            problem = "the file is empty"
        remedy = ""
        if not problem:
            problem, remedy = _other_kind(self.read(0, _HEAD_BYTES))
        if problem:
            os.close(self._descriptor)
            raise BrokenModel(problem, remedy=remedy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end of the file."""
        try:
            data = os.pread(self._descriptor, size, offset)
            if len(data) == size or not data:
                return data
            chunks = [data]  # Linux reads at most 2 GiB at once
            while data and (missing := size - sum(map(len, chunks))):
                data = os.pread(self._descriptor, missing, offset + size - missing)
                chunks.append(data)
        except OSError as error:
            raise BrokenModel(f"cannot be read: {error.strerror}") from error
        return b"".join(chunks)


def _parse(data: bytes) -> ModelProto:
    try:
        model: ModelProto = ModelProto.FromString(data)
    except DecodeError as error:
        raise BrokenModel("not ONNX, or truncated") from error
    if not model.HasField("graph"):
        raise BrokenModel("not ONNX: there is no graph in it")
    if not model.graph.node:
        raise UnsupportedModel("the graph has no operators")
    _check_versions(model)
    return model


def _check_versions(model: ModelProto) -> None:
    remedy = "a newer onnx package may read it"
    if model.ir_version < 1:
        raise BrokenModel("the model states no IR version")
    if model.ir_version > onnx.IR_VERSION:
        raise UnsupportedModel(
            f"IR version {model.ir_version} is newer than this onnx knows ({onnx.IR_VERSION})", remedy=remedy
        )
    if not model.opset_import:
        if model.ir_version >= 3:
            raise BrokenModel("the model states no opset")
        model.opset_import.add().version = 1  # implied before IR 3
    newest = _newest_opsets()
    versions: dict[str, int] = {}
    for opset in model.opset_import:
        domain, version = opset.domain, opset.version
        label = domain or "ai.onnx"
        if version < 1:
            raise UnsupportedModel(f"opset {version} of domain '{label}' does not exist")
        if version > newest.get(label, version):
            raise UnsupportedModel(
                f"opset {version} of domain '{label}' is newer than this onnx knows ({newest[label]})", remedy=remedy
            )
        if versions.setdefault(label, version) != version:
            raise BrokenModel(f"domain '{label}' is imported at opsets {versions[label]} and {version}")


@cache
def _newest_opsets() -> dict[str, int]:
    opsets: dict[str, int] = {}
    for row in onnx.helper.VERSION_TABLE:
        for domain, version in zip(("ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training"), row[2:], strict=False):
            opsets[domain] = max(version, opsets.get(domain, 0))
    opsets["ai.onnx"] = onnx.defs.onnx_opset_version()
    return opsets


def _may_be_external(data: bytes) -> bool:
    return EXTERNAL_MARK in data


def _resolve_external(model: ModelProto, folder: ExternalFolder) -> None:
    """Check every external tensor, and embed the values of the small ones."""
    for tensor, structural in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            external_data = folder.locate(tensor)
            if structural or count_elements(tensor.dims) <= KEPT_ELEMENTS:
                tensor.raw_data = external_data.read()
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")


def _check_filled(model: ModelProto) -> None:
    """Check that large constants are there, as ``compact`` does for larger files."""
    for tensor, _ in _tensors(model):
        if count_elements(tensor.dims) > KEPT_ELEMENTS:
            check_tensor(tensor)


def _tensors(model: ModelProto) -> Iterator[tuple[TensorProto, bool]]:
    """Yield every tensor of a model, and True if it is structure (an attribute of another operator than Constant)."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _attribute_tensors(function.attribute_proto, structural=True)
        yield from _node_tensors(function.node)


def _graph_tensors(graph: GraphProto) -> Iterator[tuple[TensorProto, bool]]:
    for tensor in graph.initializer:
        yield tensor, False
    for sparse in graph.sparse_initializer:
        yield sparse.values, False
        yield sparse.indices, False
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[tuple[TensorProto, bool]]:
    for node in nodes:
        if node.attribute:
            yield from _attribute_tensors(node.attribute, structural=not is_constant(node))


def _attribute_tensors(attributes: Iterable[AttributeProto], *, structural: bool) -> Iterator[tuple[TensorProto, bool]]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t, structural
        if attribute.HasField("g"):
            yield from _graph_tensors(attribute.g)
        if attribute.HasField("sparse_tensor"):
            yield attribute.sparse_tensor.values, structural
            yield attribute.sparse_tensor.indices, structural
        for tensor in attribute.tensors:
            yield tensor, structural
        for sparse in attribute.sparse_tensors:
            yield sparse.values, structural
            yield sparse.indices, structural
        for graph in attribute.graphs:
            yield from _graph_tensors(graph)
