"""Sources of models: files, folders, globs and the built-in zoo."""

from __future__ import annotations

import copy
import difflib
import glob
import hashlib
import json
import os
import shlex
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ..errors import BrokenModel, DlbricksError, ModelError, ModelNotFound, UnboundDimension, UsageError
from .control_flow import CourseChoice, require_bounded
from .dimensions import DimensionKind, classify_name, is_certain
from .reader import EXTERNAL_MARK, external_locations, read_structure
from .runnable import Edit, Runnable, load_kinds, load_skeleton, runnable_file, runnable_recipe
from .skeleton import Skeleton, mark_given
from .user_inputs import NOTHING_GIVEN, UserInputs, input_types, spelled_type, write_arrays

_SUFFIX = ".onnx"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A requested model, not read yet.

    Attributes:
        name: Shortest unique path among the requested models, without ``.onnx``; or the zoo name. Ends in ``@b4`` if
            several batches were requested.
        path: The file; None for the zoo.
        zoo: Name in the zoo; None for a file.
        batch: Value of the batch dimension; None for 1, or the value fixed by the file.
        dims: Value by dimension name.
        control: The given courses of control flow.
        given: The user's own values of inputs.
        chosen: Names in ``dims`` whose sizes a command chose, not its user.
        opened: The runtime keeps dynamic dimensions of a file open, and computes shapes in each execution, as a program
            with several lengths lets it.
        problem: Why the model does not exist, for an argument without a match.
    """

    name: str
    path: Path | None
    zoo: str | None
    batch: int | None = None
    dims: tuple[tuple[str, int], ...] = ()
    control: tuple[CourseChoice, ...] = ()
    given: UserInputs = NOTHING_GIVEN
    chosen: frozenset[str] = frozenset()
    opened: bool = False
    problem: DlbricksError | None = None

    def skeleton(self) -> Skeleton:
        """Return the model's structure, bound to static shapes.

        Raises:
            ModelError: The model cannot be read or bound.
            UsageError: ``batch`` and ``dims`` contradict each other, or a given value does not fit its input.
        """
        if self.path is not None and self.problem is None:
            skeleton = load_skeleton(self.path, batch=self.batch, dims=dict(self.dims), control=self.control)
            skeleton = replace(skeleton, opened=self.opened, contents=_digest_of(self.path))
        else:
            skeleton = self._recipe()
        graph = skeleton.model.graph
        feeds = self.given.of(input_types(graph)) if self.given else ()
        numbers = {name: int(array.item()) for name, array in (*feeds, {})[0].items() if _is_whole_number(array)}
        try:
            require_bounded(graph, numbers)
        except ModelError as error:
            raise type(error)(f"{self.path or self.name}: {error.message}", remedy=error.remedy) from error
        if not self.given:
            return skeleton
        mark_given(graph, (*feeds, {})[0])
        return replace(skeleton, given=self.given.digest())

    def runnable(self, directory: Path, *, edit: Edit | None = None) -> Runnable:
        """Return the whole model in the form that a runtime loads.

        Args:
            directory: Folder for files that must be written: for the zoo, and if overriding named dimensions does not
                bind the file.
            edit: Changes the model of a file, including its weights, in place; the changed copy is executed.

        Raises:
            ModelError: The model cannot be read, bound or written.
            UsageError: A given value does not fit its input.
        """
        if self.path is not None and self.problem is None:
            runnable = runnable_file(
                self.path, directory, name=self.name, batch=self.batch, dims=dict(self.dims), edit=edit,
                opened=self.opened,
            )  # fmt: skip
        else:
            runnable = runnable_recipe(self._recipe(), directory, name=self.name)
        feeds = self.given.of(runnable.inputs)
        files = tuple(directory / f"inputs-{number}.npz" for number in range(len(feeds)))
        for path, arrays in zip(files, feeds, strict=True):
            directory.mkdir(parents=True, exist_ok=True)
            write_arrays(path, arrays)
        return replace(runnable, feeds=files)

    def open_dimensions(self) -> dict[str, DimensionKind]:
        """Return the kind of each selectable dimension, by name; the batch of a zoo model is not included.

        Raises:
            ModelError: The model does not exist or cannot be read.
        """
        if self.path is not None and self.problem is None:
            return load_kinds(self.path)
        zoo = self._zoo_name()
        from .zoo import names  # its imports are not needed for files

        (entry,) = (entry for entry in names() if entry.name == zoo)
        return {name: classify_name(name, "") for name, _ in entry.dims}

    def assumed(self, *, certain: bool = True) -> str:
        """Return the sizes of a file that nobody gave, with the options that set them; empty if there is none.

        A model of the zoo has none, and neither has a file that cannot be read, which its reader reports.

        Args:
            certain: Count those in whose default nobody is mistaken, as long as the model runs: a batch of 1.
        """
        if self.path is None or self.problem is not None:
            return ""
        given = {name for name, _ in self.dims}
        try:
            kinds = self.open_dimensions()
            batches = sum(kind is DimensionKind.BATCH for kind in kinds.values())
            sure = {name for name, kind in kinds.items() if is_certain(name, kind, only=batches == 1)}
            names = [name for name in kinds if name not in given and (certain or name not in sure)]
            bound = self.skeleton().bound if names else {}
        except DlbricksError:
            return ""
        sizes = {name: bound[name] for name in names if name in bound}
        if self.batch is not None:
            sizes = {name: size for name, size in sizes.items() if kinds[name] is not DimensionKind.BATCH}
        options = shlex.join(word for name in sizes for word in ("--dim", f"{name}=N"))
        listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
        return f"{listed} assumed, since not given; set with {options}" if sizes else ""

    def given_sizes(self) -> tuple[str, ...]:
        """Return the options that give sizes of this file; empty for the zoo and for a file that cannot be read."""
        if self.path is None or self.problem is not None or (self.batch is None and not self.dims):
            return ()
        try:
            kinds = self.open_dimensions()
        except DlbricksError:
            return ()
        names = kinds.keys() - self.chosen
        sizes = ["--dim " + shlex.quote(f"{name}={size}") for name, size in self.dims if name in names]
        batched = self.batch is not None and DimensionKind.BATCH in kinds.values()
        return (*sizes, *([f"--batch {self.batch}"] if batched else []))

    def _zoo_name(self) -> str:
        if self.problem is not None:
            raise copy.copy(self.problem)  # a raised error keeps its traceback, and may be raised again
        if self.zoo is None:
            raise ModelNotFound(f"model '{self.name}' is neither a file nor in the zoo")
        return self.zoo

    def _recipe(self) -> Skeleton:
        zoo = self._zoo_name()
        from .zoo import structure  # its imports are not needed for files

        return structure(zoo, batch=self.batch, dims=dict(self.dims))


def _is_whole_number(array: npt.NDArray[Any]) -> bool:
    return array.size == 1 and array.dtype.kind in "biu"


def find_models(
    arguments: Sequence[str | Path],
    *,
    batches: Sequence[int] = (),
    dims: Mapping[str, int] | None = None,
    control: Sequence[CourseChoice] = (),
    data: Sequence[Path] = (),
    values: Mapping[str, str] | None = None,
) -> list[ModelSource]:
    """Find the models that the arguments name.

    An argument is a zoo name, a file, a folder (all ``*.onnx`` in it and below, sorted) or a glob pattern. A zoo name
    takes precedence over a path, so that it has the same meaning in every folder; ``./name`` is then the path. The
    order of the arguments is kept and duplicates are dropped.

    Args:
        arguments: Names; a ``Path`` is never a zoo name.
        batches: Batches of each model; empty for each model's own.
        dims: Value by dimension name.
        control: Courses of control flow that the files do not fix (``models.control_flow.read_choices``).
        data: npz files with your own values of inputs: the first is timed. The other inputs get seeded values.
        values: Numbers of small inputs by name, as text: ``{"ratio": "0.5", "size": "1,3,64,64"}``.

    Returns:
        One source per model and batch. An argument without a match is a source with a ``problem``.

    Raises:
        UsageError: A batch or a dimension is not a legal size.
    """
    for batch in batches:
        if batch < 1:
            raise UsageError(f"--batch {batch}: a batch has at least one sample")
    for name, size in (dims or {}).items():
        if size < 0:
            raise UsageError(f"--dim {name}={size}: a dimension cannot be negative")
    sources_by_key: dict[str, ModelSource] = {}
    for argument in arguments:
        for source in _resolve(argument):
            key = f"zoo {source.zoo}" if source.zoo else f"path {source.path and os.path.realpath(source.path)}"
            sources_by_key.setdefault(f"argument {source.name}" if source.problem else key, source)
    sources = list(sources_by_key.values())
    names = _unique_names(sources)
    sizes: list[int | None] = [*dict.fromkeys(batches)] or [None]
    given = UserInputs(tuple(data), tuple((values or {}).items()))
    return [
        replace(
            source,
            name=f"{name}@b{batch}" if len(sizes) > 1 and source.problem is None else name,
            batch=batch,
            dims=tuple((dims or {}).items()),
            control=tuple(control),
            given=given,
        )
        for source, name in zip(sources, names, strict=True)
        for batch in (sizes if source.problem is None else sizes[:1])
    ]


def require_inputs(sources: Sequence[ModelSource]) -> None:
    """Check the user's own values of inputs before anything is measured with them.

    Args:
        sources: The models. Models that cannot be read are left to the command.

    Raises:
        UsageError: No model has such an input, the message lists the known ones; or a value does not fit its input.
    """
    known: dict[str, str] = {}
    options: dict[str, str] = {}
    for source in sources:
        if not source.given or source.problem is not None:
            continue
        try:
            graph = source.skeleton().model.graph
        except UnboundDimension:  # of a model that the command refuses: what it needs to know now are the values
            assert source.path is not None  # noqa: S101  # models of the zoo have defaults
            UserInputs(values=source.given.values).of(input_types(read_structure(source.path).graph))
            continue
        except ModelError:
            continue
        known |= {name: f"{name} {spelled_type(kind, shape)}" for name, kind, shape in input_types(graph)}
        options |= source.given.names()
    for name, option in options.items():
        if name not in known:
            there = ", ".join(known.values()) or "none"
            raise UsageError(f"{option}: no model has an input '{name}'", remedy=f"there are: {there}")


def _resolve(argument: str | Path) -> Iterator[ModelSource]:
    text = str(argument)
    if isinstance(argument, str) and text in _zoo_names():
        yield ModelSource(text, None, text)
        return
    path = Path(argument)
    if not text:  # otherwise the working folder
        yield _problem(text, ModelNotFound("a model argument is empty"))
    elif path.is_dir():
        yield from _in_folder(path)
    elif path.exists():
        yield ModelSource(text, path, None)
    elif glob.has_magic(text):
        yield from _in_pattern(text)
    else:
        close = difflib.get_close_matches(path.stem, _zoo_names(), n=3, cutoff=0.6)
        remedy = f"did you mean {' or '.join(close)}?" if close else "`dlbricks models list` shows the built-in ones"
        yield _problem(text, ModelNotFound(f"no file, folder, pattern or zoo name matches '{text}'", remedy=remedy))


def _in_folder(folder: Path) -> Iterator[ModelSource]:
    unreadable: list[OSError] = []
    empty = True
    for parent, folders, files in os.walk(folder, onerror=unreadable.append):
        folders.sort()
        for name in sorted(files):
            if name.lower().endswith(_SUFFIX):
                empty = False
                path = Path(parent, name)
                yield ModelSource(str(path), path, None)
    for error in unreadable:
        yield _problem(str(error.filename), BrokenModel(f"{error.filename}: cannot be read: {error.strerror}"))
    if empty and not unreadable:
        yield _problem(str(folder), ModelNotFound(f"no *{_SUFFIX} file in folder '{folder}'"))


def _in_pattern(pattern: str) -> Iterator[ModelSource]:
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207  # may be absolute
    has_model = False
    for path in matches:
        if path.is_dir():
            sources = [source for source in _in_folder(path) if source.problem is None]
        else:
            sources = [ModelSource(str(path), path, None)] if path.name.lower().endswith(_SUFFIX) else []
        has_model = has_model or bool(sources)
        yield from sources
    if not has_model:
        what = f"none of its {len(matches)} matches is a *{_SUFFIX} file" if matches else "it matches nothing"
        yield _problem(pattern, ModelNotFound(f"pattern '{pattern}' finds no model: {what}"))


def _problem(name: str, problem: DlbricksError) -> ModelSource:
    return ModelSource(name, None, None, problem=problem)


@cache
def _zoo_names() -> tuple[str, ...]:
    from .zoo import names

    return tuple(entry.name for entry in names())


def _unique_names(sources: Sequence[ModelSource]) -> list[str]:
    """Return the shortest unique end of each path; zoo names and unmatched arguments are unchanged."""
    candidates = [_path_ends(source.path) if source.path else [source.name] for source in sources]
    taken = Counter(name for names in candidates for name in dict.fromkeys(names))
    return [next((name for name in names if taken[name] == 1), names[-1]) for names in candidates]


def _path_ends(path: Path) -> list[str]:
    """Return the ends of a path without the suffix, shortest first, then the whole path."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100  # names follow the path as written, links and all
    stem = absolute.with_suffix("") if absolute.suffix.lower() == _SUFFIX else absolute
    parts = stem.parts[1:]
    return ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)] + [absolute.as_posix()]


# The fingerprint of a model: equal for two reads of the same model, without reading its structure.


_CHUNK_BYTES = 1 << 20


def fingerprint(source: ModelSource) -> str | None:
    """Return a digest of a model's file, the state of its external data, and its bound values.

    Returns:
        A SHA-256, hexadecimal; None for a model that cannot be read.
    """
    parts = _contents(source)
    if parts is None:
        return None
    control = [[[choice.node, choice.course, choice.how] for choice in source.control]] if source.control else []
    given = [source.given.digest()] if source.given else []
    opened = ["opened"] if source.opened else []
    text = json.dumps([parts, source.batch, sorted(source.dims), *control, *given, *opened])
    return hashlib.sha256(text.encode()).hexdigest()


def contents(source: ModelSource) -> str | None:
    """Return the digest of ``fingerprint`` without the bound values."""
    parts = _contents(source)
    return None if parts is None else hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _contents(source: ModelSource) -> list[object] | None:
    try:
        if source.path is not None and source.problem is None:
            return _of_file(source.path)
        if source.zoo is not None and source.problem is None:
            from .zoo import fingerprint as of_zoo  # its imports are not needed for files

            return [of_zoo(source.zoo, dict(source.dims))]
    except (OSError, ValueError, ModelError):
        pass
    return None


def file_bytes(source: ModelSource) -> int | None:
    """Return the bytes of a model's file and of its external data; None for a model without a file."""
    if source.path is None:
        return None
    _, external = _content(source.path, *_state(source.path))
    return sum(_state(file)[0] for file in (source.path, *(source.path.parent / location for location in external)))


def _of_file(path: Path) -> list[object]:
    sha256, external = _content(path, *_state(path))
    return ["file", sha256, *([location, *_state(path.parent / location)] for location in external)]


_SAMPLES, _SAMPLE_BYTES = 64, 4096
"""Pieces of each external file that its digest is of: all of it may be larger than memory."""


def _digest_of(path: Path) -> str:
    """Return a digest of a model's file with its weights, which is the same for a copy on another machine."""
    sha256, external = _content(path, *_state(path))
    if not external:
        return sha256
    digest = hashlib.sha256(sha256.encode())
    for location in external:
        file = path.parent / location
        digest.update(_sampled(file, *_state(file)).encode())
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _sampled(path: Path, size: int, _mtime_ns: int) -> str:
    """Return the SHA-256 of a file's size and of pieces of it at equal distances."""
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(number * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _state(path: Path) -> tuple[int, int]:
    """Return size and time of the last change, which identify the state of a file."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not a file")
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=256)
def _content(path: Path, _size: int, _mtime_ns: int) -> tuple[str, tuple[str, ...]]:
    """Return the SHA-256 of a model file, and its external files."""
    digest, marked, end = hashlib.sha256(), False, b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            marked = marked or EXTERNAL_MARK in end + chunk
            end = chunk[-len(EXTERNAL_MARK) :]
    return digest.hexdigest(), external_locations(path) if marked else ()
