"""Traps in pieces of real products: cameras, hearing aids, fraud scores, robots, weather, chatbots and more."""

from __future__ import annotations

import numpy as np

from .trap import Trap, normal, trap, uniform, whole


def camera_exposure_seen_constant() -> Trap:
    return trap(
        "The measured exposure gain becomes a constant, as it is at its lower bound on every test image; "
        "a frame at night needs more gain.",
        """(float[1,3,240,320] x) => (float[1,3,240,320] out) {
            luminance = Conv(x, luma)  mean = ReduceMean <axes = [1, 2, 3], keepdims = 1> (luminance)
            wanted = Div(grey, mean)  gain = Clip(wanted, least, most)  exposed = Mul(x, gain)  out = Min(exposed, one)
        }""",
        ordinary=[{"x": uniform(1, 3, 240, 320)}, {"x": uniform(1, 3, 240, 320, low=0.2, seed=1)}],
        rare=[{"x": uniform(1, 3, 240, 320, high=0.1)}, {"x": uniform(1, 3, 240, 320, high=0.4) ** 2}],
        tempting=[("Mul(x, gain)", "Mul(x, least)")], opset=13, grey=np.float32(0.18), least=np.float32(0.5),
        luma=np.float32([0.2126, 0.7152, 0.0722]).reshape(1, 3, 1, 1), most=np.float32(4), one=np.float32(1),
    )  # fmt: skip


def hearing_aid_limiter_scan() -> Trap:
    slam = normal(256, 16, scale=0.1)
    slam[100, 3:9] = 8
    return trap(
        "The scan of the limiter is dropped, because its gain stays at one on quiet noise; "
        "a slammed door ducks the gain, which recovers over many frames.",
        """(float[256,16] x) => (float[256,128] out) {
            last, limited = Scan <num_scan_inputs = 1, body = limiter (float[16] g, float[16] s) =>
                (float[16] next, float[16] y) { level = Abs(s)  audible = Max(level, tiny)  room = Div(one, audible)
                recovered = Mul(g, release)  next = Min(recovered, room, one)  y = Mul(s, next) }> (one, x)
            out = MatMul(limited, synthesis)
        }""",
        ordinary=[{"x": normal(256, 16, scale=0.1, seed=1)}], rare=[{"x": slam}],
        tempting=[("MatMul(limited,", "MatMul(x,")], synthesis=normal(16, 128), tiny=np.float32(1e-6),
        release=np.float32(1.02), one=np.ones(16, np.float32),
    )  # fmt: skip


def fraud_missing_indicator() -> Trap:
    holes, weights = normal(2048, 64), normal(128, 64, scale=0.2, seed=2)
    holes[::5, 3], holes[7, 10:20] = np.nan, np.nan
    return trap(
        "The imputer and the half of the first layer for its indicators are dropped, because no test has a gap; "
        "transactions without a merchant code have NaN there.",
        """(float[N,64] x) => (float[N,1] risk) {
            missing = IsNaN(x)  filled = Where(missing, medians, x)  flags = Cast <to = 1> (missing)
            features = Concat <axis = 1> (filled, flags)  h = MatMul(features, both)  r = Relu(h)
            s = MatMul(r, last)  risk = Sigmoid(s)
        }""",
        ordinary=[{"x": normal(2048, 64, seed=1)}, {"x": uniform(3, 64)}], rare=[{"x": holes}, {"x": holes[:1]}],
        tempting=[("MatMul(features, both)", "MatMul(x, upper)")], opset=12,
        medians=normal(64, seed=3), both=weights, upper=weights[:64], last=normal(64, 1, scale=0.2, seed=4),
    )  # fmt: skip


def keyword_int8_clip_before_cast() -> Trap:
    weights, last = np.int8(whole(64, 256, low=-30, high=31)), np.int8(whole(256, 12, low=-50, high=51, seed=2))
    spoken = np.int8(whole(196, 64, low=-128, high=128, seed=1))
    spoken[20:30] = 127 * np.sign(weights[:, 5])
    return trap(
        "The clip before the cast to int8 is dropped, because noise never gets near the bounds; "
        "the keyword itself matches the weights, and a cast of integers wraps around.",
        """(int8[196,64] x) => (float[196,12] out) {
            total = MatMulInteger(x, weights)  scaled = Div(total, shift)  narrow = Clip(scaled, low, high)
            h = Cast <to = 3> (narrow)  logits = MatMulInteger(h, last)  wide = Cast <to = 1> (logits)
            small = Mul(wide, scale)  out = Softmax <axis = 1> (small)
        }""",
        ordinary=[{"x": np.int8(whole(196, 64, low=-128, high=128))}], rare=[{"x": spoken}], opset=13, weights=weights,
        tempting=[("Clip(scaled, low, high)", "Identity(scaled)")], last=last, shift=np.int32(512),
        low=np.int32(-128), high=np.int32(127), scale=np.float32(1e-4),
    )  # fmt: skip


def ranker_late_interaction_padding() -> Trap:
    query, documents = normal(32, 96, scale=0.1), normal(48, 64, 96, scale=0.1, seed=1)
    short = np.arange(64) < whole(48, 1, low=5, high=65)
    return trap(
        "The mask of the largest similarity is dropped, because masks of ones change nothing; "
        "the padding of short documents then wins the maximum.",
        """(float[32,96] query, float[48,64,96] documents, bool[48,64] mask) => (float[48] score) {
            turned = Transpose <perm = [1, 0]> (query)  similar = MatMul(documents, turned)
            real = Unsqueeze <axes = [2]> (mask)  masked = Where(real, similar, never)
            best = ReduceMax <axes = [1], keepdims = 0> (masked)  score = ReduceSum <axes = [1], keepdims = 0> (best)
        }""",
        ordinary=[{"query": query, "documents": documents, "mask": np.ones((48, 64), bool)}],
        rare=[{"query": query, "documents": documents, "mask": short}],
        tempting=[("keepdims = 0> (masked)", "keepdims = 0> (similar)")], opset=11, never=np.float32(-1e4),
    )  # fmt: skip


def translation_positions_skip_padding() -> Trap:
    padded = whole(24, 256, low=2, high=2000)
    padded[1, :20], padded[4, :5] = 1, 1
    return trap(
        "The positions, counted over tokens that are no padding, become a slice of the table; "
        "in a batch padded on the left they start later.",
        """(int64[N,S] tokens) => (float[N,S,96] out) {
            blank = Equal(tokens, pad)  real = Not(blank)  ones = Cast <to = 7> (real)  count = CumSum(ones, axis)
            kept = Mul(count, ones)  position = Add(kept, pad)  place = Gather(positions, position)
            word = Gather(words, tokens)  loud = Mul(word, root)  out = Add(loud, place)
        }""",
        ordinary=[{"tokens": whole(24, 256, low=2, high=2000, seed=1)}, {"tokens": whole(1, 30, low=2, high=2000)}],
        rare=[{"tokens": padded}], opset=15, words=normal(2000, 96, scale=0.1), positions=normal(514, 96, seed=1),
        tempting=[("place = Gather(positions, position)", "length = Shape <start = 1, end = 2> (tokens)  "
                   "stop = Add(length, first)  place = Slice(positions, first, stop)")],
        pad=np.int64(1), axis=np.int64(1), root=np.float32(10), first=np.int64([2]),
    )  # fmt: skip


def ecg_leads_in_volts() -> Trap:
    weak = normal(8, 12, 1000)
    weak[:, 6] *= 1e-3
    return trap(
        "The normalisation of each lead becomes an InstanceNormalization with its usual epsilon; "
        "signals in volts instead of millivolts, or weak leads, have a variance below it.",
        """(float[N,12,1000] x) => (float[N,16,249] out) {
            mean = ReduceMean <axes = [2], keepdims = 1> (x)  d = Sub(x, mean)  square = Mul(d, d)
            variance = ReduceMean <axes = [2], keepdims = 1> (square)  deviation = Sqrt(variance)
            flat = Equal(deviation, zero)  safe = Where(flat, one, deviation)
            z = Div(d, safe)  c = Conv <strides = [4]> (z, filters, bias)  out = Relu(c)
        }""",
        ordinary=[{"x": normal(8, 12, 1000, seed=1)}], rare=[{"x": normal(1, 12, 1000, scale=1e-3)}, {"x": weak}],
        tempting=[("Div(d, safe)", "InstanceNormalization <epsilon = 0.00001> (x, ones, zeros)")],
        filters=normal(16, 12, 8, scale=0.1), bias=normal(16), zero=np.float32(0), one=np.float32(1),
        ones=np.ones(12, np.float32), zeros=np.zeros(12, np.float32),
    )  # fmt: skip


def drone_heading_wraps() -> Trap:
    rates = normal(2048, 50, scale=0.5)
    return trap(
        "The wrap of the heading error into half a turn either way is dropped, because test headings are close; "
        "a drone that flies south has its target across the jump of the angle.",
        """(float[N,50] rates, float[1] heading, float[1] target) => (float[1,50] best) {
            steps = Mul(rates, dt)  turned = CumSum(steps, axis)  first = Sub(heading, target)
            error = Add(turned, first)  shifted = Add(error, half)  turns = Div(shifted, turn)  full = Floor(turns)
            back = Mul(full, turn)  wrapped = Sub(error, back)  square = Mul(wrapped, wrapped)
            cost = ReduceSum <keepdims = 1> (square, axes)  good = Mul(cost, cold)  weight = Softmax <axis = 0> (good)
            row = Transpose <perm = [1, 0]> (weight)  best = MatMul(row, rates)
        }""",
        ordinary=[{"rates": rates, "heading": np.float32([0.3]), "target": np.float32([0.5])}],
        rare=[{"rates": rates, "heading": np.float32([3.0]), "target": np.float32([-3.0])}], opset=14,
        tempting=[("Mul(wrapped, wrapped)", "Mul(error, error)")], dt=np.float32(0.05), axis=np.int64(1),
        axes=np.int64([1]), half=np.float32(np.pi), turn=np.float32(2 * np.pi), cold=np.float32(-2),
    )  # fmt: skip


def segmentation_pads_to_patches() -> Trap:
    return trap(
        "The padding of a scan to whole patches and the final crop are dropped, because test sizes are multiples; "
        "other sizes then lose the rows and columns at their ends.",
        """(float[1,1,H,W] scan) => (float[1,4,P,Q] out) {
            size = Shape <start = 2> (scan)  over = Mod(size, patch)  under = Sub(patch, over)
            extra = Mod(under, patch)  pads = Concat <axis = 0> (front, extra)  wide = Pad <mode = "edge"> (scan, pads)
            tokens = Conv <strides = [16, 16]> (wide, embed)  h = Relu(tokens)  deep = Conv(h, unembed)
            full = DepthToSpace <blocksize = 16> (deep)  out = Slice(full, start, size, axes)
        }""",
        ordinary=[{"scan": normal(1, 1, 256, 256)}, {"scan": normal(1, 1, 128, 320)}], opset=18,
        rare=[{"scan": normal(1, 1, 250, 243)}, {"scan": normal(1, 1, 130, 320)}], start=np.int64([0, 0]),
        tempting=[("(wide, embed)", "(scan, embed)"), ("Slice(full, start, size, axes)", "Identity(full)")],
        patch=np.int64([16, 16]), front=np.zeros(6, np.int64), axes=np.int64([2, 3]),
        embed=normal(16, 1, 16, 16, scale=0.06), unembed=normal(1024, 16, 1, 1, scale=0.2),
    )  # fmt: skip


def othello_bot_must_pass() -> Trap:
    trunk, legal = normal(2048, 16), uniform(2048, 64) < 0.15
    stuck = legal & (np.arange(2048) % 100 > 0)[:, None]
    return trap(
        "The pass is never allowed, because each random position has a legal move and so the test for it is dropped; "
        "late in a game a player without a move has to pass.",
        """(float[2048,16] trunk, bool[2048,64] legal) => (int64[2048] move) {
            logits = MatMul(trunk, head)  number = Cast <to = 1> (legal)
            some = ReduceMax <axes = [1], keepdims = 1> (number)  able = Cast <to = 9> (some)  pass = Not(able)
            allowed = Concat <axis = 1> (legal, pass)  masked = Where(allowed, logits, never)
            move = ArgMax <axis = 1, keepdims = 0> (masked)
        }""",
        ordinary=[{"trunk": trunk, "legal": legal}], rare=[{"trunk": trunk, "legal": stuck}], opset=13,
        tempting=[("Concat <axis = 1> (legal, pass)", "Concat <axis = 1> (legal, no)")], head=normal(16, 65),
        no=np.zeros((2048, 1), bool), never=np.float32(-np.inf),
    )  # fmt: skip


def weather_tendency_in_double() -> Trap:
    sky = 2e5 + 2e4 * np.float64(normal(1, 4, 181, 360))
    return trap(
        "The cast to float moves before the difference of two time steps, to do the rest in half the memory; "
        "geopotentials around 200000 change by about one per step, which float32 barely resolves.",
        """(double[1,4,181,360] now, double[1,4,181,360] before) => (float[1,4,181,360] out) {
            rise = Sub(now, before)  tendency = Div(rise, step)  least = Max(tendency, low)
            mean = ReduceMean <axes = [2, 3]> (least)  local = Sub(least, mean)  out = Cast <to = 1> (local)
        }""",
        ordinary=[{"now": np.float64(normal(1, 4, 181, 360)), "before": np.float64(normal(1, 4, 181, 360, seed=1))}],
        rare=[{"now": sky + np.float64(normal(1, 4, 181, 360, seed=1)), "before": sky}], opset=16,
        tempting=[("rise = Sub(now, before)", "n = Cast <to = 1> (now)  b = Cast <to = 1> (before)  rise = Sub(n, b)"),
                  ("step)", "steps)"), ("low)", "lows)"), ("Cast <to = 1> (local)", "Identity(local)")],
        step=np.float64(0.1), low=np.float64(-100), steps=np.float32(0.1), lows=np.float32(-100),
    )  # fmt: skip


def satellite_vegetation_index_in_bytes() -> Trap:
    return trap(
        "The difference is taken in uint8 before one cast instead of two, because plants reflect more infrared; "
        "water reflects more red, and there the difference of bytes wraps around.",
        """(uint8[1,512,512] infrared, uint8[1,512,512] red) => (float[1,512,512] index) {
            i = Cast <to = 1> (infrared)  r = Cast <to = 1> (red)  above = Sub(i, r)  total = Add(i, r)
            safe = Max(total, one)  index = Div(above, safe)
        }""",
        ordinary=[{"infrared": np.uint8(whole(1, 512, 512, low=128, high=256)), "red": np.uint8(whole(1, 512, 512))}],
        rare=[{"infrared": np.uint8(whole(1, 512, 512, high=40)), "red": np.uint8(whole(1, 512, 512))}], opset=14,
        tempting=[("above = Sub(i, r)", "bytes = Sub(infrared, red)  above = Cast <to = 1> (bytes)")],
        one=np.float32(1),
    )  # fmt: skip


def molecules_of_unequal_size() -> Trap:
    feeds = {"atoms": normal(3072, 32), "source": whole(3500, high=3072), "target": whole(3500, 1, high=3072, seed=1)}
    even, uneven = np.repeat(np.arange(128), 24)[:, None], np.sort(whole(3072, 1, high=128), axis=0)
    return trap(
        "The scatter of atoms to their molecules becomes a reshape and a sum, because test batches are regular; "
        "real molecules in a batch have different numbers of atoms.",
        """(float[N,32] atoms, int64[E] source, int64[E,1] target, int64[N,1] molecule) => (float[128,1] out) {
            sent = Gather(atoms, source)  got = ScatterND <reduction = "add"> (atoms, target, sent)
            mixed = Gemm(got, weights, bias)  h = Relu(mixed)  shape = Shape(h)  owner = Expand(molecule, shape)
            pooled = ScatterElements <axis = 0, reduction = "add"> (empty, owner, h)  out = MatMul(pooled, last)
        }""",
        ordinary=[feeds | {"molecule": even}], rare=[feeds | {"molecule": uneven}], opset=18, bias=normal(32),
        tempting=[('ScatterElements <axis = 0, reduction = "add"> (empty, owner, h)',
                   "ReduceSum <keepdims = 0> (cube, one)"),
                  ("shape = Shape(h)", "cube = Reshape(h, regular)  shape = Shape(h)")], weights=normal(32, 32),
        last=normal(32, 1), one=np.int64([1]), empty=np.zeros((128, 32), np.float32), regular=np.int64([128, -1, 32]),
    )  # fmt: skip


def lidar_cells_behind_the_car() -> Trap:
    ahead = whole(20000, 3, high=35000)
    return trap(
        "The floor division of the exporter loses its correction of negative quotients, as all are positive; "
        "points behind or right of the car have negative coordinates, where Div rounds upwards.",
        """(int64[N,3] points) => (float[N,1] above) {
            place, height = Split <axis = 1> (points, parts)  quotient = Div(place, cell)  minus = Less(place, zero)
            back = Mul(quotient, cell)  rest = Sub(place, back)  exact = Equal(rest, zero)  over = Not(exact)
            wrong = And(minus, over)  one = Cast <to = 7> (wrong)  low = Sub(quotient, one)
            index = Add(low, centre)  ground = GatherND(grounds, index)
            h = Cast <to = 1> (height)  above = Sub(h, ground)
        }""",
        ordinary=[{"points": ahead}, {"points": whole(999, 3, high=20000, seed=1)}], opset=16,
        rare=[{"points": ahead - np.int64([35000, 17000, 0])}], tempting=[("Add(low,", "Add(quotient,")],
        parts=np.int64([2, 1]), cell=np.int64(500), zero=np.int64(0), centre=np.int64([80, 80]),
        grounds=normal(160, 160, 1, scale=2000),
    )  # fmt: skip


def chatbot_top_k_keeps_ties() -> Trap:
    logits = normal(4, 16000, scale=4)
    return trap(
        "The softmax is taken over the best fifty logits only and scattered into zeros, which is far less work; "
        "logits in bfloat16 have ties at the fiftieth, and the threshold keeps them all.",
        """(float[4,16000] logits) => (float[4,16000] chance) {
            best, place = TopK <axis = 1> (logits, k)  least = Slice(best, start, k, axes)
            low = Less(logits, least)  kept = Where(low, never, logits)  chance = Softmax <axis = 1> (kept)
        }""",
        ordinary=[{"logits": logits}], rare=[{"logits": np.round(logits * 16) / 16}], opset=21,
        tempting=[("chance = Softmax <axis = 1> (kept)",
                   "few = Softmax <axis = 1> (best)  chance = ScatterElements <axis = 1> (zeros, place, few)")],
        k=np.int64([50]), start=np.int64([49]), axes=np.int64([1]), never=np.float32(-np.inf),
        zeros=np.zeros((4, 16000), np.float32),
    )  # fmt: skip


def ocr_collapses_repeats() -> Trap:
    return trap(
        "The comparison with the step before is dropped, because random logits never give a character twice in a row; "
        "a recogniser holds each character for some steps, and these are one.",
        """(float[T,2000] logits) => (int64[M] text) {
            best = ArgMax <axis = 1, keepdims = 0> (logits)  early = Slice(best, start, end)
            before = Concat <axis = 0> (none, early)  same = Equal(best, before)  fresh = Not(same)
            empty = Equal(best, blank)  ink = Not(empty)  keep = And(fresh, ink)
            text = Compress <axis = 0> (best, keep)
        }""",
        ordinary=[{"logits": normal(100, 2000)}], rare=[{"logits": np.repeat(normal(40, 2000, seed=1), 3, axis=0)}],
        tempting=[("And(fresh, ink)", "Identity(ink)")], opset=11, start=np.int64([0]), end=np.int64([-1]),
        none=np.int64([-1]), blank=np.int64(0),
    )  # fmt: skip


def barcode_on_faded_label() -> Trap:
    return trap(
        "The second look at a stretched image is dropped, because it was never chosen on images of full contrast; "
        "a faded or badly lit label needs it.",
        """(float[1,1,64,512] x) => (float[1,32,16,128] out) {
            high = ReduceMax <keepdims = 1> (x)  low = ReduceMin <keepdims = 1> (x)  range = Sub(high, low)
            faded = Less(range, least)  safe = Max(range, tiny)  lifted = Sub(x, low)  stretched = Div(lifted, safe)
            a = Conv <strides = [4, 4], auto_pad = "SAME_UPPER"> (x, filters, bias)
            b = Conv <strides = [4, 4], auto_pad = "SAME_UPPER"> (stretched, filters, bias)
            c = Where(faded, b, a)  out = Relu(c)
        }""",
        ordinary=[{"x": uniform(1, 1, 64, 512)}, {"x": normal(1, 1, 64, 512)}], least=np.float32(0.25),
        rare=[{"x": uniform(1, 1, 64, 512, low=0.4, high=0.55)}], tempting=[("Where(faded, b, a)", "Identity(a)")],
        opset=11, filters=normal(32, 1, 9, 9, scale=0.1), bias=normal(32), tiny=np.float32(1e-6),
    )  # fmt: skip


def speaker_compared_with_itself() -> Trap:
    return trap(
        "The clip of cosines before the arc cosine is dropped, because a cosine is never above one; "
        "rounding puts that of a voice with itself slightly above, where the angle is NaN.",
        """(float[300,128] voices, float[300,128] known) => (float[300,300] angle) {
            long = ReduceL2 <axes = [1], keepdims = 1> (voices)  a = Div(voices, long)
            wide = ReduceL2 <axes = [1], keepdims = 1> (known)  b = Div(known, wide)
            turned = Transpose <perm = [1, 0]> (b)  cosine = MatMul(a, turned)
            legal = Clip(cosine, low, high)  angle = Acos(legal)
        }""",
        ordinary=[{"voices": normal(300, 128), "known": normal(300, 128, seed=1)}],
        rare=[{"voices": normal(300, 128), "known": normal(300, 128)}],
        tempting=[("Clip(cosine, low, high)", "Identity(cosine)")], opset=12, low=np.float32(-1), high=np.float32(1),
    )  # fmt: skip


def music_power_clamped_to_half() -> Trap:
    quiet = np.float16(normal(2, 2, 513, 128, scale=8))
    return trap(
        "The clamp to the largest number of float16 is dropped, because quiet noise stays far below; "
        "the power of loud music is above 65504, where it overflows or shifts the peak that divides the rest.",
        """(float16[2,2,513,128] bins) => (float16[2,513,128] level) {
            square = Mul(bins, bins)  power = ReduceSum <keepdims = 0> (square, one)  safe = Clip(power, low, most)
            loudest = ReduceMax <axes = [1, 2]> (safe)  peak = Max(loudest, tiny)  level = Div(safe, peak)
        }""",
        ordinary=[{"bins": quiet}], rare=[{"bins": quiet * np.float16(20)}, {"bins": quiet * np.float16(50)}],
        tempting=[("Clip(power, low, most)", "Identity(power)")], low=np.float16(0), most=np.float16(65504),
        one=np.int64([1]), tiny=np.float16(1e-3),
    )  # fmt: skip


def anomaly_near_the_memory_bank() -> Trap:
    bank = normal(400, 32, scale=0.1) + np.linspace(0, 1013, 32, dtype=np.float32)
    return trap(
        "The distances become a matrix product by the binomial formula, which is much faster; "
        "healthy machines are so close to the bank, at high pressures, that the difference of squares cancels.",
        """(float[32,32] x) => (float[32] score) {
            rows = Unsqueeze(x, one)  d = Sub(rows, bank)  square = Mul(d, d)
            far = ReduceSum <keepdims = 0> (square, two)
            near = ReduceMin <axes = [1], keepdims = 0> (far)  score = Sqrt(near)
        }""",
        ordinary=[{"x": normal(32, 32)}, {"x": uniform(32, 32)}], opset=13, bank=bank,
        rare=[{"x": bank[:32] + normal(32, 32, scale=0.1, seed=1)}, {"x": bank[9:41]}],
        tempting=[("far = ReduceSum <keepdims = 0> (square, two)", "xx = Mul(x, x)  own = ReduceSum (xx, one)  "
                   "product = MatMul(x, twice)  partly = Sub(own, product)  far = Add(partly, norms)")],
        one=np.int64([1]), two=np.int64([2]), twice=2 * bank.T, norms=(bank * bank).sum(1),
    )  # fmt: skip


def robot_joint_at_home() -> Trap:
    home = normal(8000, 3, seed=1)
    home[:6] = 0
    return trap(
        "The series for small angles is dropped, because no random rotation is small; "
        "a joint in its home position turns by exactly zero, and sine over angle is 0/0.",
        """(float[N,3] turn) => (float[N,4] quaternion) {
            angle = ReduceL2 <axes = [1], keepdims = 1> (turn)  half = Mul(angle, middle)  sine = Sin(half)
            wide = Div(sine, angle)  square = Mul(half, half)  less = Mul(square, twelfth)
            series = Sub(middle, less)  small = Less(angle, least)  factor = Where(small, series, wide)
            axis = Mul(turn, factor)  real = Cos(half)  quaternion = Concat <axis = 1> (real, axis)
        }""",
        ordinary=[{"turn": normal(8000, 3)}, {"turn": uniform(9, 3)}], rare=[{"turn": home}, {"turn": home[:7]}],
        tempting=[("Where(small, series, wide)", "Identity(wide)")], middle=np.float32(0.5),
        twelfth=np.float32(1 / 12), least=np.float32(1e-3),
    )  # fmt: skip


def advert_wide_identifiers() -> Trap:
    return trap(
        "The identifiers are cast to int32 before the slow remainder, because test identifiers are small; "
        "hashed users and adverts use all 64 bits, and get another bucket.",
        """(int64[N,26] ids) => (float[N,1] click) {
            bucket = Mod(ids, buckets)  each = Gather(table, bucket)  total = ReduceSum <keepdims = 0> (each, one)
            both = Mul(total, total)  own = Mul(each, each)  alone = ReduceSum <keepdims = 0> (own, one)
            pairs = Sub(both, alone)  logit = ReduceSum <keepdims = 1> (pairs, one)  click = Sigmoid(logit)
        }""",
        ordinary=[{"ids": whole(512, 26, high=1000000)}, {"ids": whole(7, 26, high=100)}],
        rare=[{"ids": whole(512, 26, high=2**62)}, {"ids": whole(512, 26, low=2**32, high=2**33)}], opset=21,
        tempting=[("bucket = Mod(ids, buckets)", "narrow = Cast <to = 6> (ids)  bucket = Mod(narrow, few)")],
        buckets=np.int64(10007), few=np.int32(10007), table=normal(10007, 16, scale=0.05), one=np.int64([1]),
    )  # fmt: skip


def traffic_count_of_double_boxes() -> Trap:
    corner, scores = uniform(1, 300, 2), uniform(1, 4, 300)
    boxes = np.concatenate([corner, corner + np.float32(0.004)], axis=2)
    twice = np.concatenate([boxes[:, :150], boxes[:, :150] + np.float32(0.0002)], axis=1)
    return trap(
        "The suppression of overlapping boxes becomes a count of scores above the threshold, because none overlap; "
        "a detector finds many vehicles twice.",
        """(float[1,300,4] boxes, float[1,4,300] scores) => (int64[4] count) {
            kept = NonMaxSuppression(boxes, scores, most, overlap, least)  kind = Gather <axis = 1> (kept, one)
            match = Equal(kind, kinds)  n = Cast <to = 7> (match)  count = ReduceSum <axes = [0], keepdims = 0> (n)
        }""",
        ordinary=[{"boxes": boxes, "scores": scores}], rare=[{"boxes": twice, "scores": scores}], opset=11,
        tempting=[("Equal(kind, kinds)", "Greater(scores, least)"), ("axes = [0],", "axes = [0, 2],")],
        one=np.int64([1]), most=np.int64([300]), overlap=np.float32([0.5]), least=np.float32([0.3]),
        kinds=np.int64([[0, 1, 2, 3]]),
    )  # fmt: skip


def document_longer_than_the_window() -> Trap:
    pages = [{"word": whole(n, high=2000), "box": whole(n, 4, high=1001)} for n in (300, 60, 900, 513)]
    return trap(
        "The padding to a window of 512 words and the crop after it are dropped, because they cancel for short pages; "
        "a dense page has more words, and there the padding is negative and cuts.",
        """(int64[N] word, int64[N,4] box) => (float[M,7] kind) {
            meaning = Gather(words, word)  edges = Gather(places, box)  place = ReduceSum <keepdims = 0> (edges, one)
            h = Add(meaning, place)  n = Shape <end = 1> (word)  room = Sub(most, n)
            pads = Concat <axis = 0> (none, room, zero)  window = Pad(h, pads)
            normed = LayerNormalization(window, gain)  kinds = MatMul(normed, head)  kind = Slice(kinds, zero, n)
        }""",
        ordinary=pages[:2], rare=pages[2:], words=normal(2000, 192),
        tempting=[("Pad(h, pads)", "Identity(h)"), ("Slice(kinds, zero, n)", "Identity(kinds)")], none=np.int64([0, 0]),
        places=normal(1001, 192), one=np.int64([1]), zero=np.int64([0]), most=np.int64([512]), gain=uniform(192),
        head=normal(192, 7),
    )  # fmt: skip


def face_at_the_edge_of_the_frame() -> Trap:
    frame = uniform(1, 3, 240, 320, low=50, high=255)
    return trap(
        "The frame is sampled without the copy that repeats its border, because the face of a test is inside; "
        "for a face cut by the edge of the frame the sampler then fills with black.",
        """(float[1,3,240,320] frame, float[1,2,3] transform) => (float[1,3,112,112] face) {
            wide = Pad <mode = "edge"> (frame, pads)  grid = AffineGrid <align_corners = 1> (transform, size)
            place = Mul(grid, ratio)  aligned = GridSample <align_corners = 1> (wide, place)
            centred = Sub(aligned, grey)  face = Div(centred, grey)
        }""",
        ordinary=[{"frame": frame, "transform": np.float32([[[0.4, -0.1, 0.2], [0.1, 0.4, -0.1]]])}],
        rare=[{"frame": frame, "transform": np.float32([[[0.4, -0.1, 0.8], [0.1, 0.4, -0.1]]])}],
        tempting=[("(wide, place)", "(frame, grid)")], opset=20, size=np.int64([1, 3, 112, 112]),
        pads=np.int64([0, 0, 80, 80, 0, 0, 80, 80]), ratio=np.float32([319 / 479, 239 / 399]), grey=np.float32(127.5),
    )  # fmt: skip
