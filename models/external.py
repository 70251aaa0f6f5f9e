"""External data of a model: location, safety and completeness.

A model and its paths are untrusted: external files must be inside the model's folder, after following links, or
blobs of the same repository in a hub's cache. Every external tensor is checked, also if its values are not read.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx import TensorProto, numpy_helper

from ..errors import BrokenModel, MissingExternalData, UnsafePath

# The payload of a tensor: its fields and its size in bytes.


TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
PAYLOAD_FIELDS = ("raw_data", *TYPED_FIELDS)
"""The fields of a ``TensorProto`` with its values."""

_BITS_BY_NAME = {
    "FLOAT": 32, "UINT8": 8, "INT8": 8, "UINT16": 16, "INT16": 16, "INT32": 32, "INT64": 64, "STRING": 0, "BOOL": 8,
    "FLOAT16": 16, "DOUBLE": 64, "UINT32": 32, "UINT64": 64, "COMPLEX64": 64, "COMPLEX128": 128, "BFLOAT16": 16,
    "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8,
    "UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
}  # fmt: skip
_BITS: dict[int, int] = {
    number: _BITS_BY_NAME[name] for name, number in TensorProto.DataType.items() if name in _BITS_BY_NAME
}


def count_elements(dims: Sequence[int]) -> int:
    """Return the number of elements of a static shape (1 for a scalar).

    Raises:
        BrokenModel: A dimension is negative.
    """
    elements = math.prod(dims)
    if elements < 0 or (elements == 0 and min(dims) < 0):
        raise BrokenModel(f"a constant has a negative dimension: {list(dims)}")
    return elements


def payload_bytes(dtype: int, elements: int) -> int:
    """Return the bytes of a dense buffer; types below a byte are packed, strings count 0.

    Raises:
        BrokenModel: ``dtype`` is unknown to this onnx.
    """
    try:
        return (elements * _BITS[dtype] + 7) // 8
    except KeyError as error:
        raise BrokenModel(f"a constant has the unknown element type {dtype}") from error


def check_filled(name: str, dtype: int, dims: Sequence[int], raw: int, typed: int) -> None:
    """Check that the values of an embedded constant may fill its shape.

    Args:
        name: Name of the constant.
        dtype: Element type.
        dims: Shape.
        raw: Bytes of ``raw_data``.
        typed: Bytes of the other fields with values; the narrowest types take a quarter of a byte per element there.

    Raises:
        BrokenModel: There are too few values, or too many; or the type or the shape is none.
    """
    elements = count_elements(dims)
    expected = payload_bytes(dtype, elements)
    if dtype == TensorProto.STRING or (raw == expected and not typed) or (not raw and 4 * typed >= elements):
        return
    held = f"only {raw or typed}" if 0 < (raw or typed) < expected else raw or typed or "none"
    raise BrokenModel(
        f"constant '{name}' of shape {list(dims)} takes {expected} bytes, and the file holds {held} of them",
        remedy="export the model with its weights",
    )


def check_tensor(tensor: TensorProto) -> None:
    """Check that the values of a constant may fill its shape, unless they are in an external file.

    Raises:
        BrokenModel: As ``check_filled``.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        raw_bytes = len(tensor.raw_data)
        typed = 0 if raw_bytes else sum(len(getattr(tensor, name)) for name in TYPED_FIELDS)
        check_filled(tensor.name, tensor.data_type, tensor.dims, raw_bytes, typed)


def raw_tensor(tensor: TensorProto, name: str) -> TensorProto:
    """Return a small tensor with values in ``raw_data`` (strings in ``string_data``), under a given name.

    A tensor that already has this form is returned itself (the usual case, for thousands).

    Raises:
        BrokenModel: The values do not fill the shape.
    """
    dtype = tensor.data_type
    elements = count_elements(tensor.dims)
    if dtype == TensorProto.STRING:
        actual_size, expected_size = len(tensor.string_data), elements
    else:
        expected_size = payload_bytes(dtype, elements)
        raw = tensor.raw_data
        if not raw and expected_size:
            raw = _pack(tensor, name)
            tensor = TensorProto(dims=tensor.dims, data_type=dtype, name=name, raw_data=raw)
        actual_size = len(raw)
    if actual_size != expected_size:
        raise BrokenModel(
            f"constant '{name}' of shape {list(tensor.dims)} should hold {expected_size} "
            f"{'strings' if dtype == TensorProto.STRING else 'bytes'}, but holds {actual_size}"
        )
    if tensor.name != name:
        copy = deepcopy(tensor)
        copy.name = name
        return copy
    return tensor


def _pack(tensor: TensorProto, name: str) -> bytes:
    if tensor.data_location == TensorProto.EXTERNAL:  # references to files were resolved on reading
        raise BrokenModel(f"constant '{name}' has external data, but names no file")
    try:
        return numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, NotImplementedError) as error:
        dtype = onnx.TensorProto.DataType.Name(tensor.data_type) if tensor.data_type in _BITS else tensor.data_type
        raise BrokenModel(f"the values of constant '{name}' ({dtype}, shape {list(tensor.dims)}) are broken") from error


_MEMORY_MARKER = "_ORT_MEM_ADDR_"
"""ONNX Runtime's location for data at an address in memory, which is illegal in a file."""


@dataclass(frozen=True, slots=True)
class ExternalData:
    """The location of one tensor's values."""

    location: str
    path: Path
    offset: int
    size: int

    def read(self) -> bytes:
        """Read the bytes.

        Raises:
            MissingExternalData: The file cannot be read, or became shorter.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(self.size)
        except OSError as error:
            raise MissingExternalData(f"external data '{self.location}' cannot be read: {error.strerror}") from error
        if len(data) != self.size:
            raise MissingExternalData(f"external data '{self.location}' became shorter while it was read")
        return data


class ExternalFolder:
    """The folder of one model, with the files inspected so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = os.path.realpath(folder)
        self._files: dict[str, tuple[Path, int]] = {}

    @property
    def locations(self) -> dict[str, Path]:
        """The files located so far, by their location in the model."""
        return {location: path for location, (path, _) in self._files.items()}

    def locate(self, tensor: TensorProto) -> ExternalData:
        """Check the external data of a tensor.

        Raises:
            UnsafePath: The path is absolute, contains ``..``, or leads out of the model's folder.
            MissingExternalData: The file is missing or too short.
            BrokenModel: The reference is invalid.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        nbytes = payload_bytes(tensor.data_type, count_elements(tensor.dims))
        if not location or not isinstance(location, str):  # protobuf returns bytes for invalid text
            raise BrokenModel(f"constant '{tensor.name}' has external data, but names no file")
        if tensor.data_type == TensorProto.STRING:
            raise BrokenModel(f"constant '{tensor.name}' is of strings, which cannot be external data")
        offset = _integer(tensor, entries, "offset", 0)
        length = _integer(tensor, entries, "length", nbytes)
        if length != nbytes:
            raise BrokenModel(
                f"constant '{tensor.name}' of shape {list(tensor.dims)} needs {nbytes} bytes, "
                f"but its external data has {length}"
            )
        if location not in self._files:
            self._files[location] = self._inspect(location)
        path, size = self._files[location]
        if offset + nbytes > size:
            if _is_lfs_pointer(path):
                raise MissingExternalData(f"external data '{location}' is {LFS_POINTER}", remedy=LFS_REMEDY)
            raise MissingExternalData(
                f"external data '{location}' has {size} bytes, but constant '{tensor.name}' ends at {offset + nbytes}",
                remedy="it is truncated or of another model; copy it again",
            )
        return ExternalData(location, path, offset, nbytes)

    def _inspect(self, location: str) -> tuple[Path, int]:
        posix, windows = PurePosixPath(location), PureWindowsPath(location)
        remedy = "external data must lie below the model's own folder"
        linked = "copy the file beside the model, or trust the link with --follow-links"
        if (
            posix.is_absolute()
            or windows.is_absolute()
            or windows.drive
            or ".." in posix.parts
            or ".." in windows.parts
            or "\0" in location
            or _MEMORY_MARKER in location
        ):
            raise UnsafePath(f"external data path {location!r} is not allowed", remedy=remedy)
        path = self._folder / location
        real = os.path.realpath(path)
        inside = os.path.commonpath((real, self._root)) == self._root
        if not inside and not follows_links() and not _in_hub(self._root, real):
            raise UnsafePath(f"external data path {location!r} leads to {real}, by a link", remedy=linked)
        try:
            status = path.stat()
        except OSError as error:
            raise MissingExternalData(
                f"external data '{location}' is missing: {error.strerror}",
                remedy=f"put it beside the model, in {self._folder}",
            ) from error
        if not stat.S_ISREG(status.st_mode):
            raise MissingExternalData(f"external data '{location}' is not a regular file")
        return path, status.st_size


LFS_HEAD, LFS_POINTER, LFS_REMEDY = b"version https://git-lfs", "a pointer of Git LFS", "fetch it with `git lfs pull`"
"""A file that stands for one that Git LFS keeps elsewhere: how it begins, what it is, and the remedy."""


def _is_lfs_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(LFS_HEAD)) == LFS_HEAD


_FOLLOW_LINKS = "DLBRICKS_FOLLOW_LINKS"
"""Environment variable, so that workers follow the links too."""


def follows_links() -> bool:
    """Return True if links may lead out of a model's folder."""
    return bool(os.environ.get(_FOLLOW_LINKS))


def follow_links(follow: bool) -> None:  # noqa: FBT001  # on or off is all that it says
    """Let links lead out of a model's folder, in this process and in those that it starts; or no longer."""
    if follow:
        os.environ[_FOLLOW_LINKS] = "1"
    else:
        os.environ.pop(_FOLLOW_LINKS, None)


def leaves_folder(folder: Path, locations: Iterable[str]) -> bool:
    """Return True if a link leads external data out of a model's folder, where runtimes do not read it.

    Args:
        folder: The model's folder.
        locations: The external files, relative to it.
    """
    root = os.path.realpath(folder)
    reals = [os.path.realpath(folder / location) for location in locations]
    return any(os.path.commonpath((real, root)) != root and not _in_hub(root, real) for real in reals)


def _in_hub(folder: str, file: str) -> bool:
    """Return True if a file is a blob of the repository that a model's folder is a snapshot of.

    The cache of a hub has the files of a repository in ``blobs``, and links to them in ``snapshots/REVISION``. Neither
    of the two may be a link itself.
    """
    parents = [Path(folder), *Path(folder).parents]
    snapshots = next((parent for parent in parents if parent.name == "snapshots"), None)
    if snapshots is None:
        return False
    blobs = snapshots.parent / "blobs"
    return not blobs.is_symlink() and Path(file).parent == blobs


def _integer(tensor: TensorProto, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20):
        raise BrokenModel(f"the external data of constant '{tensor.name}' has {key} {text!r}, not a number")
    return int(text)
