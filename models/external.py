"""External data of a model: where it lies, whether that is safe, and whether it is all there.

A model is untrusted, and so are the paths in it: a file that they name must lie below the model's own folder, links
followed. Every external tensor is checked, whether or not its values are read.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import TensorProto

from ..errors import BrokenModel, MissingExternalData, UnsafePath
from .payload import count_elements, payload_bytes

__all__ = ["ExternalData", "ExternalFolder"]

_MEMORY_MARKER = "_ORT_MEM_ADDR_"
"""ONNX Runtime's own location of data that lies at an address in memory: never legal in a file."""


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Where the values of one tensor lie.

    Attributes:
        location: Path relative to the model's folder, as the model writes it.
        path: The file.
        offset: First byte.
        size: Number of bytes.
    """

    location: str
    path: Path
    offset: int
    size: int

    def read(self) -> bytes:
        """The bytes.

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
    """The folder of one model; remembers the files that it looked at."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = os.path.realpath(folder)
        self._files: dict[str, tuple[Path, int]] = {}

    @property
    def locations(self) -> dict[str, Path]:
        """The files located so far, by the location that the model names."""
        return {location: path for location, (path, _) in self._files.items()}

    def locate(self, tensor: TensorProto) -> ExternalData:
        """Check the external data of a tensor.

        Raises:
            UnsafePath: The path is absolute, has ``..``, or leads out of the model's folder.
            MissingExternalData: The file is not there, or is too short.
            BrokenModel: The reference itself makes no sense.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        wanted = payload_bytes(tensor.data_type, count_elements(tensor.dims))
        if not location or not isinstance(location, str):  # protobuf hands out bytes where they are no text
            raise BrokenModel(f"constant '{tensor.name}' has external data, but names no file")
        if tensor.data_type == TensorProto.STRING:
            raise BrokenModel(f"constant '{tensor.name}' is of strings, which cannot be external data")
        offset = _integer(tensor, entries, "offset", 0)
        length = _integer(tensor, entries, "length", wanted)
        if length != wanted:
            raise BrokenModel(
                f"constant '{tensor.name}' of shape {list(tensor.dims)} needs {wanted} bytes, "
                f"but its external data has {length}"
            )
        if location not in self._files:
            self._files[location] = self._inspect(location)
        path, size = self._files[location]
        if offset + wanted > size:
            raise MissingExternalData(
                f"external data '{location}' has {size} bytes, but constant '{tensor.name}' ends at {offset + wanted}",
                remedy="it is truncated or of another model; copy it again",
            )
        return ExternalData(location, path, offset, wanted)

    def _inspect(self, location: str) -> tuple[Path, int]:
        posix, windows = PurePosixPath(location), PureWindowsPath(location)
        remedy = "external data must lie below the model's own folder"
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
        if os.path.commonpath((real, self._root)) != self._root:
            raise UnsafePath(f"external data path {location!r} leads to {real}, by a link", remedy=remedy)
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


def _integer(tensor: TensorProto, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20):
        raise BrokenModel(f"the external data of constant '{tensor.name}' has {key} {text!r}, not a number")
    return int(text)
