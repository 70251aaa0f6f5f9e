"""Rules of operators that move or view data (Reshape, Transpose, Concat, Slice, Pad, ...) or work along axes."""

from __future__ import annotations

import numpy as np

from ..layer import Role
from ..operators import REDUCTIONS
from .draft import CanonicalDraft, OpsetBound, resolve_axis, rule


@rule("Reshape")
def reshape(draft: CanonicalDraft) -> None:
    """Make the output's shape the target: no 0, no -1, no ``allowzero``."""
    draft.pop("shape")
    if draft.slot(1).role is Role.ACTIVATION:  # computed at run time; the static shape holds for one execution
        return
    shape = draft.output().shape
    draft.attributes["allowzero"] = int(0 in shape)
    draft.put_integers(1, shape)


@rule("Expand")
def expand(draft: CanonicalDraft) -> None:
    """Make the output's shape the target."""
    if draft.slot(1).role is not Role.ACTIVATION:
        draft.put_integers(1, draft.output().shape)


@rule("Tile")
def tile(draft: CanonicalDraft) -> None:
    """Convert from before opset 6: then one axis was repeated, since then every axis has a count."""
    if draft.since >= 6:
        return
    tiles, axis = draft.integers(1), draft.integers(2)
    if tiles is None or axis is None:
        raise OpsetBound("repetitions are not known")
    repeats = [1] * draft.rank
    repeats[axis[0]] = tiles[0]
    draft.put_integers(1, repeats)
    del draft.slots[2:]


@rule("Squeeze")
def squeeze(draft: CanonicalDraft) -> None:
    """Give the axes, counted from the front, ascending."""
    axes = given_axes(draft)
    if axes is None:
        if draft.given(1):
            return
        axes = [axis for axis, extent in enumerate(draft.shape(0)) if extent == 1]
        if len(axes) != draft.rank - len(draft.output().shape):
            raise OpsetBound("axes are not known")
    put_axes(draft, axes, draft.rank)


@rule("Unsqueeze")
def unsqueeze(draft: CanonicalDraft) -> None:
    """Count the axes from the front of the output, ascending."""
    axes = given_axes(draft)
    if axes is not None:
        put_axes(draft, axes, draft.rank + len(axes))


def given_axes(draft: CanonicalDraft) -> list[int] | None:
    """Take the axes from the attribute, or read input 1; None if absent or unknown."""
    axes = draft.pop("axes")
    return list(axes) if axes is not None else draft.integers(1)


def put_axes(draft: CanonicalDraft, axes: list[int], rank: int) -> None:
    """Put the axes into input 1, counted from the front, ascending."""
    draft.put_integers(1, sorted(resolve_axis(axis, rank) for axis in axes))


@rule("Transpose")
def transpose(draft: CanonicalDraft) -> None:
    """Give the permutation; the default reverses the axes."""
    draft.attributes["perm"] = tuple(draft.attributes.get("perm", range(draft.rank - 1, -1, -1)))


@rule("Flatten")
def flatten(draft: CanonicalDraft) -> None:
    """Count the axis from the front."""
    axis = draft.attributes["axis"]
    draft.attributes["axis"] = axis + draft.rank if axis < 0 else axis  # the rank itself is legal here


@rule("Concat")
def concat(draft: CanonicalDraft) -> None:
    """Count the axis from the front; the default was 1 before opset 4."""
    draft.attributes["axis"] = resolve_axis(draft.attributes.get("axis", 1), draft.rank)


@rule("Split")
def split(draft: CanonicalDraft) -> None:
    """Give the length of each part."""
    axis = resolve_axis(draft.attributes.get("axis", 0), draft.rank)
    draft.attributes["axis"] = axis
    lengths = draft.pop("split")
    draft.pop("num_outputs")
    if lengths is None and draft.slot(1).role is Role.ACTIVATION:
        return
    if None not in draft.outputs:
        lengths = [draft.output(index).shape[axis] for index in range(len(draft.outputs))]
    elif lengths is None:
        lengths = draft.integers(1)
    if lengths is None:
        raise OpsetBound("the parts' lengths are not known")
    draft.put_integers(1, lengths)


@rule("Slice")
def slice_(draft: CanonicalDraft) -> None:
    """Give starts, ends, axes and steps: clamped to the dimensions, axes ascending."""
    shape = draft.shape(0)
    starts, ends, axes = draft.pop("starts"), draft.pop("ends"), draft.pop("axes")
    steps: list[int] | None = None
    if starts is None:
        if any(draft.given(slot) and draft.integers(slot) is None for slot in range(1, 5)):
            return  # decided at run time
        starts, ends, axes, steps = (draft.integers(slot) for slot in range(1, 5))
    if starts is None or ends is None:
        raise OpsetBound("starts and ends are not given")
    axes = range(len(starts)) if axes is None else [resolve_axis(axis, len(shape)) for axis in axes]
    ranges = {
        axis: _clamp(start, end, step, shape[axis])
        for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True)
    }
    ordered = sorted(ranges)
    for slot in range(3):
        draft.put_integers((1, 2, 4)[slot], [ranges[axis][slot] for axis in ordered])
    draft.put_integers(3, ordered)


def _clamp(start: int, end: int, step: int, extent: int) -> tuple[int, int, int]:
    """Clamp a range to a dimension; an end before the first element is ``-extent - 1``, as in ONNX."""
    if step > 0:
        first, last, step = slice(start, end, step).indices(extent)
        return first, max(first, last), step
    # ONNX clamps a descending end to the position before the first; Python counts -1 from the back.
    stop = end + extent if end < 0 else end
    first = min(max(start + extent if start < 0 else start, 0), extent - 1)
    last = min(max(stop, -1), extent - 1)
    return first, last if last >= 0 else -extent - 1, step


@rule("Pad")
def pad(draft: CanonicalDraft) -> None:
    """Give the padding of all axes as an input, and a value only if it is used and not zero."""
    shape = draft.shape(0)
    rank = len(shape)
    pads = draft.pop("paddings") or draft.pop("pads")
    value = draft.pop("value")
    if pads is None and draft.slot(1).data is None:
        return  # decided at run time
    pads = list(pads) if pads is not None else draft.integers(1)
    axes = draft.integers(3)
    if draft.given(3):
        if axes is None or pads is None:
            return
        full = [0] * (2 * rank)
        for position, axis in enumerate(resolve_axis(axis, rank) for axis in axes):
            full[axis], full[axis + rank] = pads[position], pads[position + len(axes)]
        pads = full
        draft.drop(3)
    draft.put_integers(1, pads or ())
    if value:
        draft.put(2, np.asarray(value, np.float32).astype(_dtype(draft)))
    fill = draft.array(2)
    if draft.attributes["mode"] != b"constant" or (fill is not None and fill.size == 1 and not fill.any()):
        draft.drop(2)
    elif fill is not None and fill.size == 1:
        draft.put(2, fill.reshape(()))


def _dtype(draft: CanonicalDraft) -> np.dtype[np.generic]:
    names = {"float16": np.float16, "float": np.float32, "double": np.float64}
    kind = names.get(draft.type(0).dtype)
    if kind is None:
        raise OpsetBound("a value of that type had no attribute")
    return np.dtype(kind)


@rule("DepthToSpace", "SpaceToDepth")
def depth(draft: CanonicalDraft) -> None:
    """Remove the mode of SpaceToDepth: at the canonical opset it has only one."""
    if draft.op_type == "SpaceToDepth" and draft.attributes.get("mode") == b"DCR":
        draft.pop("mode")


@rule("CenterCropPad")
def center_crop_pad(draft: CanonicalDraft) -> None:
    """Count the axes from the front."""
    axes = draft.attributes.get("axes", range(draft.rank))
    draft.attributes["axes"] = tuple(resolve_axis(axis, draft.rank) for axis in axes)


# Rules of operators along axes: reductions, gathers, scatters, sorting, quantisation, normalisation.


@rule(*REDUCTIONS)
def reduce(draft: CanonicalDraft) -> None:
    """Give the axes as input 1; without axes, all of them."""
    if "axes" not in draft.attributes and draft.given(1) and draft.integers(1) is None:
        return  # decided at run time
    axes = given_axes(draft)
    if not axes and draft.attributes.get("noop_with_empty_axes", 0):
        draft.drop(1)
        return
    draft.attributes["noop_with_empty_axes"] = 0
    put_axes(draft, list(axes or range(draft.rank)), draft.rank)


@rule(
    "ArgMax", "ArgMin", "Gather", "GatherElements", "LayerNormalization", "LpNormalization", "RMSNormalization",
    "ScatterElements",
)  # fmt: skip
def one_axis(draft: CanonicalDraft) -> None:
    """Count the axis from the front of the first input."""
    draft.attributes["axis"] = resolve_axis(draft.attributes["axis"], draft.rank)


@rule("Scatter")
def scatter(draft: CanonicalDraft) -> None:
    """Rename Scatter to ScatterElements."""
    one_axis(draft)
    draft.op_type = "ScatterElements"


@rule("Compress", "Unique")
def optional_axis(draft: CanonicalDraft) -> None:
    """Count an existing axis from the front; without one the input is flattened."""
    if "axis" in draft.attributes:
        one_axis(draft)


@rule("OneHot")
def one_hot(draft: CanonicalDraft) -> None:
    """Count the axis from the front of the output, and make the depth a scalar."""
    draft.attributes["axis"] = resolve_axis(draft.attributes["axis"], draft.rank + 1)
    depth = draft.array(1)
    if depth is not None and depth.size == 1:
        draft.put(1, depth.reshape(()))


@rule("TopK")
def top_k(draft: CanonicalDraft) -> None:
    """Give the number of elements as an input."""
    draft.attributes["axis"] = resolve_axis(draft.attributes["axis"], draft.rank)
    count = draft.pop("k")
    counts = [count] if count is not None else draft.integers(1)
    if counts is not None:
        draft.put_integers(1, counts)


@rule("CumSum")
def cum_sum(draft: CanonicalDraft) -> None:
    """Make the axis a scalar, counted from the front."""
    axis = draft.integers(1)
    if axis is not None:
        draft.put(1, np.asarray(resolve_axis(axis[0], draft.rank), np.int64))


@rule("Trilu")
def trilu(draft: CanonicalDraft) -> None:
    """Drop the input for the main diagonal, which is the default."""
    diagonal = draft.integers(1)
    if diagonal == [0]:
        draft.drop(1)


@rule("DFT")
def dft(draft: CanonicalDraft) -> None:
    """Give the axis as a scalar input, counted from the front."""
    attribute = draft.pop("axis")
    if attribute is None and draft.given(2) and draft.integers(2) is None:
        return
    axes = [attribute] if attribute is not None else draft.integers(2)
    draft.put(2, np.asarray(resolve_axis(axes[0] if axes else -2, draft.rank), np.int64))


@rule("DequantizeLinear", "QuantizeLinear")
def quantise(draft: CanonicalDraft) -> None:
    """Set the axis to 1 for a single scale, which ignores it; drop attributes that the output type implies."""
    if draft.type(1).elements > 1:
        draft.attributes["axis"] = resolve_axis(draft.attributes.get("axis", 1), draft.rank)
    else:
        draft.attributes["axis"] = 1
    if draft.op_type == "QuantizeLinear":
        if "float8" not in draft.output().dtype:
            draft.attributes["saturate"] = 1
        if draft.given(2):
            draft.attributes["output_dtype"] = 0


@rule("MeanVarianceNormalization")
def normalise_axes(draft: CanonicalDraft) -> None:
    """Count the axes from the front, ascending."""
    axes = draft.attributes.get("axes", (0, 2, 3))
    draft.attributes["axes"] = tuple(sorted(resolve_axis(axis, draft.rank) for axis in axes))


@rule("GroupNormalization")
def group_normalisation(draft: CanonicalDraft) -> None:
    """Refuse scale and bias per group, which opset 21 replaced by scale and bias per channel."""
    if draft.since < 21 and draft.attributes["num_groups"] != draft.shape(0)[1]:
        raise OpsetBound("scale and bias per group")


@rule("BatchNormalization")
def batch_normalisation(draft: CanonicalDraft) -> None:
    """Remove momentum, which has no effect at inference: statistics are inputs."""
    draft.pop("is_test")
    if not draft.pop("spatial", 1):
        raise OpsetBound("statistics per activation")
    if draft.since < 14 and len(draft.outputs) > 1:
        raise OpsetBound("training outputs")
    if not draft.attributes.get("training_mode", 0):
        draft.pop("momentum")
