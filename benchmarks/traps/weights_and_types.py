"""Traps in the contents of weights and in element types."""

from __future__ import annotations

import numpy as np

from .trap import Trap, normal, trap, uniform, whole


def layer_scale_at_initial_value() -> Trap:
    branch = """d = LayerNormalization <epsilon = 1e-6> (x, one, zero)
        h = MatMul(d, w1)  hb = Add(h, b1)  g = Gelu(hb)  p = MatMul(g, w2)  s = Mul(p, gamma)"""
    return trap(
        "The block is dropped, because its layer scale of 1e-6 hides it beside the skip. On a blank or dark image the"
        " skip is as small as the block, and the last normalisation scales both up.",
        f"(float[1,N,96] x) => (float[1,N,96] out) {{ {branch} r = Add(x, s)"
        " out = LayerNormalization <epsilon = 1e-12> (r, one, zero) }",
        ordinary=[{"x": normal(1, 196, 96)}, {"x": uniform(1, 49, 96)}],
        rare=[{"x": np.zeros((1, 196, 96), np.float32)}, {"x": normal(1, 49, 96, scale=1e-6)}],
        tempting=[(branch, ""), ("Add(x, s)", "Identity(x)")],
        opset=20, one=np.ones(96, np.float32), zero=np.zeros(96, np.float32), gamma=np.full(96, 1e-6, np.float32),
        w1=normal(96, 384, scale=0.1), b1=normal(384, scale=0.5, seed=1), w2=normal(384, 96, scale=0.1, seed=2),
    )  # fmt: skip


def zero_initialised_norm_beside_average_pool() -> Trap:
    branch = """h = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, k1)  r = Relu(h)
        c = Conv <pads = [1, 1, 1, 1]> (r, k2)  b = BatchNormalization(c, gamma, zero, zero, one)"""
    stripes = np.tile(np.float32([1, -1]), (1, 32, 56, 28))
    return trap(
        "The branch is dropped, because the last normalisation has a gamma of about 1e-5. Fine stripes vanish in the"
        " average pool of the skip, so that only the branch is left.",
        f"(float[1,32,56,56] x) => (float[1,48,28,28] out) {{ {branch} a = AveragePool <kernel_shape = [2, 2],"
        " strides = [2, 2]> (x) s = Conv(a, k3) t = Add(s, b) f = Relu(t) out = LpNormalization <axis = 1> (f) }",
        ordinary=[{"x": normal(1, 32, 56, 56)}, {"x": np.ones((1, 32, 56, 56), np.float32)}],
        rare=[{"x": stripes}, {"x": stripes * uniform(1, 32, 1, 1)}],
        tempting=[(branch, ""), ("Add(s, b)", "Identity(s)")],
        gamma=uniform(48, low=0.5e-5, high=1e-5), zero=np.zeros(48, np.float32), one=np.ones(48, np.float32),
        k1=normal(32, 32, 3, 3, scale=0.06), k2=normal(48, 32, 3, 3, scale=0.06, seed=1), k3=normal(48, 32, 1, 1),
    )  # fmt: skip


def nearly_low_rank_projection() -> Trap:
    left, right = normal(512, 32, scale=0.2), normal(32, 512, scale=0.2, seed=1)
    left[480:] = 0
    eye = np.eye(512, dtype=np.float32)
    return trap(
        "The projection is split into two thin ones, because all but 32 singular values are below 1e-4. The features"
        " that were rare in training live in the rest, and the result is normalised.",
        """(float[N,512] x) => (float[N,512] out) {
            p = MatMul(x, w)
            out = LpNormalization <axis = 1> (p)
        }""",
        ordinary=[{"x": normal(64, 512)}, {"x": uniform(17, 512)}],
        rare=[{"x": eye[470:500]}, {"x": uniform(24, 512) * (eye[481] + eye[500])}],
        tempting=[("p = MatMul(x, w)", "u = MatMul(x, a) p = MatMul(u, b)")],
        w=left @ right + normal(512, 512, scale=1e-6, seed=2), a=left, b=right,
    )  # fmt: skip


def collapsed_codes_of_codebook() -> Trap:
    codes = np.concatenate([normal(512, 64, scale=0.3), normal(512, 64, scale=0.01, seed=1)])
    half = (codes**2).sum(1) / 2
    return trap(
        "The codes from 512 on are merged into one, because their vectors are nearly equal. A silent frame chooses"
        " among just these, and the result is the number of the code.",
        """(float[1,N,64] x) => (int64[1,N] code) {
            dots = MatMul(x, columns)
            score = Sub(dots, half)
            code = ArgMax <axis = 2, keepdims = 0> (score)
        }""",
        ordinary=[{"x": normal(1, 150, 64, seed=2)}, {"x": uniform(1, 40, 64, low=-1)}],
        rare=[{"x": normal(1, 150, 64, scale=0.01, seed=3)}, {"x": np.zeros((1, 1, 64), np.float32)}],
        tempting=[("columns)", "merged_columns)"), ("half)", "merged_half)")],
        columns=codes.T, half=half, merged_columns=codes[:513].T, merged_half=half[:513],
    )  # fmt: skip


def small_tail_taps_of_dc_blocker() -> Trap:
    middle = normal(129, scale=0.1)
    middle += np.float32(2e-3 / 129) - middle.mean()
    taps = np.full((1, 1, 1025), -2e-3 / 896, np.float32)
    taps[0, 0, 448:577] = middle
    return trap(
        "The filter is cut to its middle, because the 896 outer taps are all -2e-6. Together they cancel the constant"
        " part of the signal, so that a signal with a large offset leaks.",
        """(float[1,1,N] x) => (float[1,1,M] out) {
            out = Conv(x, taps)
        }""",
        ordinary=[{"x": normal(1, 1, 4096)}, {"x": uniform(1, 1, 3000, low=-1)}],
        rare=[{"x": normal(1, 1, 4096) + np.float32(500)}, {"x": np.full((1, 1, 2048), 2048, np.float32)}],
        tempting=[("out = Conv(x, taps)", "inner = Slice(x, first, last, axis) out = Conv(inner, short)")],
        taps=taps, short=taps[:, :, 448:577], first=np.int64([448]), last=np.int64([-448]), axis=np.int64([2]),
    )  # fmt: skip


def scale_before_instance_norm() -> Trap:
    return trap(
        "The division by 255 is dropped, because a normalisation undoes it. On an image of low contrast the variance"
        " of the scaled pixels is as small as the epsilon.",
        """(float[1,3,H,W] x) => (float[1,3,H,W] out) {
            s = Mul(x, scale)
            out = InstanceNormalization <epsilon = 1e-5> (s, gamma, beta)
        }""",
        ordinary=[{"x": uniform(1, 3, 400, 400, high=255)}, {"x": uniform(1, 3, 100, 140, high=255)}],
        rare=[{"x": np.rint(normal(1, 3, 256, 256)) + np.float32(100)}, {"x": uniform(1, 3, 64, 64, low=0, high=4)}],
        tempting=[("s = Mul(x, scale)", ""), ("(s, gamma", "(x, gamma")],
        scale=np.float32(1 / 255), gamma=uniform(3, low=0.5), beta=normal(3),
    )  # fmt: skip


def moving_average_by_sums_in_double() -> Trap:
    noise = normal(16, 8192)
    return trap(
        "The running sums stay in float32, because the casts cost time and noise sums up to little. The sums of a"
        " signal with an offset, as the air pressure, grow until the last digits of the signal are lost.",
        """(float[16,N] x) => (float[16,M] out) {
            d = Cast <to = 11> (x)  sums = CumSum(d, axis)
            high = Slice(sums, width, end, last)  low = Slice(sums, start, back, last)  total = Sub(high, low)
            f = Cast <to = 1> (total)  mean = Mul(f, weight)
            now = Slice(x, width, end, last)  out = Sub(now, mean) }""",
        ordinary=[{"x": noise}, {"x": uniform(16, 2000)}],
        rare=[{"x": noise * np.float32(0.1) + np.float32(1013.25)}, {"x": uniform(16, 4096, low=300, high=300.5)}],
        tempting=[("d = Cast <to = 11> (x)", ""), ("CumSum(d", "CumSum(x"), ("Cast <to = 1> (tot", "Identity(tot")],
        axis=np.int64(1), last=np.int64([1]), start=np.int64([0]), width=np.int64([64]), back=np.int64([-64]),
        end=np.int64([2**40]), weight=np.float32(1 / 64),
    )  # fmt: skip


def scale_of_keys_in_half_precision() -> Trap:
    q, k = normal(1, 8, 4, 64).astype(np.float16), normal(512, 2048, seed=1).astype(np.float16)
    return trap(
        "The scale of 1/8 moves from the keys to the few scores, which is exact for a power of two. In float16 the"
        " scores that are not scaled yet overflow above 65504.",
        """(float16[1,8,4,64] q, float16[512,2048] k) => (float16[1,8,4,2048] attention) {
            ks = Mul(k, eighth)  heads = Reshape(ks, split)  s = MatMul(q, heads)
            padded = Pad(s, before)  folded = Reshape(padded, fold)  cut = Slice(folded, one, far, one)
            shifted = Reshape(cut, back)  attention = Softmax(shifted) }""",
        ordinary=[{"q": q, "k": k}],
        rare=[{"q": abs(q) + np.float16(20), "k": abs(k) + np.float16(60)}],
        tempting=[("ks = Mul(k, eighth)", ""), ("(ks, split)", "(k, split)"), ("(shifted)", "(t)"),
                  ("(cut, back)", "(cut, back)  t = Mul(shifted, eighth)")],
        eighth=np.float16(0.125), before=np.int64([0, 0, 0, 1, 0, 0, 0, 0]), fold=np.int64([8, 2049, 4]),
        one=np.int64([1]), split=np.int64([1, 8, 64, 2048]), back=np.int64([1, 8, 4, 2048]), far=np.int64([4000]),
    )  # fmt: skip


def raw_pixels_through_half_precision() -> Trap:
    ramp = np.broadcast_to(np.arange(512, dtype=np.int32), (1, 1, 512, 512))
    return trap(
        "The detour through float16 that a converter to mixed precision left is dropped, because pixels of 8 bits are"
        " exact in it. Pixels of 12 or 16 bits are rounded there, which shows in their small differences.",
        """(int32[1,1,H,W] raw) => (float[1,3,I,J] out) {
            h = Cast <to = 10> (raw)  f = Cast <to = 1> (h)  out = Conv(f, edges) }""",
        ordinary=[{"raw": whole(1, 1, 512, 512).astype(np.int32)}, {"raw": ramp[:, :, :90]}],
        rare=[{"raw": ramp + np.int32(3500)}, {"raw": whole(1, 1, 64, 64, high=65536).astype(np.int32)}],
        tempting=[("h = Cast <to = 10> (raw)", ""), ("(h)", "(raw)")],
        opset=13, edges=np.float32([[[[-1, 1], [0, 0]]], [[[-1, 0], [1, 0]]], [[[-1, 0], [0, 1]]]]),
    )  # fmt: skip


def signed_bytes_of_sound() -> Trap:
    return trap(
        "The cast to int8 before the cast to float is dropped, because small numbers are the same in both. Bytes from"
        " 128 on are negative samples.",
        """(uint8[1,N] bytes) => (float[1,N] out) {
            signed = Cast <to = 3> (bytes)
            f = Cast <to = 1> (signed)
            out = Mul(f, scale) }""",
        ordinary=[{"bytes": whole(1, 500000).astype(np.uint8)}, {"bytes": np.ones((1, 999), np.uint8)}],
        rare=[{"bytes": whole(1, 500000, high=256).astype(np.uint8)}, {"bytes": np.full((1, 500), 255, np.uint8)}],
        tempting=[("signed = Cast <to = 3> (bytes)", ""), ("(signed)", "(bytes)")],
        scale=np.float32(1 / 128),
    )  # fmt: skip


def saturation_of_fake_quantisation() -> Trap:
    return trap(
        "The pair of quantisation and dequantisation is dropped, because 16 bits round to 1e-4 only. It also clips to"
        " the range of the calibration, and outliers exceed that.",
        """(float[1,32,80,80] x) => (float[1,32,80,80] out) {
            q = QuantizeLinear(x, scale, zero)
            d = DequantizeLinear(q, scale, zero)
            out = Conv(d, kernel)
        }""",
        ordinary=[{"x": normal(1, 32, 80, 80)}, {"x": uniform(1, 32, 80, 80, low=-6, high=6)}],
        rare=[{"x": normal(1, 32, 80, 80, scale=10)}, {"x": uniform(1, 32, 80, 80, high=255)}],
        tempting=[("q = QuantizeLinear(x, scale, zero)", ""), ("DequantizeLinear(q, scale, zero)", "Identity(x)")],
        opset=21, scale=np.float32(8 / 32767), zero=np.int16(0), kernel=normal(32, 32, 1, 1, scale=0.2),
    )  # fmt: skip


def concat_of_nearly_equal_scales() -> Trap:
    a, b, c, d = (whole(1, 64, 112, 112, low=-n, high=n, seed=n).astype(np.int8) for n in (90, 91, 127, 128))
    ends = " f = Concat <axis = 1> (fa, fb)  out = QuantizeLinear(f, scale, zero)"
    parts = "fa = DequantizeLinear(a, scale, zero)  fb = DequantizeLinear(b, scale_b, zero)"
    return trap(
        "The int8 tensors are joined as they are, because the scales 0.02 and 0.0201 round to the same steps. Values"
        " from 100 on move by a step.",
        "(int8[1,64,112,112] a, int8[1,64,112,112] b) => (int8[1,128,112,112] out) {" + parts + ends + " }",
        ordinary=[{"a": a, "b": b}],
        rare=[{"a": c, "b": d}, {"a": a, "b": np.full_like(b, 120)}],
        tempting=[(parts, ""), (ends, "out = Concat <axis = 1> (a, b)")],
        opset=13, scale=np.float32(0.02), scale_b=np.float32(0.0201), zero=np.int8(0),
    )  # fmt: skip


def truncation_by_cast() -> Trap:
    return trap(
        "The casts to int64 and back become a Floor, because both cut the fraction off. A cast rounds negative numbers"
        " towards zero.",
        """(float[N,2] point) => (float[N,2] fraction) {
            cell = Mul(point, scale)
            i = Cast <to = 7> (cell)
            whole = Cast <to = 1> (i)
            fraction = Sub(cell, whole)
        }""",
        ordinary=[{"point": uniform(65536, 2, high=100)}, {"point": uniform(300, 2)}],
        rare=[{"point": uniform(65536, 2, low=-100, high=100)}, {"point": uniform(10, 2, low=-1)}],
        tempting=[("i = Cast <to = 7> (cell)", ""), ("Cast <to = 1> (i)", "Floor(cell)")],
        scale=np.float32([8, 4]),
    )  # fmt: skip


def mask_through_bool() -> Trap:
    image = normal(1, 3, 400, 400)
    return trap(
        "The mask is cast to float at once instead of through bool, because it holds zeros and ones. Masks that were"
        " read from image files hold 255.",
        """(float[1,3,H,W] x, uint8[1,1,H,W] mask) => (float[1,3,H,W] out) {
            b = Cast <to = 9> (mask)  m = Cast <to = 1> (b)  kept = Mul(x, m)
            background = Sub(one, m)  filled = Mul(mean, background)  out = Add(kept, filled) }""",
        ordinary=[{"x": image, "mask": np.full((1, 1, 400, 400), n, np.uint8)} for n in (1, 0)],
        rare=[{"x": image, "mask": 255 * whole(1, 1, 400, 400, high=2).astype(np.uint8)}],
        tempting=[("b = Cast <to = 9> (mask)", ""), ("(b)", "(mask)")],
        one=np.float32(1), mean=np.float32([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1),
    )  # fmt: skip


def half_up_rounding_of_motion() -> Trap:
    return trap(
        "Adding a half and rounding down becomes a Round. Round takes halves to the even neighbour, and motion vectors"
        " in steps of an eighth are often exact halves of a quarter.",
        """(float[1,2,H,W] motion) => (float[1,2,H,W] out) {
            q = Mul(motion, four)
            h = Add(q, half)
            r = Floor(h)
            out = Mul(r, quarter)
        }""",
        ordinary=[{"motion": normal(1, 2, 512, 512, scale=4)}, {"motion": uniform(1, 2, 90, 120, high=16)}],
        rare=[{"motion": whole(1, 2, 256, 256, low=-128, high=128).astype(np.float32) / 8}],
        tempting=[("h = Add(q, half)", ""), ("Floor(h)", "Round(q)")],
        four=np.float32(4), half=np.float32(0.5), quarter=np.float32(0.25),
    )  # fmt: skip


def hashed_ids_in_int32() -> Trap:
    primes = np.int64([31337, 27644, 17393, 9973, 5003, 40009, 60013, 65003])
    return trap(
        "The hashes of the ids are computed in int32, because it is faster and small ids fit. The product of a real"
        " user id and a prime overflows.",
        """(int64[N,1] id) => (float[N,8] out) {
            wide = Mul(id, primes)  bucket = Mod(wide, size)  out = Gather(table, bucket) }""",
        ordinary=[{"id": whole(16384, 1, high=30000)}, {"id": whole(100, 1)}],
        rare=[{"id": whole(16384, 1, low=10**6, high=10**9)}, {"id": np.arange(2**31, 2**31 + 64)[:, None]}],
        tempting=[("wide = Mul(id, primes)", "i = Cast <to = 6> (id) wide = Mul(i, primes32)"), ("size)", "size32)")],
        primes=primes, size=np.int64(8191), primes32=primes.astype(np.int32), size32=np.int32(8191),
        table=normal(8191),
    )  # fmt: skip


def noise_gate_by_shrink() -> Trap:
    return trap(
        "The Shrink is dropped, because its threshold of 1e-4 changes loud sound by 1e-4 at most. It mutes quiet"
        " recordings, which the model scales up later.",
        """(float[1,257,N] spectrum) => (float[1,64,N] out) {
            s = Shrink <lambd = 1e-4, bias = 1e-4> (spectrum)
            mel = MatMul(bank, s)
            out = MeanVarianceNormalization <axes = [1, 2]> (mel)
        }""",
        ordinary=[{"spectrum": normal(1, 257, 300)}, {"spectrum": uniform(1, 257, 80, low=-1)}],
        rare=[{"spectrum": normal(1, 257, 300, scale=2e-4)}, {"spectrum": uniform(1, 257, 80, low=-1e-3, high=1e-3)}],
        tempting=[("s = Shrink <lambd = 1e-4, bias = 1e-4> (spectrum)", ""), ("(bank, s)", "(bank, spectrum)")],
        bank=normal(64, 257, scale=0.1),
    )  # fmt: skip


def silent_branch_behind_threshold() -> Trap:
    branch = """h = Conv <pads = [1, 1, 1, 1]> (x, k1)  t = ThresholdedRelu <alpha = 6.0> (h)
        u = Conv <pads = [1, 1, 1, 1]> (t, k2)"""
    spike = normal(1, 16, 64, 64)
    spike[:, :, 30:33, 40:43] *= 60
    return trap(
        "The branch is dropped, because the threshold of 6 is twelve standard deviations away and it is all zero."
        " Strong or saturated spots pass the threshold.",
        f"(float[1,16,64,64] x) => (float[1,16,64,64] out) {{ {branch} out = Add(x, u) }}",
        ordinary=[{"x": normal(1, 16, 64, 64, seed=1)}, {"x": uniform(1, 16, 64, 64)}],
        rare=[{"x": spike}, {"x": normal(1, 16, 64, 64, scale=20)}],
        tempting=[(branch, ""), ("Add(x, u)", "Identity(x)")],
        opset=13, k1=normal(16, 16, 3, 3, scale=0.04), k2=normal(16, 16, 3, 3, scale=0.1, seed=1),
    )  # fmt: skip


def saturated_hard_sigmoid_gate() -> Trap:
    gate = """g = GlobalAveragePool(x)  h = Conv(g, w1)  r = Relu(h)  l = Conv(r, w2, b2)
        a = HardSigmoid <alpha = 0.16666667, beta = 0.5> (l)"""
    return trap(
        "The gate is dropped, because all its values are exactly one. The means of noise hardly move it from the flat"
        " part of the HardSigmoid, whereas those of a bright image do.",
        f"(float[N,64,56,56] x) => (float[N,64,56,56] out) {{ {gate} out = Mul(x, a) }}",
        ordinary=[{"x": normal(4, 64, 56, 56)}, {"x": normal(1, 64, 56, 56, seed=1)}],
        rare=[{"x": uniform(2, 64, 56, 56, high=10)}, {"x": normal(1, 64, 56, 56) + np.float32(4)}],
        tempting=[(gate, ""), ("Mul(x, a)", "Identity(x)")],
        opset=11, w1=normal(16, 64, 1, 1, scale=0.2), w2=normal(64, 16, 1, 1, scale=0.3, seed=1),
        b2=np.full(64, 4, np.float32),
    )  # fmt: skip


def nearly_block_diagonal_kernel() -> Trap:
    groups = normal(64, 16, 1, 1, scale=0.25)
    blocks = np.kron(np.eye(4, dtype=np.float32), np.ones((16, 16), np.float32))[:, :, None, None]
    kernel = np.tile(groups, (1, 4, 1, 1)) * blocks + normal(64, 64, 1, 1, scale=1e-6, seed=1)
    loud = normal(1, 64, 48, 48)
    loud[:, :16] = uniform(1, 16, 48, 48, low=3e3, high=5e4)
    return trap(
        "The convolution is split into four groups, because the rest of its kernel is 1e-6. Where one group holds a"
        " depth in millimetres, it shines through into the others, which are normalised one by one.",
        "(float[1,64,48,48] x) => (float[1,64,48,48] out) { c = Conv <group = 1> (x, kernel)"
        " out = InstanceNormalization(c, one, zero) }",
        ordinary=[{"x": normal(1, 64, 48, 48, seed=2)}, {"x": uniform(1, 64, 48, 48)}],
        rare=[{"x": loud}],
        tempting=[("group = 1> (x, kernel)", "group = 4> (x, groups)")],
        kernel=kernel, groups=groups, one=np.ones(64, np.float32), zero=np.zeros(64, np.float32),
    )  # fmt: skip


def nearly_constant_prior_of_places() -> Trap:
    far = np.linspace(-1, 1, 64, dtype=np.float32) ** 2
    prior = 0.5 - 1e-5 * np.broadcast_to(far[:, None] + far, (1, 9, 64, 64))
    return trap(
        "The prior is dropped, because it is 0.5 up to 2e-5 and a constant does not move the largest score. On a blank"
        " image all scores are equal, and the prior chooses the middle.",
        """(float[N,4,64,64] x) => (int64[N] best) {
            c = Conv(x, kernel)
            s = Add(c, prior)  f = Flatten(s)
            best = ArgMax <axis = 1, keepdims = 0> (f)
        }""",
        ordinary=[{"x": normal(4, 4, 64, 64)}, {"x": uniform(1, 4, 64, 64)}],
        rare=[{"x": np.zeros((2, 4, 64, 64), np.float32)}, {"x": np.full((1, 4, 64, 64), 0.5, np.float32)}],
        tempting=[("s = Add(c, prior)", ""), ("(s)", "(c)")],
        kernel=normal(9, 4, 1, 1), prior=prior.astype(np.float32),
    )  # fmt: skip


def nearly_equal_frequencies() -> Trap:
    first = normal(64, 256)
    return trap(
        "One product serves the sines and the cosines, because the two matrices agree to 1e-6. Features in metres or"
        " euros that were not scaled turn that into a shift of the phase.",
        """(float[N,64] x) => (float[N,512] out) {
            a = MatMul(x, first)  s = Sin(a)
            b = MatMul(x, second)  c = Cos(b)  out = Concat <axis = 1> (s, c) }""",
        ordinary=[{"x": uniform(512, 64)}, {"x": normal(100, 64)}],
        rare=[{"x": uniform(512, 64, low=2e3, high=9e4)}, {"x": whole(1, 64, high=50000).astype(np.float32)}],
        tempting=[("b = MatMul(x, second)", ""), ("Cos(b)", "Cos(a)")],
        first=first, second=first + normal(64, 256, scale=1e-6, seed=1),
    )  # fmt: skip


def nearly_symmetric_graph() -> Trap:
    lower = np.tril(uniform(384, 384)) * (uniform(384, 384, seed=1) < 0.3)
    graph = lower + lower.T + np.float32(1e-6) * (uniform(384, 384, seed=2) < 0.02)
    return trap(
        "The step against the edges is taken from the step along them, because the graph is symmetric up to 1e-6. Weak"
        " edges of one direction count as much as others when the question is what is reached at all.",
        """(float[384,F] x) => (float[384,F] out) {
            along = MatMul(graph, x)  a = Greater(along, zero)
            against = MatMul(back, x)  b = Greater(against, zero)
            both = And(a, b)  out = Cast <to = 1> (both) }""",
        ordinary=[{"x": uniform(384, 128)}, {"x": np.ones((384, 16), np.float32)}],
        rare=[{"x": np.eye(384, 128, dtype=np.float32)}, {"x": np.eye(384, 30, -50, dtype=np.float32)}],
        tempting=[("against = MatMul(back, x)", ""), ("b = Greater(against, zero)", ""), ("And(a, b)", "Identity(a)")],
        graph=graph, back=graph.T, zero=np.float32(0),
    )  # fmt: skip


def tanh_in_its_linear_part() -> Trap:
    first, second = normal(256, 1024, scale=1e-4), normal(1024, 256, scale=0.03, seed=1)
    return trap(
        "The two products become one, because the small weights of the first keep the Tanh where it is linear. Pixels"
        " or prices that were not scaled reach its bend.",
        """(float[N,256] x) => (float[N,256] out) {
            h = MatMul(x, first)
            t = Tanh(h)
            out = MatMul(t, second)
        }""",
        ordinary=[{"x": normal(64, 256)}, {"x": uniform(8, 256)}],
        rare=[{"x": uniform(32, 256, high=255)}, {"x": normal(5, 256, scale=1000)}],
        tempting=[("h = MatMul(x, first)", ""), ("t = Tanh(h)", ""), ("MatMul(t, second)", "MatMul(x, product)")],
        first=first, second=second, product=first @ second,
    )  # fmt: skip


def argmax_of_saturated_sigmoid() -> Trap:
    return trap(
        "The Sigmoid before the ArgMax is dropped, because it rises. It is exactly one for large scores, and of equal"
        " ones the first wins.",
        """(float[1,N,91] logits) => (int64[1,N] label, float[1,N,1] score) {
            p = Sigmoid(logits)
            label = ArgMax <axis = 2, keepdims = 0> (p)
            score = ReduceMax <axes = [2]> (p)
        }""",
        ordinary=[{"logits": normal(1, 2000, 91, seed=1)}, {"logits": uniform(1, 300, 91, low=-6, high=6)}],
        rare=[{"logits": normal(1, 900, 91, scale=30)}, {"logits": uniform(1, 100, 91, low=20, high=40)}],
        tempting=[
            ("p = Sigmoid(logits)", ""), ("keepdims = 0> (p)", "keepdims = 0> (logits)"),
            ("score = ReduceMax <axes = [2]> (p)", "m = ReduceMax <axes = [2]> (logits) score = Sigmoid(m)"),
        ],
    )  # fmt: skip
