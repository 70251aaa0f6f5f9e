"""Rules of operators along axes: reductions, gathers, scatters, sorting, quantisation, normalisation."""

from __future__ import annotations

import numpy as np

from ..operators import REDUCTIONS
from .draft import Draft, OpsetBound, resolve_axis
from .layout import given_axes, put_axes
from .registry import rule


@rule(*REDUCTIONS)
def reduce(draft: Draft) -> None:
    """The axes are given as input 1; all of them where none were given."""
    if "axes" not in draft.attributes and draft.given(1) and draft.integers(1) is None:
        return  # decided at run time
    rank = len(draft.shape(0))
    axes = given_axes(draft)
    if not axes and draft.attributes.get("noop_with_empty_axes", 0):
        draft.drop(1)
        return
    draft.attributes["noop_with_empty_axes"] = 0
    put_axes(draft, list(axes or range(rank)), rank)


@rule("ArgMax", "ArgMin", "Gather", "GatherElements", "LpNormalization", "ScatterElements")
def one_axis(draft: Draft) -> None:
    """The axis is counted from the front of the first input."""
    draft.attributes["axis"] = resolve_axis(draft.attributes["axis"], len(draft.shape(0)))


@rule("Scatter")
def scatter(draft: Draft) -> None:
    """Scatter is ScatterElements' first name."""
    one_axis(draft)
    draft.op_type = "ScatterElements"


@rule("Compress", "Unique")
def optional_axis(draft: Draft) -> None:
    """The axis, where there is one, is counted from the front; without one the input is flat."""
    if "axis" in draft.attributes:
        one_axis(draft)


@rule("OneHot")
def one_hot(draft: Draft) -> None:
    """The axis is counted from the front of the output; depth is a scalar."""
    draft.attributes["axis"] = resolve_axis(draft.attributes["axis"], len(draft.shape(0)) + 1)
    depth = draft.array(1)
    if depth is not None and depth.size == 1:
        draft.put(1, depth.reshape(()))


@rule("TopK")
def top_k(draft: Draft) -> None:
    """The number of elements is an input."""
    draft.attributes["axis"] = resolve_axis(draft.attributes["axis"], len(draft.shape(0)))
    count = draft.pop("k")
    known = [count] if count is not None else draft.integers(1)
    if known is not None:
        draft.put_integers(1, known)


@rule("CumSum")
def cum_sum(draft: Draft) -> None:
    """The axis is a scalar, counted from the front."""
    axis = draft.integers(1)
    if axis is not None:
        draft.put(1, np.asarray(resolve_axis(axis[0], len(draft.shape(0))), np.int64))


@rule("Trilu")
def trilu(draft: Draft) -> None:
    """The main diagonal needs no input."""
    diagonal = draft.integers(1)
    if diagonal == [0]:
        draft.drop(1)


@rule("DFT")
def dft(draft: Draft) -> None:
    """The axis is a scalar input, counted from the front."""
    rank = len(draft.shape(0))
    attribute = draft.pop("axis")
    if attribute is None and draft.given(2) and draft.integers(2) is None:
        return
    given = [attribute] if attribute is not None else draft.integers(2)
    draft.put(2, np.asarray(resolve_axis(given[0] if given else -2, rank), np.int64))


@rule("DequantizeLinear", "QuantizeLinear")
def quantise(draft: Draft) -> None:
    """The axis matters only where scales run along one; the output's type says the rest."""
    if draft.type(1).elements > 1:
        draft.attributes["axis"] = resolve_axis(draft.attributes.get("axis", 1), len(draft.shape(0)))
    else:
        draft.attributes["axis"] = 1
    if draft.op_type == "QuantizeLinear":
        if "float8" not in draft.output().dtype:
            draft.attributes["saturate"] = 1
        if draft.given(2):
            draft.attributes["output_dtype"] = 0


@rule("LayerNormalization", "RMSNormalization")
def normalise(draft: Draft) -> None:
    """The first normalised axis is counted from the front."""
    one_axis(draft)


@rule("MeanVarianceNormalization")
def normalise_axes(draft: Draft) -> None:
    """The axes are counted from the front, ascending."""
    rank = len(draft.shape(0))
    axes = draft.attributes.get("axes", (0, 2, 3))
    draft.attributes["axes"] = tuple(sorted(resolve_axis(axis, rank) for axis in axes))


@rule("GroupNormalization")
def group_normalisation(draft: Draft) -> None:
    """Before opset 21 scale and bias were per group, since then per channel."""
    if draft.since < 21 and draft.attributes["num_groups"] != draft.shape(0)[1]:
        raise OpsetBound("scale and bias per group")


@rule("BatchNormalization")
def batch_normalisation(draft: Draft) -> None:
    """At inference: statistics are inputs, and momentum has no effect."""
    draft.pop("is_test")
    if not draft.pop("spatial", 1):
        raise OpsetBound("statistics per activation")
    if draft.since < 14 and len(draft.outputs) > 1:
        raise OpsetBound("training outputs")
    if not draft.attributes.get("training_mode", 0):
        draft.pop("momentum")
