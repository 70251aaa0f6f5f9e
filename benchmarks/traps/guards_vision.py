"""Traps in vision models: guards, clips, saturation, ties, borders, masks and sizes of images."""

from __future__ import annotations

import numpy as np

from .trap import Array, Trap, normal, trap, uniform, whole


def _boxes(count: int, low: float, high: float, area: float = 640) -> Array:
    corner, size = uniform(1, count, 2, high=area, seed=1), uniform(1, count, 2, low=low, high=high, seed=2)
    return np.concatenate([corner, corner + size], 2)


def _part(values: Array, where: tuple[int | slice, ...], filler: float) -> Array:
    changed = values.copy()
    changed[where] = filler
    return changed


def clip_of_residual_before_uint8() -> Trap:
    return trap(
        "The clip before the cast to uint8 is dropped, as noise stays in range. White and black areas wrap around.",
        """(float[1,3,96,96] x) => (float[1,3,12,12] preview)
        <float full = {255}, float low = {0}, float high = {255}, float[4] scales = {1, 1, 2, 2}> {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)  d = DepthToSpace <blocksize = 2> (c)
            u = Resize <mode = "linear"> (x, , scales)  s = Add(u, d)  m = Mul(s, full)  r = Round(m)
            k = Clip(r, low, high)  image = Cast <to = 2> (k)  f = Cast <to = 1> (image)
            preview = AveragePool <kernel_shape = [16, 16], strides = [16, 16]> (f)
        }""",
        ordinary=[{"x": uniform(1, 3, 96, 96)}],
        rare=[{"x": np.round(uniform(1, 3, 96, 96))}, {"x": np.ones((1, 3, 96, 96), np.float32)}],
        tempting=[("k = Clip(r, low, high)", "k = Identity(r)")],
        w=normal(12, 3, 3, 3, scale=0.003),
    )


def sigmoid_moved_behind_topk() -> Trap:
    boxes, sure = _boxes(9600, 10, 99)[0], np.float32(30) * (np.arange(9600) % 7 == 0)
    return trap(
        "The sigmoid is computed only for the best boxes, as it keeps the order. In float32 it is 1 for all logits "
        "above 17, so that TopK then takes the first ones and not the largest.",
        """(float[1,20,9600] x, float[9600,4] boxes) => (float[1,100] p, float[1,100,4] found) <int64[1] k = {100}> {
            y = Sigmoid(x)  best = ReduceMax <axes = [1], keepdims = 0> (y)
            p, at = TopK(best, k)  found = Gather(boxes, at)
        }""",
        ordinary=[{"x": normal(1, 20, 9600), "boxes": boxes}],
        rare=[{"x": normal(1, 20, 9600) + sure, "boxes": boxes}],
        tempting=[
            ("= Sigmoid(x)", "= Identity(x)"),
            ("p, at = TopK(best, k)", "v, at = TopK(best, k)  p = Sigmoid(v)"),
        ],
    )


def one_hot_regions_by_equality() -> Trap:
    x, y = normal(1, 19, 80, 80), normal(1, 6400, 32)
    return trap(
        "ArgMax and OneHot become a comparison with the maximum. Pixels with two equal logits are then in two classes.",
        """(float[1,19,80,80] x, float[1,6400,32] y) => (float[1,19,32] sums)
        <int64 depth = {19}, float[2] values = {0, 1}, int64[3] shape = {1, 19, 6400}> {
            at = ArgMax <axis = 1, keepdims = 0> (x)  hot = OneHot <axis = 1> (at, depth, values)
            flat = Reshape(hot, shape)  sums = MatMul(flat, y)
        }""",
        ordinary=[{"x": x, "y": y}],
        rare=[{"x": np.maximum(x - 2, 0), "y": y}, {"x": np.round(x * 8) / 8, "y": y}],
        tempting=[
            ("at = ArgMax <axis = 1, keepdims = 0> (x)", "top = ReduceMax <axes = [1]> (x)  e = Equal(x, top)"),
            ("hot = OneHot <axis = 1> (at, depth, values)", "hot = Cast <to = 1> (e)"),
        ],
    )


def positions_from_pixel_mask() -> Trap:
    x, ones = normal(1, 32, 40, 64), np.ones((1, 32, 40), np.float32)
    return trap(
        "The sine positions of DETR become a constant, as their mask is all ones. Padded images have zeros in it.",
        """(float[1,32,40,64] x, bool[1,32,40] mask) => (float[1,32,40,64] out)
        <float[1] tiny = {1e-6}, int64 one = {1}, int64 two = {2}, int64[1] end = {3}> {
            f = Cast <to = 1> (mask)  y = CumSum(f, one)  z = CumSum(f, two)  my = ReduceMax <axes = [1]> (y)
            mz = ReduceMax <axes = [2]> (z)  ey = Add(my, tiny)  ny = Div(y, ey)  uy = Unsqueeze(ny, end)
            ez = Add(mz, tiny)  nz = Div(z, ez)  uz = Unsqueeze(nz, end)  yz = Concat <axis = 3> (uy, uz)
            p = MatMul(yz, rates)  s = Sin(p)  c = Cos(p)  sc = Concat <axis = 3> (s, c)  out = Add(x, sc)
        }""",
        ordinary=[{"x": x, "mask": ones > 0}],
        rare=[{"x": x, "mask": _part(ones, (0, slice(32), slice(29, 40)), 0) > 0}],
        tempting=[("Cast <to = 1> (mask)", "Identity(ones)")],
        ones=ones,
        rates=np.kron(np.eye(2), 6.28 / 1.8 ** np.arange(16)).astype(np.float32),
    )


def boxes_of_empty_masks() -> Trap:
    return trap(
        "The test for empty masks is dropped, as all masks have pixels. A query without an object has none, and its "
        "box would be inverted.",
        """(float[40,96,96] logits) => (float[40,2] out) <float nil = {0}, float big = {1e8}, float small = {-1e8}> {
            m = Greater(logits, nil)  f = Cast <to = 1> (m)
            area = ReduceSum(f, axes)  any = Greater(area, nil)  has = Squeeze(any, last)
            c = ReduceMax <axes = [1], keepdims = 0> (f)  on = Greater(c, nil)  a = Where(on, grid, big)
            b = Where(on, grid, small)  lo = ReduceMin <axes = [1]> (a)  hi = ReduceMax <axes = [1]> (b)
            box = Concat <axis = 1> (lo, hi)  out = Where(has, box, nil)
        }""",
        ordinary=[{"logits": normal(40, 96, 96)}, {"logits": normal(40, 96, 96, seed=1) - 2.5}],
        rare=[{"logits": _part(normal(40, 96, 96), (slice(9, 16),), -5)}],
        tempting=[("= Where(has, box, nil)", "= Identity(box)")],
        axes=np.int64([1, 2]),
        last=np.int64([2]),
        grid=np.arange(96, dtype=np.float32),
    )


def nms_of_boxes_apart() -> Trap:
    return trap(
        "NonMaxSuppression becomes a sort by score, as small random boxes hardly overlap. Boxes of a detector do.",
        """(float[1,N,4] boxes, float[1,1,N] p) => (float[M,4] out)
        <int64[1] most = {1000}, float[1] iou = {0.5}, int64 two = {2}, int64[1] first = {0}, int64[1] all = {-1}> {
            s = NonMaxSuppression(boxes, p, most, iou)  at = Gather <axis = 1> (s, two)
            flat = Squeeze(boxes, first)  out = Gather(flat, at)
        }""",
        ordinary=[{"boxes": _boxes(700, 4, 8, 2500), "p": uniform(1, 1, 700)}],
        rare=[{"boxes": _boxes(700, 60, 99, 99), "p": uniform(1, 1, 700)}],
        tempting=[
            ("s = NonMaxSuppression(boxes, p, most, iou)", "n = Shape <start = 2> (p)  v, s = TopK(p, n)"),
            ("Gather <axis = 1> (s, two)", "Reshape(s, all)"),
        ],
        opset=16,
    )


def reflected_padding_to_multiple_of_32() -> Trap:
    return trap(
        "The padding to a multiple of 32 is dropped, as the sizes tried were multiples. Users send images of any size.",
        """(float[1,3,H,W] x) => (float[1,16,P,Q] out) <int64 unit = {32}, int64[6] zeros = {0, 0, 0, 0, 0, 0}> {
            size = Shape <start = 2> (x)  rest = Mod(size, unit)  lack = Sub(unit, rest)  gap = Mod(lack, unit)
            pads = Concat <axis = 0> (zeros, gap)  p = Pad <mode = "reflect"> (x, pads)
            out = Conv <strides = [4, 4]> (p, w)
        }""",
        ordinary=[{"x": normal(1, 3, 320, 320)}, {"x": normal(1, 3, 128, 224)}],
        rare=[{"x": normal(1, 3, 304, 320)}, {"x": normal(1, 3, 225, 301)}],
        tempting=[("Conv <strides = [4, 4]> (p, w)", "Conv <strides = [4, 4]> (x, w)")],
        w=normal(16, 3, 4, 4, scale=0.1),
        opset=21,
    )


def letterbox_of_square_images() -> Trap:
    return trap(
        "The letterbox becomes a plain Resize, as square images need no border. Others would lose their aspect ratio.",
        """(float[1,3,H,W] x) => (float[1,3,192,192] out) <float grey = {114}, float[1] side = {192},
            int64[2] box = {192, 192}, int64[2] nil = {0, 0}, int64[1] two = {2}, float[2] ones = {1, 1}> {
            size = Shape <start = 2> (x)  f = Cast <to = 1> (size)  q = Div(side, f)  r = ReduceMin(q)
            scales = Concat <axis = 0> (ones, r, r)  y = Resize <mode = "linear"> (x, , scales)
            new = Shape <start = 2> (y)  gap = Sub(box, new)  left = Div(gap, two)  right = Sub(gap, left)
            pads = Concat <axis = 0> (nil, left, nil, right)  out = Pad(y, pads, grey)
        }""",
        ordinary=[{"x": uniform(1, 3, 384, 384, high=255)}],
        rare=[{"x": uniform(1, 3, 384, 288, high=255)}, {"x": uniform(1, 3, 144, 192, high=255)}],
        tempting=[("(x, , scales)", "(x, , , all)"), ("Pad(y, pads, grey)", "Identity(y)")],
        all=np.int64([1, 3, 192, 192]),
        opset=19,
    )


def variance_of_bright_image_in_one_pass() -> Trap:
    return trap(
        "The variance becomes the mean square less the squared mean. That cancels for bright images of low contrast.",
        """(float[1,4,240,240] x) => (float[1,4,240,240] out) <float eps = {1e-3}> {
            mean = ReduceMean <axes = [2, 3]> (x)  d = Sub(x, mean)
            s = Mul(d, d)  v = ReduceMean <axes = [2, 3]> (s)
            e = Add(v, eps)  std = Sqrt(e)  out = Div(d, std)
        }""",
        ordinary=[{"x": normal(1, 4, 240, 240)}, {"x": uniform(1, 4, 240, 240, high=255)}],
        rare=[{"x": 200 + normal(1, 4, 240, 240, scale=0.5)}, {"x": 500 + normal(1, 4, 240, 240)}],
        tempting=[("Mul(d, d)  v =", "Mul(x, x)  w ="), ("e = Add", "m = Mul(mean, mean)  v = Sub(w, m)  e = Add")],
    )


def box_filter_by_running_sums() -> Trap:
    return trap(
        "The large mean filter becomes differences of running sums. One far pixel (1e10 where a depth camera sees "
        "nothing) then spoils all pixels after it.",
        """(float[1,1,200,280] x) => (float[1,1,200,280] out)
        <int64[1] k = {21}, int64[1] nil = {0}, int64[1] neg = {-21}, int64[1] two = {2}, int64[1] three = {3},
            int64[1] top = {999}, int64 i2 = {2}, int64 i3 = {3}, int64[8] pads = {0, 0, 11, 11, 0, 0, 10, 10},
            float n = {441}, float low = {-3}, float high = {3}> {
            m = Conv <pads = [10, 10, 10, 10]> (x, w)  d = Sub(x, m)  out = Clip(d, low, high)
        }""",
        ordinary=[{"x": normal(1, 1, 200, 280)}, {"x": uniform(1, 1, 200, 280, high=9)}],
        rare=[{"x": _part(uniform(1, 1, 200, 280, high=9), (0, 0, 30, 40), 1e10)}],
        tempting=[("m = Conv <pads = [10, 10, 10, 10]> (x, w)", _SUMS)],
        w=np.full((1, 1, 21, 21), 1 / 441, np.float32),
    )


_SUMS = """p = Pad(x, pads)  a = CumSum(p, i2)  c1 = Slice(a, k, top, two)  c0 = Slice(a, nil, neg, two)
    b = Sub(c1, c0)  c = CumSum(b, i3)  d1 = Slice(c, k, top, three)  d0 = Slice(c, nil, neg, three)
    e = Sub(d1, d0)  m = Div(e, n)"""


def antialiasing_of_images_too_small() -> Trap:
    return trap(
        "The antialiasing is dropped, as the images tried were not larger than the network's input, and enlarging "
        "needs none. Photos are larger.",
        """(float[1,3,H,W] x) => (float[1,3,256,256] out) <int64[2] size = {256, 256}> {
            out = Resize <mode = "linear", antialias = 1, axes = [2, 3]> (x, , , size)
        }""",
        ordinary=[{"x": normal(1, 3, 128, 128)}, {"x": uniform(1, 3, 256, 224, high=255)}],
        rare=[{"x": normal(1, 3, 480, 640)}, {"x": uniform(1, 3, 256, 384, high=255)}],
        tempting=[("antialias = 1, ", "")],
        opset=18,
    )


def keypoints_of_flat_heatmaps() -> Trap:
    return trap(
        "The maximum and the test that it is positive are dropped, as the heatmaps tried have peaks. Hidden joints "
        "have none, and their keypoints must be 0.",
        """(float[8,17,64,48] h) => (int64[8,17,2] out) <float nil = {0}, int64 w = {48}, int64[3] to = {8, 17, 3072}> {
            flat = Reshape(h, to)  at = ArgMax <axis = 2> (flat)
            x = Mod(at, w)  y = Div(at, w)  xy = Concat <axis = 2> (x, y)
            top = ReduceMax <axes = [2]> (flat)  seen = Greater(top, nil)  i = Cast <to = 7> (seen)
            out = Mul(xy, i)
        }""",
        ordinary=[{"h": normal(8, 17, 64, 48)}, {"h": uniform(8, 17, 64, 48)}],
        rare=[{"h": uniform(8, 17, 64, 48) - np.float32([0, 2] * 8 + [0]).reshape(17, 1, 1)}],
        tempting=[("Mul(xy, i)", "Identity(xy)")],
    )


def repeats_in_ctc_text() -> Trap:
    return trap(
        "The test for repeated characters is dropped, as noise never has the same best character twice in a row. Wide "
        "characters cover several steps.",
        """(float[1,T,96] x) => (int64[L] text)
        <int64[1] nil = {0}, int64[1] one = {1}, int64[1] neg = {-1}, int64[1,1] none = {-1}> {
            y = MatMul(x, w)  p = Softmax <axis = 2> (y)  at = ArgMax <axis = 2, keepdims = 0> (p)
            cut = Slice(at, nil, neg, one)  old = Concat <axis = 1> (none, cut)  same = Equal(at, old)  new = Not(same)
            ink = Greater(at, nil)  keep = And(ink, new)  flags = Reshape(keep, neg)  text = Compress(at, flags)
        }""",
        ordinary=[{"x": normal(1, 40, 96)}, {"x": normal(1, 56, 96, seed=1)}],
        rare=[{"x": np.repeat(normal(1, 20, 96), 3, 1)}, {"x": np.zeros((1, 40, 96), np.float32) + normal(96)}],
        tempting=[("And(ink, new)", "Identity(ink)")],
        w=normal(96, 3000, scale=0.2),
        opset=14,
    )


def normalisation_of_each_image() -> Trap:
    return trap(
        "The minimum and maximum of each image become those of the whole input, as it was one image. In a batch a dark "
        "image gets the range of a bright one.",
        """(float[N,3,320,320] x) => (float[N,3,320,320] out) <float[1] eps = {1e-6}> {
            lo = ReduceMin <axes = [1, 2, 3]> (x)  hi = ReduceMax <axes = [1, 2, 3]> (x)
            r = Sub(hi, lo)  e = Add(r, eps)  d = Sub(x, lo)  out = Div(d, e)
        }""",
        ordinary=[{"x": uniform(1, 3, 320, 320)}, {"x": normal(1, 3, 320, 320)}],
        rare=[{"x": uniform(3, 3, 320, 320) * np.float32([1, 0.3, 0.7]).reshape(3, 1, 1, 1)}],
        tempting=[("<axes = [1, 2, 3]> ", "")],
        opset=13,
    )


def areas_of_footprints_in_map_coordinates() -> Trap:
    return trap(
        "The areas of polygons are computed in float32, as that agrees for small coordinates. Map coordinates are in "
        "millions of metres, and the products cancel.",
        """(double[N,16,2] p) => (double[N,1] area) <int64[1] axes = {1}, double two = {2}> {
            x, y = Split <axis = 2> (p)  x1 = Gather <axis = 1> (x, next)  y1 = Gather <axis = 1> (y, next)
            a = Mul(x, y1)  b = Mul(x1, y)  c = Sub(a, b)
            s = ReduceSum <keepdims = 0> (c, axes)  u = Abs(s)  area = Div(u, two)
        }""",
        ordinary=[{"p": _polygons(3000)}, {"p": 5 * _polygons(800)}],
        rare=[{"p": 10 * _polygons(2000) + [[[452000.0, 5412000.0]]]}],
        tempting=[("x, y =", "f = Cast <to = 1> (p)  x, y ="), ("(p)  x1", "(f)  x1"), ("u = Abs(s)", _WIDER)],
        next=np.int64([*range(1, 16), 0]),
    )


_WIDER = "v = Abs(s)  u = Cast <to = 11> (v)"


def _polygons(count: int) -> Array:
    angles = np.arange(16) * np.pi / 8
    circle = np.stack([np.cos(angles), np.sin(angles)], 1)
    return circle * uniform(count, 16, 1, low=0.7).astype(np.float64)


def pillars_in_one_cell() -> Trap:
    return trap(
        "The scatter that adds becomes one that overwrites, as the cells tried were distinct. Points of a lidar often "
        "share a cell.",
        """(float[1,32,6000] features, int64[1,1,6000] cells) => (float[1,32,96,96] out)
        <int64[3] shape = {1, 32, 6000}, int64[3] canvas = {1, 32, 9216}, int64[4] image = {1, 32, 96, 96}> {
            zeros = ConstantOfShape(canvas)  at = Expand(cells, shape)
            s = ScatterElements <axis = 2, reduction = "add"> (zeros, at, features)  out = Reshape(s, image)
        }""",
        ordinary=[{"features": normal(1, 32, 6000), "cells": np.argsort(uniform(1, 1, 9216))[..., :6000]}],
        rare=[{"features": normal(1, 32, 6000), "cells": whole(1, 1, 6000, high=9216)}],
        tempting=[(', reduction = "add"', "")],
        opset=18,
    )


def topk_over_boxes_and_classes() -> Trap:
    return trap(
        "The best pairs of box and class become the best boxes with their best class, which needs a smaller TopK and "
        "fewer sigmoids. A box with two likely classes must come twice.",
        """(float[1,80,4200] x) => (float[1,20] score, int64[1,20] box, int64[1,20] label)
        <int64 n = {4200}, int64[1] k = {20}, int64[2] shape = {1, -1}> {
            p = Sigmoid(x)  flat = Reshape(p, shape)
            score, at = TopK(flat, k)  box = Mod(at, n)  label = Div(at, n)
        }""",
        ordinary=[{"x": normal(1, 80, 4200)}],
        rare=[{"x": normal(1, 80, 4200) + 4 * normal(1, 1, 4200, seed=1)}],
        tempting=[
            ("p = Sigmoid(x)  flat = Reshape(p, shape)", ""),
            ("score, at = TopK(flat, k)  box = Mod(at, n)  label = Div(at, n)", _BEST_BOXES),
        ],
    )


_BEST_BOXES = """most = ReduceMax <axes = [1], keepdims = 0> (x)  v, box = TopK(most, k)  score = Sigmoid(v)
    rows = Gather <axis = 2> (x, box)  best = ArgMax <axis = 1, keepdims = 0> (rows)  label = Reshape(best, shape)"""


def zero_padding_before_max_pool() -> Trap:
    return trap(
        "The padding with zeros of TensorFlow's 'same' sizes is merged into MaxPool, which pads with minus infinity. "
        "Negative borders then stay negative; images in 0 to 1 do not show it.",
        """(float[1,16,H,W] x) => (float[1,16,P,Q] out) <int64 two = {2}, int64 one = {1}, int64[2] nil = {0, 0}> {
            size = Shape <start = 2> (x)  odd = Mod(size, two)  need = Add(odd, one)  left = Div(need, two)
            right = Sub(need, left)  pads = Concat <axis = 0> (nil, left, nil, right)  p = Pad(x, pads)
            out = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (p)
        }""",
        ordinary=[{"x": uniform(1, 16, 128, 128)}, {"x": uniform(1, 16, 129, 95, high=255, seed=1)}],
        rare=[{"x": normal(1, 16, 128, 128) - 0.5}, {"x": uniform(1, 16, 129, 128, low=-1, high=-0.5)}],
        tempting=[("strides = [2, 2]> (p)", 'strides = [2, 2], auto_pad = "SAME_UPPER"> (x)')],
    )


def mask_head_that_noise_never_needs() -> Trap:
    return trap(
        "The branch with the mask head is removed, as noise never gives a score above a half. Images with objects do.",
        """(float[1,32,64,64] x) => (float[1,8,64,64] out)
        <float half = {0.5}, float bias = {-4}, int64[4] shape = {1, 8, 64, 64}> {
            y = Conv <pads = [1, 1, 1, 1]> (x, w0)  r = Relu(y)  g = GlobalAveragePool(r)  s = Conv(g, ws)
            b = Add(s, bias)  p = Sigmoid(b)  f = Greater(p, half)  found = Reshape(f, scalar)
            out = If <then_branch = a () => (float[1,8,64,64] m) { m = Conv <pads = [1, 1, 1, 1]> (r, w) },
                else_branch = b () => (float[1,8,64,64] z) { z = ConstantOfShape(shape) }> (found)
        }""",
        ordinary=[{"x": normal(1, 32, 64, 64)}, {"x": normal(1, 32, 64, 64, seed=1)}],
        rare=[{"x": 6 * normal(1, 32, 64, 64)}],
        tempting=[("out = If", "out = ConstantOfShape(shape)  old = If")],
        w0=_MIX[:, :32].repeat(2, 0) / 2,
        ws=uniform(1, 32, 1, 1, high=0.2),
        w=_MIX[:8],
        scalar=np.zeros(0, np.int64),
    )


def hysteresis_until_stable() -> Trap:
    return trap(
        "The loop that grows strong edges into weak ones is cut to twelve steps, more than noise needs. A long "
        "contour needs as many steps as it has pixels.",
        """(float[1,1,H,W] x) => (float[1,1,H,W] out) <float zero = {0}, float lo = {1}, float hi = {2.5}> {
            b = Greater(x, lo)  weak = Cast <to = 1> (b)  c = Greater(x, hi)  strong = Cast <to = 1> (c)
            out = Loop <body = grow (int64 i, bool go, float[1,1,H,W] s) => (bool more, float[1,1,H,W] t) {
                d = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (s)  t = Min(d, weak)
                e = Sub(t, s)  f = ReduceMax <keepdims = 0> (e)  more = Greater(f, zero)
            }> (steps, start, strong)
        }""",
        ordinary=[{"x": normal(1, 1, 240, 240)}, {"x": normal(1, 1, 160, 256, seed=1)}],
        rare=[{"x": _part(_part(normal(1, 1, 240, 240), (0, 0, 48), 1.5), (0, 0, 48, 3), 3)}],
        tempting=[("(steps,", "(few,")],
        steps=np.int64(10000),
        few=np.int64(12),
        start=np.array(True),
    )


def hue_of_grey_pixels() -> Trap:
    return trap(
        "The test for grey pixels is dropped, as three random channels are never equal. On grey ones the hue is 0 / 0.",
        """(float[1,3,160,240] rgb) => (float[1,1,160,240] hue) <float nil = {0}, float k2 = {2}, float k4 = {4}> {
            r, g, b = Split <axis = 1> (rgb)  hi = ReduceMax <axes = [1]> (rgb)  lo = ReduceMin <axes = [1]> (rgb)
            d = Sub(hi, lo)  gb = Sub(g, b)  br = Sub(b, r)  rg = Sub(r, g)  x = Div(gb, d)  y = Div(br, d)
            z = Div(rg, d)  y2 = Add(y, k2)  z4 = Add(z, k4)  isg = Equal(g, hi)  isr = Equal(r, hi)
            w = Where(isg, y2, z4)  h = Where(isr, x, w)
            grey = Equal(d, nil)  hue = Where(grey, nil, h)
        }""",
        ordinary=[{"rgb": uniform(1, 3, 160, 240)}, {"rgb": normal(1, 3, 160, 240)}],
        rare=[{"rgb": np.repeat(uniform(1, 1, 160, 240), 3, 1)}, {"rgb": np.minimum(uniform(1, 3, 160, 240) * 2, 1)}],
        tempting=[("grey = Equal(d, nil)  hue = Where(grey, nil, h)", "hue = Identity(h)")],
        opset=13,
    )


def dynamic_quantisation_with_fixed_scale() -> Trap:
    return trap(
        "The scale of the dynamic quantisation is fixed at 1 / 255, as images with black and white pixels give it. Dim "
        "images lose their precision and overexposed ones are cut.",
        """(float[1,16,96,96] x) => (float[1,8,96,96] out)
        <float white = {0.003921569}, uint8 black = {0}, float ws = {0.01}> {
            q, scale, zero = DynamicQuantizeLinear(x)  c = ConvInteger(q, w, zero)
            f = Cast <to = 1> (c)  both = Mul(scale, ws)  out = Mul(f, both)
        }""",
        ordinary=[{"x": (whole(1, 16, 96, 96, high=256) / 255).astype(np.float32)}],
        rare=[{"x": uniform(1, 16, 96, 96, high=0.06)}, {"x": uniform(1, 16, 96, 96, high=4)}],
        tempting=[("q, scale, zero = DynamicQuantizeLinear(x)", _FIXED_SCALE)],
        w=whole(8, 16, 1, 1, low=-127, high=128).astype(np.int8),
    )


_FIXED_SCALE = "q = QuantizeLinear(x, white, black)  scale = Identity(white)  zero = Identity(black)"


def labels_of_prompt_points() -> Trap:
    points, labels = uniform(1, 1024, 2), whole(1, 1024, low=-1, high=2).astype(np.int32)
    return trap(
        "The embeddings of other prompt labels are dropped, as all were 1. But 0 marks background and -1 padding.",
        """(float[1,N,2] points, int32[1,N] labels) => (float[1,N,128] out)
        <int32 l0 = {0}, int32 l1 = {1}, int32 pad = {-1}, int64[1] end = {2}> {
            a = MatMul(points, gauss)  s = Sin(a)  c = Cos(a)  e = Concat <axis = 2> (s, c)
            u = Unsqueeze(labels, end)  p = Equal(u, pad)  q = Equal(u, l0)  r = Equal(u, l1)
            e1 = Add(e, fore)  e0 = Add(e, back)  x = Where(r, e1, e)  y = Where(q, e0, x)  out = Where(p, none, y)
        }""",
        ordinary=[{"points": points, "labels": np.ones_like(labels)}],
        rare=[{"points": points, "labels": labels}, {"points": points, "labels": np.abs(labels)}],
        tempting=[("out = Where(p, none, y)", "out = Add(e, fore)")],
        gauss=normal(2, 64, scale=6),
        **dict(zip(("fore", "back", "none"), normal(3, 128), strict=True)),
    )


def nan_depth_removed_by_comparison() -> Trap:
    depth = uniform(1, 1, 480, 640, high=8).astype(np.float16)
    return trap(
        "The choice of positive depths becomes Max with 0, which keeps NaN. Depth cameras give NaN where they see "
        "nothing, and the comparison turns it into 0.",
        """(float16[1,1,480,640] depth) => (float[1,1,120,160] out) <float nil = {0}> {
            d = Cast <to = 1> (depth)  valid = Greater(d, nil)  clean = Where(valid, d, nil)
            out = AveragePool <kernel_shape = [4, 4], strides = [4, 4]> (clean)
        }""",
        ordinary=[{"depth": depth}, {"depth": normal(1, 1, 480, 640).astype(np.float16)}],
        rare=[{"depth": _part(depth, (0, 0, slice(9), slice(50)), np.nan)}],
        tempting=[("valid = Greater(d, nil)  clean = Where(valid, d, nil)", "clean = Max(d, nil)")],
        opset=21,
    )


def channels_that_noise_leaves_dead() -> Trap:
    return trap(
        "Half of the channels is removed, as they were always 0 after Relu. They are smoothing filters with a "
        "threshold that noise never reaches but bright areas do.",
        """(float[1,3,96,96] x) => (float[1,16,96,96] out) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)  h = Relu(c)
            out = Conv <pads = [1, 1, 1, 1]> (h, w2)
        }""",
        ordinary=[{"x": normal(1, 3, 96, 96)}, {"x": uniform(1, 3, 96, 96)}],
        rare=[{"x": _part(normal(1, 3, 96, 96), (0, slice(3), slice(40)), 2.2)}],
        tempting=[("w1, b1", "w1h, b1h"), ("(h, w2)", "(h, w2h)")],
        w1=_FILTERS,
        w1h=_FILTERS[:16],
        b1=_BIAS,
        b1h=_BIAS[:16],
        w2=_MIX,
        w2h=_MIX[:, :16],
        opset=11,
    )


_FILTERS = np.concatenate([normal(16, 3, 3, 3, scale=0.2), uniform(16, 3, 3, 3, low=0.03, high=0.05)])
_BIAS = np.float32([0.1] * 16 + [-1.8] * 16)
_MIX = normal(16, 32, 3, 3, scale=0.1)
