"""Whole models in the form that a runtime loads."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from ..errors import BrokenModel, DlbricksError, ModelError, UnsupportedModel, unforeseen
from .binding import Binding, apply, kinds_of, plan
from .control_flow import CourseChoice
from .dimensions import DimensionKind
from .external import ExternalFolder, follows_links, leaves_folder
from .normal import NormalForm, normalise
from .reader import external_locations, read_full, read_structure
from .skeleton import Skeleton, is_weight
from .subgraphs import declared_shape
from .user_inputs import InputType

# From a model file to its skeleton: read, bring into normal form, bind.


def load_skeleton(
    path: Path,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    control: tuple[CourseChoice, ...] = (),
) -> Skeleton:
    """Load the structure of a model file, bound to static shapes, without weights.

    Args:
        path: The ONNX file.
        batch: Value of the batch dimension; None for 1, or the value fixed by the file.
        dims: Value by dimension name, or by ``input[axis]``. Unknown names are ignored.
        control: The given courses of its control flow.

    Raises:
        ModelError: The file cannot be read or bound. The message names the file.
        UsageError: ``batch`` and ``dims`` contradict each other.
    """
    return _load_bound(path, batch, dims, control)[0]


def _load_bound(
    path: Path, batch: int | None, dims: Mapping[str, int] | None, control: tuple[CourseChoice, ...] = ()
) -> tuple[Skeleton, Binding]:
    with _naming(path):
        normal = normalise(read_structure(path))
        binding = plan(normal.model, batch=batch, dims=dims)
        apply(normal.model, binding)
    return Skeleton(normal.model, binding.bound, normal.weight_bytes, path, control, normal.overridable), binding


def load_kinds(path: Path) -> dict[str, DimensionKind]:
    """Return the kind of each dynamic dimension of a model file, by name, or by ``input[axis]``.

    Raises:
        ModelError: The file cannot be read. The message names the file.
    """
    normal = load_open(path)
    with _naming(path):
        return kinds_of(normal.model)


def load_open(path: Path) -> NormalForm:
    """Load the structure of a model file in normal form, with its dynamic dimensions open.

    Raises:
        ModelError: The file cannot be read. The message names the file.
    """
    with _naming(path):
        return normalise(read_structure(path))


def load_full(
    path: Path, *, batch: int | None = None, dims: Mapping[str, int] | None = None, opened: bool = False
) -> tuple[ModelProto, ExternalFolder]:
    """Load the same model as ``load_skeleton``, under the same names, with its weights.

    Embedded weights are read, which needs several times their size in memory; external ones stay references. With
    ``opened`` its dynamic dimensions stay so.

    Returns:
        The model, and the folder with its external files.

    Raises:
        DlbricksError: As ``load_skeleton``.
    """
    with _naming(path):
        binding = plan(normalise(read_structure(path)).model, batch=batch, dims=dims)
        model, folder = read_full(path)
        normal = normalise(model, keep_weights=True)
        if not opened:
            apply(normal.model, binding)
    return normal.model, folder


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise type(error)(f"{path}: {error.message}", remedy=error.remedy) from error
    except UnicodeDecodeError as error:
        raise BrokenModel(f"{path}: a name in it is not UTF-8") from error
    except DlbricksError:
        raise
    except Exception as error:  # the border: a file may break an assumption that nobody knew of
        raise BrokenModel(unforeseen(str(path), error, "read")) from error


Edit = Callable[[ModelProto], None]
"""Changes a model in place."""

_ELEMENT_TYPES = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}


@dataclass(frozen=True, slots=True)
class Runnable:
    """A model as a runtime executes it.

    Attributes:
        path: ONNX file.
        synthetic: True if weights are graph inputs with ``role=weight``, to be filled with seeded values.
        overrides: ``dim_param`` to value, for the runtime's free-dimension overrides.
        inputs: Name, element type (ONNX's name in lower case) and static shape of each activation input.
        feeds: npz files with the user's own values of inputs: the first is timed; the other inputs get seeded values.
        partner: npz file with the inputs of a model that it is compared with; it shares those of the same names.
    """

    path: Path
    synthetic: bool
    overrides: tuple[tuple[str, int], ...] = ()
    inputs: tuple[InputType, ...] = ()
    feeds: tuple[Path, ...] = ()
    partner: Path | None = None


def runnable_file(
    path: Path,
    directory: Path,
    *,
    name: str,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    edit: Edit | None = None,
    opened: bool = False,
) -> Runnable:
    """Return a model file unchanged if overrides suffice to bind it, else an edited copy with all its weights.

    With ``opened`` nothing is bound but a batch that the file fixes.

    A file with data outside its folder (``--follow-links``) is copied with its data, because runtimes refuse it.

    Raises:
        ModelError: The model cannot be read, bound or written.
    """
    skeleton, binding = _load_bound(path, batch, dims)
    inputs = _inputs(path, skeleton)
    moved = follows_links() and leaves_folder(path.parent, external_locations(path))
    opened = opened and binding.rebatch is None
    unedited = opened or not binding.edited or _better_unbound(path, skeleton, inputs)
    if edit is None and not moved and unedited:
        overrides = () if opened else tuple(sorted(binding.overrides.items()))
        return Runnable(path, synthetic=False, overrides=overrides, inputs=inputs)
    model, folder = load_full(path, batch=batch, dims=dims, opened=opened)
    if edit is not None:
        edit(model)
    target = directory / _file_name(name) / "model.onnx"
    _write(model, target)
    for location, source in folder.locations.items():
        copy = target.parent / location
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        except OSError as error:
            raise ModelError(f"{source} cannot be copied to {copy}: {error.strerror}") from error
    return Runnable(target, synthetic=False, inputs=inputs)


def _better_unbound(path: Path, skeleton: Skeleton, inputs: Sequence[InputType]) -> bool:
    """Return True if the file accepts these inputs and has branches, some of which may be impossible with them.

    A branch that is never taken, for example for another sampling rate, may contradict a shape that binding writes into
    the file; a runtime then refuses the whole model.
    """
    if not any(node.op_type == "If" for node in skeleton.model.graph.node):
        return False
    stated = {value.name: value.type.tensor_type.shape.dim for value in read_structure(path).graph.input}
    return all(
        name in stated
        and len(stated[name]) == len(shape)
        and all(not dim.dim_value or dim.dim_value == size for dim, size in zip(stated[name], shape, strict=True))
        for name, _, shape in inputs
    )


def runnable_recipe(skeleton: Skeleton, directory: Path, *, name: str) -> Runnable:
    """Write a model without own weights as its skeleton.

    Raises:
        ModelError: The file cannot be written.
    """
    target = directory / f"{_file_name(name)}.onnx"
    _write(skeleton.model, target)
    return Runnable(target, synthetic=True, inputs=_inputs(target, skeleton))


def _inputs(path: Path, skeleton: Skeleton) -> tuple[InputType, ...]:
    inputs = []
    for value in skeleton.model.graph.input:
        if is_weight(value):
            continue
        if not value.type.HasField("tensor_type"):
            kind = (value.type.WhichOneof("value") or "value without a type").removesuffix("_type")
            kind = f"{'an' if kind.startswith('o') else 'a'} {kind}"
            raise UnsupportedModel(f"{path}: input '{value.name}' is {kind}, not a tensor, so it cannot be run")
        tensor = value.type.tensor_type
        if tensor.elem_type not in _ELEMENT_TYPES:
            raise BrokenModel(
                f"{path}: input '{value.name}' has no element type that ONNX knows ({tensor.elem_type})",
                remedy="export the model again",
            )
        dtype = TensorProto.DataType.Name(tensor.elem_type).lower()
        inputs.append((value.name, dtype, declared_shape(value.type)))
    return tuple(inputs)


def _file_name(name: str) -> str:
    """Return a model's name as one path component."""
    return re.sub(r"[^\w.@+-]", "_", name).lstrip(".") or "model"


def _write(model: ModelProto, path: Path) -> None:
    try:
        data = model.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise UnsupportedModel(
            f"{path.name}: the edited model is above 2 GiB, the most that one ONNX file can hold",
            remedy="store its weights as external data",
        ) from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise ModelError(f"{path} cannot be written: {error.strerror}") from error
