"""Traps for graph optimisers: recognised functions, merged twins, dropped branches, reordered and fused steps."""

from __future__ import annotations

import numpy as np

from .trap import Array, Trap, normal, trap, uniform, whole


def _swish(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def timestep_embedding_between_steps() -> Trap:
    freqs = np.exp(-np.arange(32, dtype=np.float32) / 32 * np.float32(np.log(1e4)))
    first, second = normal(64, 512, scale=0.1), normal(512, 512, scale=0.05, seed=1)
    angles = np.arange(1000, dtype=np.float32)[:, None] * freqs
    table = _swish(np.concatenate([np.sin(angles), np.cos(angles)], 1) @ first) @ second
    embedding = """u = Unsqueeze(t, last) r = Mul(u, freqs) s = Sin(r) c = Cos(r) e = Concat <axis = 1> (s, c)
        h = MatMul(e, first) g = Sigmoid(h) a = Mul(h, g) out = MatMul(a, second)"""
    return trap(
        "The embedding of the time and its network become a table of 1000 rows, because samplers pass whole steps. "
        "Schedules of Karras and distilled samplers pass fractions.",
        "(float[N] t) => (float[N,512] out) { " + embedding + " }",
        ordinary=[{"t": whole(64, high=1000).astype(np.float32)}, {"t": np.float32([999, 0])}],
        rare=[{"t": np.geomspace(0.002, 998, 64, dtype=np.float32)}],
        tempting=[(embedding, "i = Cast <to = 7> (t) out = Gather(table, i)")],
        last=np.int64([1]), freqs=freqs, first=first, second=second, table=table,
    )  # fmt: skip


def layer_norm_with_floored_deviation() -> Trap:
    tail = "q = Mul(d, d) v = ReduceMean <axes = [-1]> (q) s = Sqrt(v) f = Max(s, floor) z = Div(d, f)"
    head = "m = ReduceMean <axes = [-1]> (x) d = Sub(x, m)"
    return trap(
        "The steps are fused to LayerNormalization with a small epsilon, because no ordinary frame is near the floor. "
        "Frames of digital silence have a deviation below the floor and are not to be blown up.",
        "(float[N,300,384] x) => (float[N,300,384] out) { " + head + tail + " y = Mul(z, gain) out = Add(y, bias) }",
        ordinary=[{"x": normal(2, 300, 384)}, {"x": uniform(1, 300, 384)}],
        rare=[{"x": normal(1, 300, 384, scale=1e-4)}, {"x": normal(1, 300, 384) * (np.arange(384) == 7) * 0.01}],
        tempting=[(head + tail + " y = Mul(z, gain) out = Add(y, bias)",
                   "out = LayerNormalization <axis = -1, epsilon = 0.0000000001> (x, gain, bias)")],
        floor=np.float32(0.01), gain=uniform(384, low=0.5, high=1.5), bias=normal(384, scale=0.1),
    )  # fmt: skip


def instance_norm_with_unbiased_variance() -> Trap:
    steps = """m = ReduceMean <axes = [2, 3]> (x) d = Sub(x, m) q = ReduceSumSquare <axes = [2, 3]> (d)
        s = Shape <start = 2> (x) n = ReduceProd(s) less = Sub(n, one) f = Cast <to = 1> (less)
        v = Div(q, f) e = Add(v, eps) r = Sqrt(e) z = Div(d, r)"""
    return trap(
        "The content's part of AdaIN is fused to InstanceNormalization, because both agree on large maps. "
        "The variance is the unbiased one of torch.var, so that small maps differ by per cents.",
        "(float[N,16,H,W] x, float[N,16,1,1] dev, float[N,16,1,1] mean) => (float[N,16,H,W] out) { " + steps +
        " y = Mul(z, dev) out = Add(y, mean) }",
        ordinary=[{"x": normal(1, 16, 96, 96), "dev": uniform(1, 16, 1, 1), "mean": normal(1, 16, 1, 1)}],
        rare=[{"x": normal(1, 16, h, w), "dev": uniform(1, 16, 1, 1), "mean": normal(1, 16, 1, 1)}
              for h, w in ((4, 4), (1, 12))],
        tempting=[(steps, "z = InstanceNormalization <epsilon = 0.00001> (x, ones, zeros)")],
        one=np.int64([1]), eps=np.float32(1e-5), ones=np.ones(16, np.float32), zeros=np.zeros(16, np.float32),
    )  # fmt: skip


def resizes_that_differ_at_length_one() -> Trap:
    second = """b = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"> (x, , , sizes)"""
    return trap(
        "Two resizes of the same picture to the same size are merged, because their coordinates are equal. "
        "pytorch_half_pixel reads the first pixel and half_pixel the middle one where the output has length one.",
        """(uint8[1,3,H,W] image, int64[4] sizes) => (float[1,8,h,w] left, float[1,8,h,w] right) {
            x = Cast <to = 1> (image)
            a = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, , , sizes)
            """ + second + " left = Conv(a, one) right = Conv(b, other) }",
        ordinary=[{"image": whole(1, 3, 96, 96, high=256).astype(np.uint8), "sizes": np.int64([1, 3, *size])}
                  for size in ((160, 128), (48, 64))],
        rare=[{"image": whole(1, 3, 64, 96, high=256).astype(np.uint8), "sizes": np.int64([1, 3, 1, 192])}],
        tempting=[(second, ""), ("Conv(b", "Conv(a")],
        opset=13, one=normal(8, 3, 1, 1), other=normal(8, 3, 1, 1, seed=1),
    )  # fmt: skip


def expert_of_outlier_tokens() -> Trap:
    up, down = normal(4, 64, 128, scale=0.1), normal(4, 128, 64, scale=0.1, seed=1)
    fifth, outliers = np.arange(64) == 5, np.arange(256)[:, None] % 16 == 0
    return trap(
        "The fourth expert is dropped, because the router never chose it. "
        "It serves the tokens with a massive activation, as separators have.",
        """(float[T,64] x) => (float[T,64] out) { l = MatMul(x, router) b = Add(l, bias)
            top = ArgMax <axis = 1, keepdims = 0> (b) hot = OneHot <axis = 0> (top, count, onoff)
            pick = Unsqueeze(hot, last) h = MatMul(x, up) a = Relu(h) y = MatMul(a, down) p = Mul(y, pick)
            out = ReduceSum <keepdims = 0> (p, first) }""",
        ordinary=[{"x": normal(256, 64)}, {"x": uniform(200, 64, low=-1, seed=1)}],
        rare=[{"x": np.where(outliers & fifth, np.float32(8), normal(256, 64, seed=3))}],
        tempting=[("count", "fewer"), ("up)", "up3)"), ("down)", "down3)")],
        router=np.where(fifth[:, None] & (np.arange(4) == 3), np.float32(8), normal(64, 4, scale=0.1)),
        bias=np.float32([0, 0, 0, -40]), count=np.int64([4]), fewer=np.int64([3]), onoff=np.float32([0, 1]),
        last=np.int64([2]), first=np.int64([0]), up=up, up3=up[:3], down=down, down3=down[:3],
    )  # fmt: skip


def sinkhorn_until_converged() -> Trap:
    loop = """out = Loop <body = step (int64 i, bool go, float[224,224] p) => (bool more, float[224,224] q) {
        a = ReduceSum(p, row) b = Div(p, a) c = ReduceSum(b, column) q = Div(b, c)
        g = ReduceSum <keepdims = 0> (q, row) e = Sub(g, one) f = Abs(e) w = ReduceMax <keepdims = 0> (f)
        more = Greater(w, tol) }> (limit, yes, k0)"""
    rounds = "a{0} = ReduceSum(k{0}, row) b{0} = Div(k{0}, a{0}) c{0} = ReduceSum(b{0}, column) k{1} = Div(b{0}, c{0}) "
    return trap(
        "The loop is unrolled to three rounds without the test, because ordinary costs have converged by then. "
        "Matchings with sharp costs need many more rounds.",
        "(float[224,224] cost) => (float[224,224] out) { n = Neg(cost) k0 = Exp(n) " + loop + " }",
        ordinary=[{"cost": normal(224, 224, scale=0.5, seed=1)}, {"cost": uniform(224, 224)}],
        rare=[{"cost": 40 * np.abs(uniform(224, 1) - uniform(1, 224, seed=1))}, {"cost": normal(224, 224, scale=8)}],
        tempting=[(loop, "".join(rounds.format(i, i + 1) for i in range(3)) + "out = Identity(k3)")],
        opset=13, row=np.int64([1]), column=np.int64([0]), one=np.float32(1), tol=np.float32(1e-6),
        limit=np.int64(100), yes=np.bool_(True),
    )  # fmt: skip


def limiter_with_release() -> Trap:
    steps = """last, y = Scan <num_scan_inputs = 1, body = step (float[1] held, float[160] s)
        => (float[1] e, float[160] o) { a = Abs(s) m = ReduceMax <axes = [0]> (a) r = Mul(held, release)
        e = Max(m, r) g = Max(e, one) o = Div(s, g) }> (quiet, x)"""
    loud = uniform(200, 160, low=-0.9, high=0.9, seed=2)
    loud[20, 40:60] *= 4
    return trap(
        "The limiter is dropped, because its gain stays one for sound within the range. "
        "After a peak above one, the held level makes the following frames softer.",
        "(float[200,160] x) => (float[200,64] out) { " + steps + " f = MatMul(y, bank) p = Mul(f, f) out = Sqrt(p) }",
        ordinary=[{"x": uniform(200, 160, low=-1)}, {"x": normal(200, 160, scale=0.1, seed=1)}],
        rare=[{"x": loud}],
        tempting=[(steps, ""), ("(y, bank)", "(x, bank)")],
        opset=16, quiet=np.zeros(1, np.float32), release=np.float32(0.95), one=np.float32([1]),
        bank=normal(160, 64, scale=0.1),
    )  # fmt: skip


def recurrence_with_strong_decay() -> Trap:
    steps = """last, h = Scan <num_scan_inputs = 2, body = step (float[64] p, float[64] d, float[64] i)
        => (float[64] n, float[64] o) { k = Mul(p, d) n = Add(k, i) o = Identity(n) }> (start, a, b)"""
    return trap(
        "The gated recurrence becomes two cumulative sums, the second one divided by the products of the decays. "
        "Where gates close, these products leave the range of float32.",
        "(float[T,64] gate, float[T,64] x) => (float[T,64] h) { s = Add(gate, shift) a = Sigmoid(s) c = Sub(one, a) "
        "b = Mul(c, x) " + steps + " }",
        ordinary=[{"gate": normal(t, 64), "x": normal(t, 64, seed=1)} for t in (256, 64)],
        rare=[{"gate": normal(256, 64) - np.float32(6), "x": normal(256, 64, seed=1)}],
        tempting=[(steps, """l = Log(a) q = CumSum(l, zero) e = Exp(q) r = Div(b, e) t = CumSum(r, zero)
            h = Mul(t, e)""")],
        shift=np.float32(4), one=np.float32(1), start=np.zeros(64, np.float32), zero=np.int64(0),
    )  # fmt: skip


def largest_swish_of_all_points() -> Trap:
    steps = "g = Sigmoid(h) a = Mul(h, g) f = ReduceMax <axes = [1], keepdims = 0> (a)"
    return trap(
        "The maximum over the points moves before the activation, because in ordinary clouds the largest is positive. "
        "Swish falls below zero, and clouds that lie on one side have channels with negative points only.",
        "(float[N,P,3] points) => (float[N,40] out) { l = MatMul(points, weight) h = Add(l, bias) " + steps +
        " out = MatMul(f, head) }",
        ordinary=[{"points": normal(1, 1024, 3)}, {"points": uniform(2, 400, 3, low=-2, high=2, seed=1)}],
        rare=[{"points": normal(1, 512, 3, scale=0.1) + np.float32([1, 0.5, 1])},
              {"points": uniform(2, 600, 3, low=1, high=3)}],
        tempting=[(steps, "m = ReduceMax <axes = [1], keepdims = 0> (h) g = Sigmoid(m) f = Mul(m, g)")],
        opset=12, weight=normal(3, 256, scale=2), bias=normal(256, scale=0.1, seed=1),
        head=normal(256, 40, scale=0.1, seed=2),
    )  # fmt: skip


def distances_far_from_the_origin() -> Trap:
    steps = """u = Unsqueeze(a, mid) w = Unsqueeze(b, front) d = Sub(u, w)
        q = ReduceSumSquare <axes = [2], keepdims = 0> (d)"""
    site = np.float64([4186000.0, 835000.0, 4723000.0])
    return trap(
        "The squared distances become |a|^2 + |b|^2 - 2ab with a matrix product. "
        "Laser scans in geocentric metres lose all digits in that difference.",
        "(double[P,3] a, double[Q,3] b) => (double[P] near, double[P,Q] far) { " + steps +
        " far = Sqrt(q) near = ReduceMin <axes = [1], keepdims = 0> (far) }",
        ordinary=[{"a": normal(300, 3).astype(float), "b": normal(200, 3, seed=1).astype(float)}],
        rare=[{"a": site + uniform(300, 3), "b": site + uniform(200, 3, seed=1)}],
        tempting=[(steps, """s = ReduceSumSquare <axes = [1]> (a) r = ReduceSumSquare <axes = [1]> (b)
            t = Transpose(r) k = Transpose(b) p = MatMul(a, k) m = Mul(p, two) e = Add(s, t) f = Sub(e, m)
            q = Max(f, none)""")],
        mid=np.int64([1]), front=np.int64([0]), two=np.float64(2), none=np.float64(0),
    )  # fmt: skip


def logits_capped_by_tanh() -> Trap:
    steps = "d = Div(l, cap) t = Tanh(d) out = Mul(t, cap)"
    return trap(
        "The soft cap of the logits is dropped, because tanh is linear for all values seen. "
        "Confident logits, which trained states of large norm give, come near the cap.",
        "(float[S,64] x) => (float[S,4000] out) { n = MatMul(x, mix) r = Add(x, n) l = MatMul(r, vocabulary) " + steps +
        " }",
        ordinary=[{"x": normal(40, 64)}, {"x": uniform(16, 64)}],
        rare=[{"x": normal(40, 64, scale=50)}, {"x": normal(1, 64, scale=20)}],
        tempting=[(" l = MatMul(r, vocabulary)", " out = MatMul(r, vocabulary)"), (steps, "")],
        opset=18, mix=normal(64, 64, scale=0.05), cap=np.float32(30), vocabulary=normal(64, 4000, scale=0.008, seed=1),
    )  # fmt: skip


def same_padding_of_odd_sizes() -> Trap:
    steps = """s = Shape(x) hw = Slice(s, two, four) u = Add(hw, one) n = Div(u, two) m = Sub(n, one) t = Mul(m, two)
        r = Add(t, three) d = Sub(r, hw) need = Max(d, zero) low = Div(need, two) high = Sub(need, low)
        pads = Concat <axis = 0> (none, low, none, high) p = Pad(x, pads) y = Conv <strides = [2, 2]> (p, w)"""
    return trap(
        "The padding that TensorFlow's SAME computes from the size is baked into the convolution, "
        "because all sizes tried gave the same. Odd sizes are padded on both sides.",
        "(float[N,3,H,W] x) => (float[N,16,h,v] out) { " + steps + " out = Relu(y) }",
        ordinary=[{"x": normal(1, 3, 224, 224)}, {"x": uniform(2, 3, 160, 224)}],
        rare=[{"x": normal(1, 3, 161, 193)}, {"x": normal(1, 3, 192, 127)}],
        tempting=[(steps, "y = Conv <strides = [2, 2], pads = [0, 0, 1, 1]> (x, w)")],
        opset=13, two=np.int64([2]), four=np.int64([4]), one=np.int64([1]), three=np.int64([3]), zero=np.int64([0]),
        none=np.int64([0, 0]), w=normal(16, 3, 3, 3, scale=0.2),
    )  # fmt: skip


def cache_filled_in_part() -> Trap:
    steps = "ko = Slice(pk, zero, filled, two) vo = Slice(pv, zero, filled, two)"
    sizes = {"q": 1, "k": 1, "v": 1, "pk": 512, "pv": 512}
    feeds = {n: normal(1, 8, s, 64, seed=i).astype(np.float16) for i, (n, s) in enumerate(sizes.items())}
    return trap(
        "The slices of the cache are dropped, because ordinary inputs fill it. "
        "While a text is short, the rest of the cache holds stale rows.",
        """(float16[1,8,1,64] q, float16[1,8,512,64] pk, float16[1,8,512,64] pv, float16[1,8,1,64] k,
            float16[1,8,1,64] v, int64[1] filled) => (float16[1,8,1,64] out) { """ + steps + """
            ka = Concat <axis = 2> (ko, k) va = Concat <axis = 2> (vo, v) t = Transpose <perm = [0, 1, 3, 2]> (ka)
            s = MatMul(q, t) c = Mul(s, scale) p = Softmax <axis = -1> (c) out = MatMul(p, va) }""",
        ordinary=[{**feeds, "filled": np.int64([512])}],
        rare=[{**feeds, "filled": np.int64([40])}, {**feeds, "filled": np.int64([0])}],
        tempting=[(steps, ""), ("(ko", "(pk"), ("(vo", "(pv")],
        opset=13, zero=np.int64([0]), two=np.int64([2]), scale=np.float16(0.125),
    )  # fmt: skip


def delays_of_microphones() -> Trap:
    return trap(
        "The gather by elements becomes one of rows, because the indices of all microphones are equal. "
        "They are only for sound from the front.",
        """(float[16000,8] x, int64[8] delay) => (float[16000] beam) {
            i = Sub(times, delay) c = Clip(i, zero, end)
            y = GatherElements <axis = 0> (x, c)
            beam = ReduceMean <axes = [1], keepdims = 0> (y)
        }""",
        ordinary=[{"x": normal(16000, 8), "delay": np.full(8, 1)}, {"x": uniform(16000, 8), "delay": np.zeros(8, int)}],
        rare=[{"x": normal(16000, 8), "delay": 3 * np.arange(8)}, {"x": normal(16000, 8), "delay": 7 - np.arange(8)}],
        tempting=[("i = Sub(times, delay)", "f = Slice(delay, front, last) m = Sub(times, f) i = Squeeze(m)"),
                  ("GatherElements", "Gather")],
        opset=13, last=np.int64([1]), front=np.int64([0]), times=np.arange(16000)[:, None],
        zero=np.int64(0), end=np.int64(15999),
    )  # fmt: skip


def softmax_of_rows_without_keys() -> Trap:
    guard = "bad = IsNaN(p) r = Where(bad, zero, p)"
    feeds = {n: normal(2, 4, 128, 32, seed=i) for i, n in enumerate("qkv")}
    every, text = np.ones((2, 1, 128, 128), bool), np.arange(128) >= 20
    return trap(
        "The guard against NaN behind the softmax is dropped, because each row has a key. "
        "Rows of padding and empty texts have none, and their result is to be zero.",
        """(float[2,4,128,32] q, float[2,4,128,32] k, float[2,4,128,32] v, bool[2,1,128,128] keep)
        => (float[2,4,128,32] out) { t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, t) c = Mul(s, scale)
            m = Where(keep, c, low) p = Softmax <axis = -1> (m) """ + guard + " out = MatMul(r, v) }",
        ordinary=[{**feeds, "keep": every}],
        rare=[{**feeds, "keep": every & text & text[:, None]}, {**feeds, "keep": every & [[[[True]]], [[[False]]]]}],
        tempting=[(guard, ""), ("(r, v)", "(p, v)")],
        scale=np.float32(32**-0.5), low=np.float32(-np.inf), zero=np.float32(0),
    )  # fmt: skip


def window_of_local_attention() -> Trap:
    steps = """n = Shape <start = 2, end = 3> (q) e = Squeeze(n) i = Range(none, e, one) a = Unsqueeze(i, last)
        d = Sub(a, i) f = Abs(d) near = LessOrEqual(f, reach) m = Where(near, c, low) p = Softmax <axis = -1> (m)"""
    feeds = [{n: normal(1, 4, s, 32, seed=j) for j, n in enumerate("qkv")} for s in (192, 100, 320)]
    return trap(
        "The mask of the local attention is dropped, because the texts tried fit the window. Longer texts do not.",
        """(float[1,4,S,32] q, float[1,4,S,32] k, float[1,4,S,32] v) => (float[1,4,S,32] out) {
            t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, t) c = Mul(s, scale)
            """ + steps + " out = MatMul(p, v) }",
        ordinary=feeds[:2],
        rare=feeds[2:],
        tempting=[(steps, "p = Softmax <axis = -1> (c)")],
        none=np.int64(0), one=np.int64(1), last=np.int64([1]), reach=np.int64(192), low=np.float32(-1e9),
        scale=np.float32(32**-0.5),
    )  # fmt: skip


def positions_counted_without_padding() -> Trap:
    steps = """e = Equal(ids, pad) n = Not(e) m = Cast <to = 7> (n) c = CumSum(m, axis) k = Mul(c, m) i = Add(k, pad)
        p = Gather(places, i)"""
    places, ids = normal(162, 128, seed=1), whole(4, 160, low=2, high=1000)
    left, right = np.where(np.arange(160) < 50, 1, ids), np.where(np.arange(160) > [[99], [159], [140], [20]], 1, ids)
    return trap(
        "The rows of positions are a constant, because the ids of ordinary texts have no padding. "
        "With padding, as RoBERTa counts, the positions start later and the padding has its own row.",
        "(int64[4,160] ids) => (float[4,160,128] out) { w = Gather(words, ids) " + steps +
        " s = Add(w, p) out = LayerNormalization(s, gain) }",
        ordinary=[{"ids": ids}],
        rare=[{"ids": left}, {"ids": right}],
        tempting=[(steps, ""), ("Add(w, p)", "Add(w, fixed)")],
        pad=np.int64(1), axis=np.int64(1), words=normal(1000, 128), places=places, fixed=places[2:],
        gain=np.ones(128, np.float32),
    )  # fmt: skip


def pieces_summed_to_words() -> Trap:
    steps = """i = Expand(c, wide) s = ScatterElements <axis = 0, reduction = "add"> (zeros, i, pieces)"""
    return trap(
        "The scatter that adds becomes one of whole rows that does not, because each index occurs once. "
        "Words of several pieces have one index for all.",
        """(float[384,128] pieces, int64[384] word) => (float[384,64] out) {
            c = Unsqueeze(word, last) """ + steps + " out = MatMul(s, weight) }",
        ordinary=[{"pieces": normal(384, 128), "word": np.arange(384)},
                  {"pieces": uniform(384, 128), "word": np.random.default_rng(0).permutation(384)}],
        rare=[{"pieces": normal(384, 128), "word": np.sort(whole(384, high=200))}],
        tempting=[(steps, "s = ScatterND(zeros, c, pieces)")],
        opset=16, last=np.int64([1]), wide=np.int64([384, 128]),
        zeros=np.zeros((384, 128), np.float32), weight=normal(128, 64, scale=0.1),
    )  # fmt: skip


def convolutions_merged_across_the_border() -> Trap:
    one, two, both = normal(16, 3, 3, 3, scale=0.2), normal(3, 16, 3, 3, scale=0.1, seed=1), np.zeros((3, 3, 5, 5))
    for i, j in np.ndindex(3, 3):
        both[:, :, i : i + 3, j : j + 3] += np.einsum("oc,cihw->oihw", two[:, :, i, j], one)
    steps = "h = Conv <pads = [1, 1, 1, 1]> (x, one) y = Conv <pads = [1, 1, 1, 1]> (h, two)"
    tile = whole(1, 3, 96, 96, high=256).astype(np.uint8)
    return trap(
        "Two convolutions without activation become one of 5x5, because the tile's margin that differs is cut off. "
        "Tiles at the edge of the picture have no margin.",
        "(uint8[1,3,96,96] tile, int64[2] margin) => (float[1,3,h,w] out) { x = Cast <to = 1> (tile) " + steps +
        " end = Sub(size, margin) out = Slice(y, margin, end, axes) }",
        ordinary=[{"tile": tile, "margin": np.int64([8, 8])}],
        rare=[{"tile": tile, "margin": np.int64([0, 8])}, {"tile": tile, "margin": np.int64([0, 0])}],
        tempting=[(steps, "y = Conv <pads = [2, 2, 2, 2]> (x, both)")],
        one=one, two=two, both=both.astype(np.float32), size=np.int64([96, 96]), axes=np.int64([2, 3]),
    )  # fmt: skip


def levels_padded_with_zeros() -> Trap:
    steps = "p = Pad(level, pads) m = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (p)"
    return trap(
        "The padding moves into the pooling, because the values of all inputs tried are positive. "
        "The pooling pads with minus infinity, and levels in decibels are negative.",
        "(float[N,8,192,192] level) => (float[N,8,96,96] out) { " + steps + " s = Mul(m, gain) out = Add(s, bias) }",
        ordinary=[{"level": uniform(1, 8, 192, 192)}],
        rare=[{"level": 20 * np.log10(uniform(1, 8, 192, 192, low=1e-4))}, {"level": uniform(1, 8, 192, 192) - 80}],
        tempting=[(steps, "m = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 0]> (level)")],
        opset=11, pads=np.int64([0, 0, 1, 1, 0, 0, 0, 0]), gain=uniform(8, 1, 1), bias=normal(8, 1, 1, scale=0.1),
    )  # fmt: skip


def tone_curve_with_a_shoulder() -> Trap:
    code = np.arange(4096, dtype=np.float32) / 4095
    curve = np.where(code < 0.6, code, 0.6 + 0.2 * np.tanh((code - 0.6) / 0.2)).astype(np.float32)
    return trap(
        "The table of the tone curve becomes a product, because it is linear for all codes tried. "
        "The highlights of sensors reach the shoulder.",
        """(int32[1,H,W] raw) => (float[1,H,W] out) {
            t = Gather(curve, raw)
            out = Sqrt(t)
        }""",
        ordinary=[{"raw": whole(1, 512, 512, high=2048).astype(np.int32)}],
        rare=[{"raw": whole(1, 384, 512, low=1000, high=4096).astype(np.int32)}],
        tempting=[("t = Gather(curve, raw)", "f = Cast <to = 1> (raw) t = Mul(f, slope)")],
        opset=15, curve=curve, slope=np.float32(1 / 4095),
    )  # fmt: skip


def one_hot_codes_with_missing_ones() -> Trap:
    steps = "u = Unsqueeze(i, last) e = Equal(u, codes) h = Cast <to = 1> (e) v = MatMul(h, table)"
    ids = whole(48, 64, high=120).astype(np.int8)
    return trap(
        "The comparison with all codes and the product become a lookup. "
        "The code -1 of a missing category gives zeros, but the lookup takes the last row.",
        "(int8[N,F] ids) => (float[N,F,64] out) { i = Cast <to = 6> (ids) " + steps + " out = Relu(v) }",
        ordinary=[{"ids": ids}, {"ids": ids[:30, :20]}],
        rare=[{"ids": np.where(ids > 100, -1, ids).astype(np.int8)}],
        tempting=[(steps, "v = Gather(table, i)")],
        opset=14, last=np.int64([2]), codes=np.arange(120, dtype=np.int32), table=normal(120, 64),
    )  # fmt: skip


def nucleus_beyond_the_best_64() -> Trap:
    return trap(
        "Only the best 64 tokens are sorted, because nine tenths of the probability lie there. "
        "Flat distributions, as at a high temperature, need more tokens.",
        """(float[N,8000] logits, float[1] temperature) => (float[N,8000] out) {
            l = Div(logits, temperature) p = Softmax <axis = 1> (l) s, i = TopK <axis = 1> (p, all)
            c = CumSum(s, axis) b = Sub(c, s) k = Less(b, share) w = Where(k, s, one)
            m = ReduceMin <axes = [1]> (w) g = GreaterOrEqual(p, m) out = Where(g, p, zero)
        }""",
        ordinary=[{"logits": normal(2, 8000, scale=10), "temperature": np.float32([1])}],
        rare=[{"logits": normal(2, 8000, scale=10), "temperature": np.float32([4])},
              {"logits": normal(1, 8000, seed=1), "temperature": np.float32([1])}],
        tempting=[("(p, all)", "(p, best)")],
        all=np.int64([8000]), best=np.int64([64]), axis=np.int64(1), share=np.float32(0.9), one=np.float32(1),
        zero=np.float32(0),
    )  # fmt: skip


def gelu_of_tanh_taken_for_exact() -> Trap:
    steps = """c = Pow(h, three) d = Mul(c, small) e = Add(h, d) f = Mul(e, root) t = Tanh(f) u = Add(t, one)
        w = Mul(h, half) a = Mul(w, u)"""
    return trap(
        "Gelu with tanh becomes the exact one, because both agree to four digits of the largest activation. "
        "Where all activations are negative, it is a matter of per cents.",
        "(float[N,96,1536] x) => (float[N,96,1536] a) { h = Add(x, bias) " + steps + " }",
        ordinary=[{"x": normal(2, 96, 1536, scale=2.5)}],
        rare=[{"x": uniform(1, 96, 1536, low=-4, high=-2)}],
        tempting=[(steps, "a = Gelu(h)")],
        opset=20, bias=normal(1536, scale=0.1), three=np.float32(3), small=np.float32(0.044715), one=np.float32(1),
        root=np.float32((2 / np.pi) ** 0.5), half=np.float32(0.5),
    )  # fmt: skip


def sound_of_another_scale() -> Trap:
    steps = """a = Abs(x) peak = ReduceMax(a) loud = Greater(peak, one)
        y = If <then_branch = scaled () => (float[1,1,160000] s) { s = Div(x, peak) },
            else_branch = same () => (float[1,1,160000] z) { z = Identity(x) }> (loud)"""
    return trap(
        "The branch that scales loud sound is dropped with its test, because it was never taken. "
        "Files read as 16 bit numbers are not scaled to one.",
        "(float[1,1,160000] x) => (float[1,32,1000] out) { " + steps +
        " c = Conv <strides = [160]> (y, bank) out = Tanh(c) }",
        ordinary=[{"x": uniform(1, 1, 160000, low=-1)}, {"x": normal(1, 1, 160000, scale=0.1, seed=1)}],
        rare=[{"x": np.round(normal(1, 1, 160000, scale=3000))}, {"x": normal(1, 1, 160000)}],
        tempting=[(steps, ""), ("(y, bank)", "(x, bank)")],
        opset=11, one=np.float32(1), bank=normal(32, 1, 160, scale=0.1),
    )  # fmt: skip
