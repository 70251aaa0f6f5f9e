"""The user's own values for inputs of a model: npz files, and small values in words."""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import onnx

from ..errors import UsageError
from .skeleton import is_weight
from .subgraphs import static_shape

Feeds = dict[str, npt.NDArray[Any]]
"""A value for each input."""

InputType = tuple[str, str, tuple[int, ...]]
"""Name, element type (ONNX's own name in lower case) and static shape of an input."""

_KINDS = "biufc"
"""Kinds of NumPy's own numbers."""

_TRUTHS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True)
class UserInputs:
    """Values of some inputs; the others get seeded values.

    Attributes:
        files: npz files with arrays by input; the first is timed.
        values: The numbers of small inputs, by name and as written: ``1.5`` or ``1,3,64,64``. They replace the
            arrays in the files.
        inputs: The inputs that they are for; None: any.
    """

    files: tuple[Path, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    inputs: frozenset[str] | None = None

    def __bool__(self) -> bool:
        """Return True if the value of an input is given."""
        return bool(self.files or self.values)

    def of(self, inputs: Sequence[InputType]) -> tuple[Feeds, ...]:
        """Return the given values of a model's inputs, for each file; names that it has not are ignored.

        Args:
            inputs: The model's inputs.

        Returns:
            Arrays by input for each file; only one without a file, none without values.

        Raises:
            UsageError: A file cannot be read, or a value has another shape or another type than its input.
        """
        types = {name: (kind, shape) for name, kind, shape in inputs}
        values = {name: _parsed(name, text, *types[name]) for name, text in self.values if name in types}
        stored = [_checked(path, read_arrays(path), types) for path in self.files]
        return tuple(file | values for file in stored) if stored else (values,) if values else ()

    def names(self) -> dict[str, str]:
        """Return the option that gives each input.

        Raises:
            UsageError: A file cannot be read.
        """
        of_files = dict[str, str]()
        for path in self.files:
            with _opened(path) as stored:
                of_files |= dict.fromkeys(stored.files, f"--data {path}")
        given = of_files | {name: f"--value {name}={text}" for name, text in self.values}
        return {name: option for name, option in given.items() if self._has(name)}

    def _has(self, name: str) -> bool:
        return self.inputs is None or name in self.inputs

    def not_numbers(self) -> dict[str, int]:
        """Return how many elements are NaN in each array that has any, by file and input; a value replaces an array.

        Raises:
            UsageError: A file cannot be read.
        """
        replaced, counts = dict(self.values), dict[str, int]()
        for path in self.files:
            with _opened(path) as stored:
                for name in (name for name in stored.files if name not in replaced and self._has(name)):
                    array = stored[name]
                    if array.dtype.kind == "f" and (count := int(np.isnan(array).sum())):
                        counts[f"{path}: '{name}'"] = count
        return counts

    def only(self, inputs: Collection[str]) -> UserInputs:
        """Return the values of some inputs.

        Raises:
            UsageError: A file cannot be read.
        """
        values = tuple((name, text) for name, text in self.values if name in inputs)
        files = tuple(path for path in self.files if not UserInputs((path,)).names().keys().isdisjoint(inputs))
        return UserInputs(files, values, frozenset(inputs)) if files or values else NOTHING_GIVEN

    def digest(self) -> str:
        """Return a digest of all values; empty without any.

        Raises:
            UsageError: A file cannot be read.
        """
        if not self:
            return ""
        contents = [hashlib.sha256(_bytes(path)).hexdigest() for path in self.files]
        return hashlib.sha256(json.dumps([contents, sorted(self.values)]).encode()).hexdigest()


NOTHING_GIVEN = UserInputs()
"""No value of any input: all are seeded."""


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def read_arrays(path: Path) -> Feeds:
    """Read an npz file.

    Raises:
        UsageError: It is another kind of file, cannot be read, or is empty.
    """
    with _opened(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    if not arrays:
        raise UsageError(f"{path} has no array", remedy="write it with numpy.savez(PATH, INPUT=ARRAY)")
    return arrays


@contextmanager
def _opened(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """Open an npz file, whose arrays are read when they are asked for; raises as ``read_arrays``."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            yield stored
    except (OSError, ValueError, TypeError, AttributeError, BadZipFile, MemoryError) as error:
        remedy = "write it with numpy.savez, from arrays of numbers or texts"
        raise UsageError(f"{path} is not an npz file of arrays", remedy=remedy) from error


def write_arrays(path: Path, values: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an npz file; any name is allowed. Types that NumPy lacks are written as float32."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, array in values.items():
            kind = array.dtype.kind
            plain = array if kind in _KINDS else array.astype(np.str_ if kind in "OSU" else np.float32)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, plain, allow_pickle=False)


def _checked(path: Path, arrays: Feeds, types: Mapping[str, tuple[str, tuple[int, ...]]]) -> Feeds:
    """Return the arrays of a model's inputs; another type or shape is wrong usage."""
    of_inputs: Feeds = {}
    for name, (kind, shape) in types.items():
        if name not in arrays:
            continue
        array, wanted = arrays[name], numpy_type(kind)
        alike = array.dtype == wanted or (wanted.kind not in _KINDS and array.dtype.kind in "fU")
        if not alike or array.shape != shape:
            both_types = f"{array.dtype}{list(array.shape)}, and the input is {wanted}{list(shape)}"
            remedy = "give it in this shape, or the sizes with --dim or --batch" if alike else "give it in this type"
            raise UsageError(f"{path}: '{name}' is {both_types}", remedy=remedy)
        of_inputs[name] = array
    return of_inputs


def _parsed(name: str, text: str, kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the numbers of ``--value`` as an array of the input's type and shape."""
    option, wanted = f"--value {name}={text}", numpy_type(kind)
    of_input = f"input '{name}' is {spelled_type(kind, shape)}"
    count, words = math.prod(shape), [word.strip() for word in text.split(",")]
    if wanted.kind in "OSU":
        raise UsageError(f"{option}: {of_input}", remedy="--value gives numbers only")
    if len(words) != count:
        takes = "one number" if count == 1 else f"{count} numbers with commas between them"
        had = f"{len(words)} {'was' if len(words) == 1 else 'were'} given"
        remedy = "give its array with --data FILE.npz" if count > _MOST_WORDS else ""
        raise UsageError(f"{option}: {of_input}, which takes {takes}, and {had}", remedy=remedy)
    read, what = _reader(wanted)
    numbers = []
    for word in words:
        try:
            numbers.append(read(word))
        except (ValueError, KeyError) as error:
            raise UsageError(f"{option}: {of_input}, and '{word}' is not {what}") from error
    return np.array(numbers).astype(wanted).reshape(shape)


_MOST_WORDS = 16
"""Elements of an input that a command can still spell out."""


def _reader(wanted: np.dtype[Any]) -> tuple[Callable[[str], float], str]:
    """Return a reader of one number of a type, and the name of this kind of number."""
    if wanted.kind == "b":
        return lambda word: _TRUTHS[word.lower()], "true or false"
    if wanted.kind not in "iu":

        def real(word: str) -> float:
            number = float(word)
            finite = bool(np.isfinite(np.array(number).astype(wanted))) or "inf" in word.lower()
            if math.isnan(number) or not finite:
                raise ValueError(word)
            return number

        return real, f"a number of {wanted}"
    limits = np.iinfo(wanted)

    def whole(word: str) -> int:
        number = int(word)
        if not limits.min <= number <= limits.max:
            raise ValueError(word)
        return number

    return whole, f"a whole number of {wanted}"


def numpy_type(kind: str) -> np.dtype[Any]:
    """Return NumPy's type for ONNX's name of an element type, in lower case."""
    return onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(kind.upper()))


def spelled_type(kind: str, shape: Sequence[int]) -> str:
    """Return a type in words: ``int64[4]``."""
    return f"{kind}{list(shape)}"


def spelled_option(name: str, shape: Sequence[int]) -> str:
    """Return the option that gives an input, with ``N`` for each number; a large input is given by a file."""
    count = math.prod(shape)
    return f"--value {name}={','.join('N' * count)}" if 0 < count <= _MOST_WORDS else "--data FILE.npz"


def input_types(graph: onnx.GraphProto) -> list[InputType]:
    """Return the types of a skeleton's inputs; inputs without a static shape, and lists, are left out."""
    types = []
    for value in graph.input:
        shape = static_shape(value.type)
        if not is_weight(value) and shape is not None and value.type.tensor_type.elem_type:
            kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
            types.append((str(value.name), kind, tuple(shape)))
    return types
