"""Rules of operators that resample: Resize, its forerunner Upsample, GridSample, RoiAlign."""

from __future__ import annotations

import numpy as np

from .draft import Draft, OpsetBound, resolve_axis
from .registry import rule


@rule("Upsample")
def upsample(draft: Draft) -> None:
    """Upsample is the Resize that counts from the corner and rounds down."""
    scales = draft.pop("scales")
    height, width = draft.pop("height_scale"), draft.pop("width_scale")
    if height is not None and width is not None:
        scales = (1.0, 1.0, height, width)
    if scales is None:
        known = draft.array(1)
        if known is None:
            raise OpsetBound("scales are not known")
        scales = known.tolist()
    mode = draft.attributes["mode"]
    draft.attributes["mode"] = b"linear" if mode == b"bilinear" else mode
    draft.op_type = "Resize"
    draft.slots[1:] = []
    draft.put(2, np.asarray(scales, np.float32))
    draft.attributes["coordinate_transformation_mode"] = b"asymmetric"
    if draft.attributes["mode"] == b"nearest":
        draft.attributes["nearest_mode"] = b"floor"


@rule("Resize")
def resize(draft: Draft) -> None:
    """Sizes are scales where that is exact; attributes that the mode does not read have their defaults."""
    if draft.since < 11:
        _resize_10(draft)
    attributes = draft.attributes
    coordinates = attributes["coordinate_transformation_mode"]
    if coordinates == b"tf_half_pixel_for_nn":
        raise OpsetBound("tf_half_pixel_for_nn was withdrawn")
    if coordinates != b"tf_crop_and_resize":
        draft.drop(1)
        attributes.pop("extrapolation_value", None)
    if attributes["mode"] != b"nearest":
        attributes.pop("nearest_mode", None)
    if attributes["mode"] != b"cubic":
        attributes.pop("cubic_coeff_a", None)
    for slot in (1, 2, 3):  # an empty tensor stands for an absent one
        found = draft.slot(slot).type
        if found is not None and found.elements == 0:
            draft.drop(slot)
    if "axes" in attributes:
        _all_axes(draft)
    stretched = attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    if draft.given(3) and stretched and "axes" not in attributes:
        _say_as_scales(draft)
    if not draft.given(3):
        attributes.pop("keep_aspect_ratio_policy", None)


def _resize_10(draft: Draft) -> None:
    """Opset 10 had no roi and no choice of coordinates: from the corner, rounding down."""
    scales = draft.slot(1)
    draft.drop(1)
    draft.place(2, scales)
    draft.attributes["coordinate_transformation_mode"] = b"asymmetric"
    draft.attributes["nearest_mode"] = b"floor"


def _all_axes(draft: Draft) -> None:
    """Give scales or sizes for every axis, so that ``axes`` can go."""
    shape = draft.shape(0)
    axes = [resolve_axis(axis, len(shape)) for axis in draft.attributes["axes"]]
    if draft.given(1) or draft.attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        draft.attributes["axes"] = tuple(axes)
        return
    scales, sizes = draft.array(2), draft.integers(3)
    if scales is not None:
        full = np.ones(len(shape), np.float32)
        full[axes] = scales
        draft.put(2, full)
    elif sizes is not None:
        extents = list(shape)
        for axis, size in zip(axes, sizes, strict=True):
            extents[axis] = size
        draft.put_integers(3, extents)
    else:
        draft.attributes["axes"] = tuple(axes)
        return
    draft.pop("axes")


def _say_as_scales(draft: Draft) -> None:
    """Say sizes as scales, where a float32 holds each ratio exactly."""
    shape, sizes = draft.shape(0), draft.integers(3)
    if sizes is None or draft.given(1) or 0 in shape:
        return
    scales = np.asarray([size / extent for size, extent in zip(sizes, shape, strict=True)], np.float32)
    if all(float(scale) * extent == size for scale, extent, size in zip(scales, shape, sizes, strict=True)):
        draft.put(2, scales)
        draft.drop(3)


@rule("GridSample")
def grid_sample(draft: Draft) -> None:
    """The modes lost their prefix."""
    modes = {b"bilinear": b"linear", b"bicubic": b"cubic"}
    draft.attributes["mode"] = modes.get(draft.attributes["mode"], draft.attributes["mode"])


@rule("RoiAlign")
def roi_align(draft: Draft) -> None:
    """Before opset 16 pixels were not shifted by a half."""
    if draft.since < 16:
        draft.attributes["coordinate_transformation_mode"] = b"output_half_pixel"
