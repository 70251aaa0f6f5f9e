"""Traps of guards in audio, speech, sensor, time series, finance and physics models."""

from __future__ import annotations

import numpy as np

from .trap import Trap, normal, trap, uniform, whole


def log_floor_on_silence() -> Trap:
    silence = uniform(5000, 65, low=0.01)
    silence[500:620] = 0
    return trap(
        "The floor below the logarithm is dropped, because the power of noise never reaches it. "
        "Digital silence gives frames of zeros, whose logarithm is minus infinity.",
        """(float[N,65] power) => (float[N,40] out) {
            mel = MatMul(power, bank)  kept = Max(mel, floor)
            level = Log(kept)  out = Sub(level, mean)
        }""",
        ordinary=[{"power": uniform(5000, 65, low=0.01)}],
        rare=[{"power": silence}, {"power": np.zeros((300, 65), np.float32)}],
        tempting=[("Log(kept)", "Log(mel)"), ("kept = Max(mel, floor)", "")],
        bank=uniform(65, 40, seed=1), floor=np.float32(1e-10), mean=normal(40, seed=2),
    )  # fmt: skip


def imputation_of_missing_readings() -> Trap:
    gaps, weight = normal(64, 96, 32, seed=1), normal(64, 48, seed=2)
    gaps[3, 40:50, 5] = gaps[:, :, 17] = np.nan
    return trap(
        "The imputation and the half of the weights that reads the flags of missing values are dropped, "
        "because no reading is missing. Sensors drop out, and a NaN then spoils its whole row.",
        """(float[64,96,32] x) => (float[64,96,48] out) {
            missing = IsNaN(x)  filled = Where(missing, means, x)  flags = Cast <to = 1> (missing)
            both = Concat <axis = 2> (filled, flags)  hidden = MatMul(both, weight)
            out = Tanh(hidden)
        }""",
        ordinary=[{"x": normal(64, 96, 32)}], rare=[{"x": gaps}],
        tempting=[("missing = IsNaN(x)  filled = Where(missing, means, x)  flags = Cast <to = 1> (missing)", ""),
                  ("both = Concat <axis = 2> (filled, flags)", ""), ("MatMul(both, weight)", "MatMul(x, top)")],
        means=normal(32, seed=3), weight=weight, top=weight[:32], opset=20,
    )  # fmt: skip


def deviation_floor_as_layer_norm() -> Trap:
    return trap(
        "The hand-written normalisation becomes LayerNormalization, with its usual epsilon in place of the floor "
        "of the deviation. An electrocardiogram in volts has a variance far below that epsilon.",
        """(float[24,12,1000] x) => (float[24,12,1000] out) {
            mean = ReduceMean <axes = [-1]> (x)  less = Sub(x, mean)  square = Mul(less, less)
            variance = ReduceMean <axes = [-1]> (square)  root = Sqrt(variance)
            kept = Max(root, floor)  normed = Div(less, kept)
            out = Mul(normed, gain)
        }""",
        ordinary=[{"x": normal(24, 12, 1000)}], rare=[{"x": normal(24, 12, 1000, scale=1e-3)}],
        tempting=[("mean = ReduceMean <axes = [-1]> (x)  less = Sub(x, mean)  square = Mul(less, less)", ""),
                  ("variance = ReduceMean <axes = [-1]> (square)  root = Sqrt(variance)", ""),
                  ("kept = Max(root, floor)  normed = Div(less, kept)", "normed = LayerNormalization(x, ones)")],
        floor=np.float32(1e-6), gain=normal(12, 1), ones=np.ones(1000, np.float32),
    )  # fmt: skip


def one_pass_variance_of_air_pressure() -> Trap:
    return trap(
        "The variance is computed in one pass as mean of squares less square of mean, without the centred copy. "
        "Air pressure is 101325 Pa with ripples of a few Pa, and the difference of the squares loses them all.",
        """(float[N,64,500] x) => (float[N,64,1] mean, float[N,64,1] deviation) {
            mean = ReduceMean <axes = [2]> (x)  less = Sub(x, mean)
            squares = Mul(less, less)  variance = ReduceMean <axes = [2]> (squares)
            raised = Add(variance, epsilon)  deviation = Sqrt(raised)
        }""",
        ordinary=[{"x": normal(16, 64, 500)}], rare=[{"x": 101325 + normal(4, 64, 500, scale=5)}],
        tempting=[("less = Sub(x, mean)", "total = ReduceSumSquare <axes = [2]> (x)  raw = Mul(total, share)"),
                  ("squares = Mul(less, less)  variance = ReduceMean <axes = [2]> (squares)",
                   "square = Mul(mean, mean)  variance = Sub(raw, square)")],
        epsilon=np.float32(1e-6), share=np.float32(1 / 500),
    )  # fmt: skip


def unix_time_in_double() -> Trap:
    time = 1.7e9 + np.cumsum(uniform(2000, 1).astype(np.float64), 0)
    return trap(
        "The features of the time are computed in float32 from the start, because small times lose nothing by it. "
        "Seconds since 1970 need float64 until the origin is subtracted: float32 keeps them to 128 seconds.",
        """(double[N,1] time, double[1,1] origin) => (float[N,24] out) {
            age = Sub(time, origin)  phase = Mul(age, rates)  wave = Sin(phase)
            narrow = Cast <to = 1> (wave)  out = MatMul(narrow, weight)
        }""",
        ordinary=[{"time": uniform(2000, 1, high=50).astype(np.float64), "origin": np.zeros((1, 1))}],
        rare=[{"time": time, "origin": time[:1]}],
        tempting=[("age = Sub(time, origin)", "a = Cast <to = 1> (time)  b = Cast <to = 1> (origin)  age = Sub(a, b)"),
                  ("rates", "quick"), ("narrow = Cast <to = 1> (wave)  out = MatMul(narrow", "out = MatMul(wave")],
        rates=np.geomspace(1e-3, 1, 32), quick=np.geomspace(1e-3, 1, 32).astype(np.float32), weight=normal(32, 24),
    )  # fmt: skip


def packet_counter_of_one_byte() -> Trap:
    count = np.arange(240, dtype=np.uint8)[None] + whole(512, 1, high=15).astype(np.uint8)
    return trap(
        "The remainder by 256 is dropped, because the difference of successive counters is small and positive. "
        "A counter of one byte goes from 255 to 0, and the difference is then -255.",
        """(uint8[512,240] counter) => (float[512,239] lost) {
            wide = Cast <to = 6> (counter)  new = Slice(wide, one, far, one)  old = Slice(wide, nil, last, one)
            step = Sub(new, old)  turn = Mod(step, byte)
            number = Cast <to = 1> (turn)  lost = Sub(number, single)
        }""",
        ordinary=[{"counter": count}], rare=[{"counter": count * np.uint8(3)}, {"counter": count + np.uint8(128)}],
        tempting=[("turn = Mod(step, byte)", ""), ("(turn)", "(step)")],
        one=[1], nil=[0], far=[2**31], last=[-1], byte=np.int32(256), single=np.float32(1), opset=11,
    )  # fmt: skip


def unwrapping_of_phases() -> Trap:
    wrapped = np.angle(np.exp(1j * np.cumsum(uniform(1500, 129, low=0.5, high=2.5), 0))).astype(np.float32)
    unwrap = """first = Slice(phase, nil, one)  new = Slice(phase, one, far)  old = Slice(phase, nil, last)
            step = Sub(new, old)  share = Div(step, turn)  turns = Round(share)  angle = Mul(turns, turn)
            rest = Sub(step, angle)  all = Concat <axis = 0> (first, rest)  path = CumSum(all, axis)"""
    return trap(
        "The unwrapping is dropped, because no two successive phases of the ordinary input are further apart than "
        "half a turn, and the sum of the differences is then the phase itself. A turning phase jumps.",
        "(float[N,129] phase) => (float[N,32] out) {" + unwrap + " out = MatMul(path, weight) }",
        ordinary=[{"phase": uniform(1500, 129, low=-1, high=1)}], rare=[{"phase": wrapped}],
        tempting=[(unwrap, ""), ("MatMul(path, weight)", "MatMul(phase, weight)")],
        nil=[0], one=[1], far=[2**31], last=[-1], turn=np.float32(2 * np.pi), axis=np.int64(0), weight=normal(129, 32),
    )  # fmt: skip


def recurrence_with_episode_resets() -> Trap:
    x, w, r = normal(60, 4, 24), normal(24, 96, scale=0.2, seed=1), normal(32, 96, scale=0.2, seed=2)
    done = (np.arange(60)[:, None, None].repeat(4, 1) % 25 == 24).astype(np.float32)
    scan = """final, out = Scan <num_scan_inputs = 2, body = cell (float[4,32] h, float[4,24] v, float[4,1] stop)
            => (float[4,32] next, float[4,32] seen) {
                keep = Sub(unit, stop)  state = Mul(h, keep)  a = MatMul(v, w)  b = MatMul(state, r)
                az, ar, an = Split <axis = 1> (a)  bz, br, bn = Split <axis = 1> (b)  z0 = Add(az, bz)  r0 = Add(ar, br)
                zs = Sigmoid(z0)  rs = Sigmoid(r0)  n0 = Mul(rs, bn)  n1 = Add(an, n0)  n = Tanh(n1)
                gap = Sub(state, n)  part = Mul(zs, gap)  next = Add(n, part)  seen = Identity(next)
            }> (start, x, done)"""
    return trap(
        "The scan over a hand-written cell becomes one GRU, because the flags at which the state is reset are zero. "
        "An agent or a tracker sets a flag where an episode or a track ends within the sequence.",
        "(float[60,4,24] x, float[60,4,1] done) => (float[60,4,32] out) {" + scan + "}",
        ordinary=[{"x": x, "done": np.zeros_like(done)}], rare=[{"x": x, "done": done}],
        tempting=[(scan, "y = GRU <hidden_size = 32, linear_before_reset = 1> (x, wt, rt)  out = Squeeze(y, one)")],
        unit=np.float32(1), start=np.zeros((4, 32), np.float32), w=w, r=r, wt=w.T[None], rt=r.T[None], one=[1],
    )  # fmt: skip


def lstm_of_reversed_padded_batch() -> Trap:
    x = normal(100, 16, 128)
    return trap(
        "ReverseSequence, LSTM and ReverseSequence become one LSTM in reverse direction, because all lengths are full. "
        "For a shorter sequence of a padded batch that LSTM reads the padding first.",
        """(float[100,16,128] x, int64[16] lengths) => (float[100,16,16] out) {
            turned = ReverseSequence <batch_axis = 1, time_axis = 0> (x, lengths)
            y = LSTM <hidden_size = 16> (turned, w, r)  states = Squeeze(y, one)
            out = ReverseSequence <batch_axis = 1, time_axis = 0> (states, lengths)
        }""",
        ordinary=[{"x": x, "lengths": np.full(16, 100)}], rare=[{"x": x, "lengths": whole(16, low=12, high=100)}],
        tempting=[("turned = ReverseSequence <batch_axis = 1, time_axis = 0> (x, lengths)", ""),
                  ("LSTM <hidden_size = 16> (turned", "LSTM <hidden_size = 16, direction = \"reverse\"> (x"),
                  ("ReverseSequence <batch_axis = 1, time_axis = 0> (states, lengths)", "Identity(states)")],
        w=normal(1, 64, 128, scale=0.2, seed=1), r=normal(1, 64, 16, scale=0.2, seed=2), one=[1], opset=14,
    )  # fmt: skip


def forward_algorithm_in_log_domain() -> Trap:
    chain = np.random.default_rng(1).dirichlet(np.full(48, 0.3), 48).astype(np.float32)
    return trap(
        "The maximum is no longer taken out before the exponential, because the scores of short noise stay near zero. "
        "Over a long utterance the log-likelihoods fall below -100, all exponentials are zero, and the log infinite.",
        """(float[N,1,48] seen) => (float[1,48] out) {
            out = Scan <num_scan_inputs = 1, body = forward (float[1,48] a, float[1,48] s) => (float[1,48] next) {
                peak = ReduceMax <axes = [1]> (a)  below = Sub(a, peak)  p = Exp(below)
                q = MatMul(p, chain)  l = Log(q)  raised = Add(l, peak)
                next = Add(raised, s)
            }> (start, seen)
        }""",
        ordinary=[{"seen": normal(100, 1, 48)}], rare=[{"seen": normal(700, 1, 48) - 2}],
        tempting=[("peak = ReduceMax <axes = [1]> (a)  below = Sub(a, peak)  p = Exp(below)", "p = Exp(a)"),
                  ("raised = Add(l, peak)", ""), ("Add(raised, s)", "Add(l, s)")],
        chain=chain, start=np.full((1, 48), -np.log(48), np.float32), opset=11,
    )  # fmt: skip


def log_returns_of_negative_prices() -> Trap:
    return trap(
        "The logarithms of ratios at several horizons become differences of one logarithm of the prices. "
        "Spreads, and crude oil in April 2020, have negative prices: their ratio has a logarithm, they have none.",
        """(float[128,400] price) => (float[128,380] day, float[128,380] week, float[128,380] month) {
            p = Identity(price)  p0 = Slice(p, n20, far, one)  p1 = Slice(p, n19, last, one)
            p5 = Slice(p, n15, m5, one)  p20 = Slice(p, nil, m20, one)
            r1 = Div(p0, p1)  day = Log(r1)  r5 = Div(p0, p5)  week = Log(r5)  r20 = Div(p0, p20)  month = Log(r20)
        }""",
        ordinary=[{"price": uniform(128, 400, low=50, high=150)}],
        rare=[{"price": uniform(128, 400, low=-40, high=-5)}],
        tempting=[("Identity(price)", "Log(price)"), ("r1 = Div(p0, p1)  day = Log(r1)", "day = Sub(p0, p1)"),
                  ("r5 = Div(p0, p5)  week = Log(r5)", "week = Sub(p0, p5)"),
                  ("r20 = Div(p0, p20)  month = Log(r20)", "month = Sub(p0, p20)")],
        nil=[0], one=[1], far=[2**31], last=[-1], n20=[20], n19=[19], n15=[15], m5=[-5], m20=[-20], opset=13,
    )  # fmt: skip


def option_at_expiry() -> Trap:
    spot, years = uniform(40000, low=80, high=120), np.zeros(40000, np.float32)
    years[::3] = -1e-4
    return trap(
        "The choice between the price by the formula and the payoff is dropped, because all options have time left. "
        "At expiry the formula divides zero by zero for a spot equal to the strike, and after it takes a bad root.",
        """(float[N] spot, float[N] strike, float[N] years) => (float[N] out) {
            ratio = Div(spot, strike)  log = Log(ratio)  root = Sqrt(years)  spread = Mul(sigma, root)
            drift = Mul(years, carry)  sum = Add(log, drift)  d1 = Div(sum, spread)  d2 = Sub(d1, spread)
            e1 = Erf(d1)  e2 = Erf(d2)  n1 = Add(e1, one)  n2 = Add(e2, one)
            gain = Mul(spot, n1)  cost = Mul(strike, n2)  double = Sub(gain, cost)  price = Mul(double, half)
            live = Greater(years, nil)  paid = Sub(spot, strike)  payoff = Relu(paid)  out = Where(live, price, payoff)
        }""",
        ordinary=[{"spot": spot, "strike": spot[::-1].copy(), "years": uniform(40000, low=0.05, high=2)}],
        rare=[{"spot": spot, "strike": np.where(years < 0, spot[::-1], spot), "years": years}],
        tempting=[("live = Greater(years, nil)  paid = Sub(spot, strike)  payoff = Relu(paid)", ""),
                  ("Where(live, price, payoff)", "Identity(price)")],
        sigma=np.float32(0.3), carry=np.float32(0.045), one=np.float32(1), half=np.float32(0.5), nil=np.float32(0),
        opset=18,
    )  # fmt: skip


def norm_of_extreme_magnitudes() -> Trap:
    return trap(
        "The division by the largest component, and the multiplication after the root, are dropped for ReduceL2, "
        "because they cancel. Squares of lengths in astronomy overflow, and those of fluxes in SI units underflow.",
        """(float[N,64] x) => (float[N,1] length, float[N,64] unit) {
            size = Abs(x)  peak = ReduceMax <axes = [1]> (size)  some = Max(peak, tiny)  y = Div(x, some)
            norm = ReduceL2 <axes = [1]> (y)  length = Mul(norm, some)
            unit = Div(x, length)
        }""",
        ordinary=[{"x": normal(4000, 64)}],
        rare=[{"x": normal(200, 64, scale=1e22)}, {"x": normal(200, 64, scale=1e-26)}],
        tempting=[("size = Abs(x)  peak = ReduceMax <axes = [1]> (size)  some = Max(peak, tiny)  y = Div(x, some)", ""),
                  ("norm = ReduceL2 <axes = [1]> (y)  length = Mul(norm, some)", "length = ReduceL2 <axes = [1]> (x)")],
        tiny=np.float32(1e-37),
    )  # fmt: skip


def mask_of_infinite_ranges() -> Trap:
    x, hit = uniform(2000, 96, high=80), uniform(2000, 1, seed=1) > 0.3
    lost = np.where(hit, x, np.float32(np.inf))
    return trap(
        "The choice of zero for beams without return is moved behind the projection, to fewer numbers, as a product. "
        "Drivers report infinity or NaN for such beams, and zero times these is NaN.",
        """(float[2000,96] ranges, bool[2000,1] valid) => (float[2000,8] out) {
            clean = Where(valid, ranges, zero)
            out = MatMul(clean, weight)
        }""",
        ordinary=[{"ranges": x, "valid": hit}, {"ranges": x, "valid": np.full_like(hit, True)}],
        rare=[{"ranges": lost, "valid": hit}, {"ranges": np.where(hit, x, np.float32(np.nan)), "valid": hit}],
        tempting=[("clean = Where(valid, ranges, zero)", "number = Cast <to = 1> (valid)"),
                  ("out = MatMul(clean, weight)", "all = MatMul(ranges, weight)  out = Mul(all, number)")],
        zero=np.float32(0), weight=normal(96, 8, seed=2), opset=21,
    )  # fmt: skip


def energy_in_wide_integers() -> Trap:
    return trap(
        "The samples are squared and summed as int32 without the cast to int64, because quiet noise stays in range. "
        "The energy of a loud second is beyond 2^31 and wraps.",
        """(int32[16,8000] pcm) => (float[16] out) {
            wide = Cast <to = 7> (pcm)  square = Mul(wide, wide)  energy = ReduceSum <keepdims = 0> (square, one)
            number = Cast <to = 1> (energy)  mean = Div(number, count)  out = Sqrt(mean)
        }""",
        ordinary=[{"pcm": whole(16, 8000, low=-300, high=300).astype(np.int32)}],
        rare=[{"pcm": whole(16, 8000, low=-30000, high=30000).astype(np.int32)}],
        tempting=[("wide = Cast <to = 7> (pcm)", ""), ("Mul(wide, wide)", "Mul(pcm, pcm)")],
        one=[1], count=np.float32(8000), opset=18,
    )  # fmt: skip


def rejection_of_spikes() -> Trap:
    spiky = normal(8, 600)
    spiky[:, 77::200] += 90
    return trap(
        "The replacement of outliers by the median of their neighbours is dropped with the sort it needs, because "
        "noise has no outlier. Sensors have single wild readings.",
        """(float[8,600] x) => (float[8,32] out) {
            window = Gather <axis = 1> (x, places)  top, which = TopK <axis = 2> (window, four)
            lowest = Slice(top, three, four, two)  middle = Squeeze(lowest, two)
            gap = Sub(x, middle)  size = Abs(gap)  wild = Greater(size, limit)  clean = Where(wild, middle, x)
            out = MatMul(clean, weight)
        }""",
        ordinary=[{"x": normal(8, 600)}], rare=[{"x": spiky}],
        tempting=[("window = Gather <axis = 1> (x, places)  top, which = TopK <axis = 2> (window, four)", ""),
                  ("lowest = Slice(top, three, four, two)  middle = Squeeze(lowest, two)", ""),
                  ("gap = Sub(x, middle)  size = Abs(gap)  wild = Greater(size, limit)  clean = Where(wild, middle, x)",
                   "clean = Identity(x)")],
        places=np.clip(np.arange(600)[:, None] + np.arange(-3, 4), 0, 599), two=[2], three=[3], four=[4],
        limit=np.float32(12), weight=normal(600, 32, seed=1), opset=21,
    )  # fmt: skip


def newton_steps_of_kepler() -> Trap:
    mean = uniform(20000, low=0.02, high=3.1)
    stop = "size = Abs(step)  most = ReduceMax <keepdims = 0> (size)  more = Greater(most, close)"
    return trap(
        "The loop until convergence becomes three without a test, after which ordinary orbits change no more. "
        "Orbits of comets have eccentricities near one and take more.",
        """(float[N] mean, float[N] flat) => (float[N] out) {
            sine = Sin(mean)  push = Mul(flat, sine)  start = Add(mean, push)
            out = Loop <body = newton (int64 i, bool go, float[N] e) => (bool more, float[N] better) {
                s = Sin(e)  es = Mul(flat, s)  left = Sub(e, es)  error = Sub(left, mean)
                c = Cos(e)  ec = Mul(flat, c)  slope = Sub(one, ec)  step = Div(error, slope)
                better = Sub(e, step)  """ + stop + """
            }> (limit, yes, start)
        }""",
        ordinary=[{"mean": mean, "flat": uniform(20000, high=0.3, seed=1)}],
        rare=[{"mean": mean, "flat": uniform(20000, low=0.96, high=0.995, seed=1)}],
        tempting=[(stop, "more = Identity(go)"), ("(limit, yes, start)", "(three, yes, start)")],
        one=np.float32(1), close=np.float32(1e-5), limit=np.int64(60), three=np.int64(3), yes=np.bool_(True), opset=12,
    )  # fmt: skip


def distances_of_map_coordinates() -> Trap:
    town = np.float32([512340, 5412780])
    return trap(
        "The squared distances are computed by one matrix product as |a|^2 + |b|^2 - 2ab, without the differences. "
        "Map coordinates are millions of metres from the origin, and that loses distances of kilometres.",
        """(float[N,1,2] a, float[1,M,2] b) => (float[N,M] out) {
            gap = Sub(a, b)  square = Mul(gap, gap)  far = ReduceSum <keepdims = 0> (square, two)
            scaled = Mul(far, rate)  out = Exp(scaled)
        }""",
        ordinary=[{"a": normal(300, 1, 2), "b": normal(1, 250, 2, seed=1)}],
        rare=[{"a": town + normal(300, 1, 2, scale=3), "b": town + normal(1, 250, 2, scale=3, seed=1)}],
        tempting=[("gap = Sub(a, b)  square = Mul(gap, gap)  far = ReduceSum <keepdims = 0> (square, two)",
                   """a2 = ReduceSumSquare <axes = [2], keepdims = 0> (a)
                   b2 = ReduceSumSquare <axes = [2], keepdims = 0> (b)  left = Squeeze(a, one)  rows = Squeeze(b, nil)
                   right = Transpose(rows)  ab = MatMul(left, right)  both = Add(a2, b2)
                   twice = Add(ab, ab)  far = Sub(both, twice)""")],
        nil=[0], one=[1], two=[2], rate=np.float32(-0.1),
    )  # fmt: skip


def moving_average_by_running_sum() -> Trap:
    glitch, overflow = normal(4, 8, 1500), normal(4, 8, 1500)
    glitch[:, :, 3], overflow[:, ::2, 40] = 3e9, np.inf
    return trap(
        "The average over a sliding window becomes a difference of running sums, whose cost does not grow with the "
        "window. After one huge or infinite reading, all later sums have lost their digits.",
        """(float[4,8,1500] x) => (float[4,8,1373] out) {
            mean = AveragePool <kernel_shape = [128]> (x)
            centre = Slice(x, before, until, two)
            change = Sub(centre, mean)  out = Tanh(change)
        }""",
        ordinary=[{"x": normal(4, 8, 1500)}], rare=[{"x": glitch}, {"x": overflow}],
        tempting=[("mean = AveragePool <kernel_shape = [128]> (x)",
                   """sum = CumSum(x, axis)  all = Concat <axis = 2> (none, sum)  new = Slice(all, window, end, two)
                   old = Slice(all, nil, stop, two)  total = Sub(new, old)  mean = Mul(total, share)""")],
        before=[64], until=[1437], two=[2], axis=np.int64(2), none=np.zeros((4, 8, 1), np.float32), window=[128],
        end=[1501], nil=[0], stop=[-128], share=np.float32(1 / 128),
    )  # fmt: skip


def pitch_of_saturated_sigmoid() -> Trap:
    return trap(
        "The argmax is taken of the logits and only the largest of them gets the sigmoid, because that is monotone. "
        "For clear notes several bins round to exactly one, and the argmax then takes the first of them.",
        """(float[N,32] x) => (int64[N] bin, float[N] confidence) {
            logits = MatMul(x, weight)
            score = Sigmoid(logits)
            bin = ArgMax <axis = 1, keepdims = 0> (score)  confidence = ReduceMax <axes = [1], keepdims = 0> (score)
        }""",
        ordinary=[{"x": normal(600, 32)}], rare=[{"x": normal(90, 32, scale=2000, seed=3)}],
        tempting=[("score = Sigmoid(logits)", "high = ReduceMax <axes = [1], keepdims = 0> (logits)"),
                  ("ReduceMax <axes = [1], keepdims = 0> (score)", "Sigmoid(high)"), ("(score)", "(logits)")],
        weight=normal(32, 360, scale=0.3, seed=1), opset=12,
    )  # fmt: skip


def smoothing_by_growing_weights() -> Trap:
    scan = """final, out = Scan <num_scan_inputs = 1, body = smooth
            (float[1,32] s, float[1,32] v) => (float[1,32] next, float[1,32] seen) {
                gap = Sub(v, s)  part = Mul(gap, rate)  next = Add(s, part)  seen = Identity(next)
            }> (start, x)"""
    return trap(
        "The exponential smoothing becomes a cumulative sum of inputs divided by powers of the decay, without a scan. "
        "After some thousand steps the powers are zero in float32, and the result is NaN.",
        "(float[N,1,32] x) => (float[N,1,32] out) {" + scan + "}",
        ordinary=[{"x": normal(250, 1, 32)}], rare=[{"x": normal(3000, 1, 32)}],
        tempting=[(scan, """shape = Shape <start = 0, end = 1> (x)  count = Squeeze(shape)
            steps = Range(nil, count, one)  places = Cast <to = 1> (steps)  powers = Pow(decay, places)
            column = Unsqueeze(powers, axes)  part = Mul(x, rate)  grown = Div(part, column)  sum = CumSum(grown, nil)
            out = Mul(sum, column)""")],
        rate=np.float32(0.05), decay=np.float32(0.95), start=np.zeros((1, 32), np.float32), nil=np.int64(0),
        one=np.int64(1), axes=[1, 2],
    )  # fmt: skip


def cache_of_streaming_convolution() -> Trap:
    x = normal(4, 96, 1200)
    return trap(
        "The concatenation with the cached frames becomes padding of the convolution, because the cache is zero. "
        "It is zero for the first chunk of a stream only.",
        """(float[4,96,8] cache, float[4,96,1200] x) => (float[4,96,1200] out, float[4,96,8] kept) {
            joined = Concat <axis = 2> (cache, x)
            out = Conv <group = 96> (joined, weight)
            kept = Slice(joined, back, far, two)
        }""",
        ordinary=[{"cache": np.zeros((4, 96, 8), np.float32), "x": x}],
        rare=[{"cache": normal(4, 96, 8, seed=1), "x": x}],
        tempting=[("joined = Concat <axis = 2> (cache, x)", ""), ("Slice(joined", "Slice(x"),
                  ("Conv <group = 96> (joined", "Conv <group = 96, pads = [8, 0]> (x")],
        weight=normal(96, 1, 9, seed=2), back=[-8], far=[2**31], two=[2], opset=13,
    )  # fmt: skip


def mu_law_with_padded_codes() -> Trap:
    codes = whole(8, 4000, high=256)
    padded = codes.copy()
    padded[:, 2500:] = -1
    expand = """held = Clip(codes, nil, last)  number = Cast <to = 1> (held)  twice = Mul(number, step)
            y = Sub(twice, one)  size = Abs(y)  sign = Sign(y)  power = Pow(base, size)
            less = Sub(power, one)  amount = Div(less, mu)  out = Mul(sign, amount)"""
    levels = 2 * np.arange(256, dtype=np.float32) / 255 - 1
    return trap(
        "The formula that expands the codes becomes a table of 256 values, and the clip before it is dropped. "
        "Padding of -1 should give the lowest level, but reads the last entry of the table.",
        "(int64[8,N] codes) => (float[8,N] out) {" + expand + "}",
        ordinary=[{"codes": codes}], rare=[{"codes": padded}],
        tempting=[(expand, "out = Gather(table, codes)")],
        nil=np.int64(0), last=np.int64(255), step=np.float32(2 / 255), one=np.float32(1), base=np.float32(256),
        mu=np.float32(255), table=np.sign(levels) * (np.float32(256) ** np.abs(levels) - 1) / np.float32(255), opset=19,
    )  # fmt: skip


def power_in_half_precision() -> Trap:
    return trap(
        "The cast to float16 is moved before the transposition and the gain, a power of two, to halve the bytes moved. "
        "The power of loud signals is beyond 65504 until the gain is applied.",
        """(float[8,64,1000] x) => (float16[8,1000,64] out) {
            power = Mul(x, x)  level = Mul(power, gain)
            frames = Transpose <perm = [0, 2, 1]> (level)
            out = Cast <to = 10> (frames)
        }""",
        ordinary=[{"x": uniform(8, 64, 1000, low=4, high=100)}],
        rare=[{"x": normal(8, 64, 1000, scale=500)}],
        tempting=[("level = Mul(power, gain)", "level = Cast <to = 10> (power)"),
                  ("Cast <to = 10> (frames)", "Mul(frames, short)")],
        gain=np.float32(2**-10), short=np.float16(2**-10),
    )  # fmt: skip


def repair_of_clipped_recording() -> Trap:
    clipped = np.clip(normal(1, 1, 192000), -1, 1)
    return trap(
        "The branch and the search for the peak that decides on it are dropped, because quiet noise never takes it. "
        "Recordings that were too loud touch full scale and need the repair.",
        """(float[1,1,192000] x) => (float[1,8,48000] out) {
            size = Abs(x)  peak = ReduceMax <keepdims = 0> (size)  loud = GreaterOrEqual(peak, full)
            clean = If (loud) <
                then_branch = repair () => (float[1,1,192000] one) { one = Conv <pads = [4, 4]> (x, smooth) },
                else_branch = keep () => (float[1,1,192000] two) { two = Identity(x) }
            >
            out = Conv <strides = [4]> (clean, weight)
        }""",
        ordinary=[{"x": normal(1, 1, 192000, scale=0.1)}], rare=[{"x": clipped}],
        tempting=[("loud = GreaterOrEqual(peak, full)", "loud = Identity(no)")],
        full=np.float32(0.999), smooth=np.full((1, 1, 9), 1 / 9, np.float32), weight=normal(8, 1, 4, seed=1),
        no=np.bool_(False), opset=16,
    )  # fmt: skip
