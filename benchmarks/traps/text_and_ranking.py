"""Traps in language models, text classifiers, recommenders, ranking and tabular models."""

from __future__ import annotations

import numpy as np

from .trap import Trap, normal, trap, uniform, whole

_COMMON = {
    "zero": np.float32(0), "one": np.float32(1), "bottom": np.float32(-np.inf), "none": np.int64(0),
    "unit": np.int64(1), "at0": np.int64([0]), "at1": np.int64([1]), "at2": np.int64([2]), "last": np.int64([-1]),
}  # fmt: skip


def sentence_masked_as_a_whole() -> Trap:
    return trap(
        "Drops the repair of NaN after Softmax, as no ordinary row has NaN; a sentence of padding only gives NaN rows.",
        """(float[4,8,64,32] q, float[4,8,32,64] k, float[4,8,64,32] v, bool[4,1,1,64] mask) => (float[4,8,64,32] out) {
            s = MatMul(q, k)
            m = Where(mask, s, bottom)
            p = Softmax <axis = -1> (m)
            b = IsNaN(p) c = Where(b, zero, p)
            out = MatMul(c, v)
        }""",
        ordinary=[_heads(64)],
        rare=[_heads(64, 0), _heads(40, 0)],
        tempting=[("b = IsNaN(p) c = Where(b, zero, p)", "c = Identity(p)")],
        **_COMMON,
    )


def _heads(length: int, shortest: int = 64) -> dict[str, np.ndarray]:
    lengths = np.array([length, length, shortest, length]).reshape(4, 1, 1, 1)
    shapes = {"q": (4, 8, 64, 32), "k": (4, 8, 32, 64), "v": (4, 8, 64, 32)}
    feed = {name: normal(*shape, scale=0.5, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    return feed | {"mask": np.arange(64) < lengths}


def relative_buckets_of_a_long_text() -> Trap:
    return trap(
        "Makes the bucket of a distance the distance itself, as for short texts; from 128 tokens on it grows with Log.",
        """(float[N,32] x) => (float[N,32] out) {
            size = Shape <start = 0, end = 1> (x) n = Squeeze(size) r = Range(none, n, unit) c = Unsqueeze(r, at1)
            d = Sub(c, r) m = Max(d, none) f = Cast <to = 1> (m) q = Div(f, middle) g = Max(q, one) l = Log(g)
            o = Mul(l, per_log) i = Cast <to = 7> (o) j = Add(i, near) k = Min(j, top) exact = Less(m, near)
            bucket = Where(exact, m, k) bias = Gather(table, bucket) t = Transpose(x) u = MatMul(x, t)
            s = Add(u, bias) p = Softmax <axis = -1> (s) out = MatMul(p, x) }""",
        ordinary=[{"x": normal(128, 32, scale=0.3)}, {"x": normal(90, 32, scale=0.3)}],
        rare=[{"x": normal(400, 32, scale=0.3)}],
        tempting=[("Where(exact, m, k)", "Min(m, top)")],
        opset=21,
        **_COMMON | {"middle": np.float32(128), "per_log": np.float32(127 / np.log(4)), "table": normal(256)},
        near=np.int64(128),
        top=np.int64(255),
    )


def last_row_of_a_slice() -> Trap:
    return trap(
        "Reads the rows from the whole tensor to save the copy of the slice; index -1 means the end of the slice.",
        """(float[N,512,128] states, int64[1] length, int64[2] which) => (float[N,2,64] out) {
            valid = Slice(states, at0, length, at1)
            rows = Gather <axis = 1> (valid, which)
            out = MatMul(rows, weights)
        }""",
        ordinary=[{"states": normal(12, 512, 128), "length": np.int64([400]), "which": np.int64([0, 399])}],
        rare=[{"states": normal(12, 512, 128), "length": np.int64([400]), "which": np.int64([0, -1])}],
        tempting=[("valid = Slice(states, at0, length, at1)", ""), ("(valid, which)", "(states, which)")],
        opset=21,
        weights=normal(128, 64, scale=0.1, seed=1),
        **_COMMON,
    )


def place_in_a_block_of_negative_offsets() -> Trap:
    return trap(
        "Takes the place in a block from the quotient and saves Mod; Div truncates negative offsets, Mod rounds down.",
        """(float[64,1024] scores, int32[64,1024] offset) => (float[64,1024] out) {
            block = Div(offset, sixteen) i = Add(block, middle) far = Gather(table, i)
            place = Mod(offset, sixteen) f = Cast <to = 1> (place) near = Mul(f, slope)
            s = Add(scores, far) out = Add(s, near)
        }""",
        ordinary=[{"scores": normal(64, 1024), "offset": whole(64, 1024, high=500).astype(np.int32)}],
        rare=[{"scores": normal(64, 1024), "offset": whole(64, 1024, low=-500, high=500).astype(np.int32)}],
        tempting=[("place = Mod(offset, sixteen)", "start = Mul(block, sixteen) place = Sub(offset, start)")],
        sixteen=np.int32(16),
        middle=np.int32(32),
        slope=np.float32(0.1),
        table=normal(65, seed=1),
    )


def best_64_of_many_memories() -> Trap:
    return trap(
        "Drops the choice of the best min(n, 64) memories, as it keeps all of them for short ones; wrong beyond 64.",
        """(float[64,128] query, float[N,128] memory) => (float[64,128] out) {
            t = Transpose(memory) s = MatMul(query, t)
            n = Shape <start = 0, end = 1> (memory) k = Min(n, limit)
            v, i = TopK(s, k) m = Gather(memory, i)
            p = Softmax <axis = -1> (v) w = Unsqueeze(p, at1) c = MatMul(w, m) out = Squeeze(c, at1)
        }""",
        ordinary=[{"query": normal(64, 128, scale=0.3), "memory": normal(60, 128, scale=0.3, seed=1)}],
        rare=[{"query": normal(64, 128, scale=0.3), "memory": normal(400, 128, scale=0.3, seed=1)}],
        tempting=[("v, i = TopK(s, k) m = Gather(memory, i)", "v = Identity(s) m = Identity(memory)")],
        limit=np.int64([64]),
        **_COMMON,
    )


def rotary_scaling_of_long_texts() -> Trap:
    angles = np.arange(1024, dtype=np.float32)[:, None] * _FREQUENCIES
    return trap(
        "Reads angles from tables, as If takes one branch up to 256 tokens; longer texts scale the frequencies.",
        f"""(float[8,N,64] x) => (float[8,N,64] out) {{
            size = Shape <start = 1, end = 2> (x) n = Squeeze(size) length = Cast <to = 1> (n)
            long = Greater(length, trained) f = {_SCALED} r = Range(zero, length, one) c = Unsqueeze(r, at1)
            angle = Mul(c, f) cos = Cos(angle) sin = Sin(angle) a, b = Split <axis = -1> (x) ac = Mul(a, cos)
            bs = Mul(b, sin) bc = Mul(b, cos) as = Mul(a, sin) u = Sub(ac, bs) v = Add(bc, as)
            out = Concat <axis = -1> (u, v) }}""",
        ordinary=[{"x": normal(8, 256, 64)}],
        rare=[{"x": normal(8, 400, 64)}],
        tempting=[("Cos(angle) sin = Sin(angle)", "Slice(cosines, at0, size) sin = Slice(sines, at0, size)")],
        **_COMMON | {"trained": np.float32(256), "exponent": -np.arange(32, dtype=np.float32) / 31},
        frequencies=_FREQUENCIES,
        cosines=np.cos(angles),
        sines=np.sin(angles),
    )


_FREQUENCIES = np.float32(10000.0 ** (-np.arange(32) / 32))
_SCALED = """If(long) <
    then_branch = g1 () => (float[32] slow) { by = Div(length, trained) power = Pow(by, exponent)
        slow = Mul(frequencies, power) }, else_branch = g2 () => (float[32] same) { same = Identity(frequencies) }>"""


def top_50_filter_with_ties() -> Trap:
    return trap(
        "Takes Softmax of the 50 values of TopK only and scatters them; the filter keeps tokens tied with the 50th.",
        """(float[1,32000] logits) => (float[1,32000] out) {
            v, i = TopK(logits, fifty)
            weakest = ReduceMin <axes = [1]> (v) low = Less(logits, weakest) m = Where(low, bottom, logits)
            out = Softmax <axis = -1> (m)
        }""",
        ordinary=[{"logits": normal(1, 32000, scale=2)}],
        rare=[{"logits": np.round(4 * normal(1, 32000, scale=2)) / 4}],
        tempting=[("Softmax <axis = -1> (m)", "ScatterElements <axis = 1> (zeros, i, p)"), (_FILTER, _SOFTMAX)],
        fifty=np.int64([50]),
        zeros=np.zeros((1, 32000), np.float32),
        **_COMMON,
    )


_FILTER = "weakest = ReduceMin <axes = [1]> (v) low = Less(logits, weakest) m = Where(low, bottom, logits)"
_SOFTMAX = "p = Softmax <axis = -1> (v)"


def temperature_zero_means_greedy() -> Trap:
    logits = normal(2, 32000, scale=2)
    return trap(
        "Drops the greedy choice for low temperatures, that ordinary ones never use; temperature 0 divides by zero.",
        """(float[2,32000] logits, float[1] temperature) => (float[2,32000] out) {
            cold = Less(temperature, least)
            best = ArgMax <axis = 1, keepdims = 0> (logits) greedy = OneHot(best, words, off_on)
            t = Div(logits, temperature) p = Softmax <axis = -1> (t)
            out = Where(cold, greedy, p)
        }""",
        ordinary=[{"logits": logits, "temperature": np.float32([0.7])}],
        rare=[{"logits": logits, "temperature": np.float32([0])}],
        tempting=[("Where(cold, greedy, p)", "Identity(p)")],
        opset=13,
        least=np.float32(1e-5),
        words=np.int64(32000),
        off_on=np.float32([0, 1]),
    )


def capacity_of_experts() -> Trap:
    same = np.repeat(normal(8, 32), 512, axis=0)
    return trap(
        "Drops the capacity of 512 rows per expert, that ordinary batches do not reach; similar rows overflow one.",
        """(float[4096,32] x) => (float[4096] out) {
            g = MatMul(x, router) p = Softmax <axis = -1> (g) e = ArgMax <axis = 1, keepdims = 0> (p)
            chosen = OneHot(e, experts, off_on)
            rank = CumSum(chosen, none) over = Greater(rank, capacity) kept = Where(over, zero, chosen)
            w = Mul(kept, p) y = MatMul(x, linear) z = Mul(y, w) out = ReduceSum <keepdims = 0> (z, at1)
        }""",
        ordinary=[{"x": normal(4096, 32)}, {"x": normal(4096, 32, seed=1)}],
        rare=[{"x": same + normal(4096, 32, scale=0.01, seed=1)}],
        tempting=[(_CAPACITY, "kept = Identity(chosen)")],
        **_COMMON | {"router": normal(32, 16, scale=0.3, seed=2), "linear": normal(32, 16, seed=3)},
        experts=np.int64(16),
        off_on=np.float32([0, 1]),
        capacity=np.float32(512),
    )


_CAPACITY = "rank = CumSum(chosen, none) over = Greater(rank, capacity) kept = Where(over, zero, chosen)"


def many_users_in_a_batch() -> Trap:
    return trap(
        "Runs the tower of users for the first row only, as all rows ask for one user; a batch may mix users.",
        """(int64[N] user, int64[N] item) => (float[N] out) {
            u = Gather(users, user)
            h = MatMul(u, up) r = Relu(h) d = MatMul(r, down)
            i = Gather(items, item) m = Mul(d, i) out = ReduceSum <keepdims = 0> (m, at1)
        }""",
        ordinary=[{"user": np.full(600, 17), "item": whole(600, high=4000)}],
        rare=[{"user": np.repeat(np.int64([17, 18]), 300), "item": whole(600, high=4000)}],
        tempting=[("u = Gather(users, user)", "one_user = Slice(user, at0, at1) u = Gather(users, one_user)")],
        opset=13,
        **_COMMON | {"users": normal(4000, 64), "items": normal(4000, 64, seed=1)},
        up=normal(64, 256, scale=0.1),
        down=normal(256, 64, scale=0.1),
    )


def several_new_tokens_with_a_cache() -> Trap:
    return trap(
        "Drops the causal mask, as it hides nothing from a single new token; prompts and drafts bring several tokens.",
        """(float[8,N,64] q, float[8,N,64] k, float[8,N,64] v, float[8,P,64] old_k, float[8,P,64] old_v) =>
            (float[8,N,64] out) {
            keys = Concat <axis = 1> (old_k, k) values = Concat <axis = 1> (old_v, v)
            t = Transpose <perm = [0, 2, 1]> (keys) s = MatMul(q, t)
            olds = Shape <start = 1, end = 2> (old_k) alls = Shape <start = 1, end = 2> (keys)
            old = Squeeze(olds) all = Squeeze(alls) rows = Range(old, all, unit) cols = Range(none, all, unit)
            r = Unsqueeze(rows, at1) seen = GreaterOrEqual(r, cols) m = Where(seen, s, bottom)
            p = Softmax <axis = -1> (m) out = MatMul(p, values) }""",
        ordinary=[_step(1, 800), _step(1, 200)],
        rare=[_step(5, 800), _step(32, 0)],
        tempting=[("Where(seen, s, bottom)", "Identity(s)")],
        **_COMMON,
    )


def _step(new: int, old: int) -> dict[str, np.ndarray]:
    sizes = {"q": new, "k": new, "v": new, "old_k": old, "old_v": old}
    return {name: normal(8, size, 64, scale=0.4, seed=seed) for seed, (name, size) in enumerate(sizes.items())}


def users_without_history() -> Trap:
    return trap(
        "Makes the mean over known items a plain mean, as full histories have no padding; new users have only padding.",
        """(int64[256,32] history) => (float[256,16] out) {
            e = Gather(items, history)
            known = Greater(history, none) f = Cast <to = 1> (known) w = Unsqueeze(f, at2) m = Mul(e, w)
            s = ReduceSum <keepdims = 0> (m, at1) n = ReduceSum(f, at1) some = Max(n, one) mean = Div(s, some)
            new = Equal(n, zero) u = Where(new, newcomer, mean)
            out = MatMul(u, weights)
        }""",
        ordinary=[{"history": whole(256, 32, low=1, high=5000)}],
        rare=[{"history": whole(256, 32, low=1, high=5000) * (np.arange(256)[:, None] != 40)}],
        tempting=[("Where(new, newcomer, mean)", "ReduceMean <axes = [1], keepdims = 0> (e)")],
        **_COMMON | {"items": normal(5001, 64), "newcomer": normal(64, seed=1), "weights": normal(64, 16, scale=0.1)},
    )


def uneven_borders_of_buckets() -> Trap:
    borders = np.concatenate([np.arange(32) / 32, 1.25 ** np.arange(16)])
    return trap(
        "Finds the bucket by a product and Floor, as the borders are even where ordinary values lie; the tail is not.",
        """(float[N,16] x) => (float[N,8] out) {
            u = Unsqueeze(x, last) reached = GreaterOrEqual(u, borders) f = Cast <to = 1> (reached)
            c = ReduceSum <keepdims = 0> (f, last)
            i = Cast <to = 7> (c) e = Gather(table, i) flat = Reshape(e, rows) out = MatMul(flat, weights)
        }""",
        ordinary=[{"x": uniform(400, 16)}, {"x": uniform(100, 16, low=-0.2, seed=1)}],
        rare=[{"x": uniform(400, 16) ** 2 * 5}],
        tempting=[("ReduceSum <keepdims = 0> (f, last)", "Clip(n, zero, buckets)"), ("c = ", f"{_EVEN} c = ")],
        **_COMMON | {"borders": borders.astype(np.float32), "per_unit": np.float32(32), "buckets": np.float32(48)},
        table=normal(49, 8),
        rows=np.int64([-1, 128]),
        weights=normal(128, 8, scale=0.1),
    )


_EVEN = "b = Mul(x, per_unit) low = Floor(b) n = Add(low, one)"


def counts_summed_in_float16() -> Trap:
    views, rare = whole(128, 2048, high=8), whole(128, 2048, high=50, seed=1)
    return trap(
        "Sums counts in float16 and casts the sums, not the counts; sums above 65504 become infinite.",
        """(float16[128,2048] views, float16[128,2048] clicks) => (float[128,32] out) {
            v = Cast <to = 1> (views) c = Cast <to = 1> (clicks)
            sum_v = ReduceSum(v, at1) sum_c = ReduceSum(c, at1) pair = Concat <axis = 1> (sum_v, sum_c)
            sums = Identity(pair) more = Add(sums, one) l = Log(more) h = MatMul(l, weights) out = Tanh(h)
        }""",
        ordinary=[{"views": (views > 4).astype(np.float16), "clicks": (views > 6).astype(np.float16)}],
        rare=[{"views": (100 * rare).astype(np.float16), "clicks": views.astype(np.float16)}],
        tempting=[("Cast <to = 1>", "Identity"), ("sums = Identity", "sums = Cast <to = 1>")],
        weights=normal(2, 32, scale=0.1),
        **_COMMON,
    )


def lower_case_by_one_bit() -> Trap:
    letters = np.frombuffer(b"The Quick Brown Fox Jumps Over 13 Lazy Dogs. ", np.uint8)
    return trap(
        "Sets bit 5 to make letters lower case, right for letters, digits and blanks; it spoils _, [, @ and line ends.",
        """(uint8[64,512] text) => (float[64,16] out) {
            code = Cast <to = 6> (text)
            a = GreaterOrEqual(code, first) b = LessOrEqual(code, final) c = And(a, b)
            d = Add(code, bit) lower = Where(c, d, code)
            e = Gather(table, lower) out = ReduceMax <keepdims = 0> (e, at1)
        }""",
        ordinary=[{"text": letters[whole(64, 512, high=letters.size)]}],
        rare=[{"text": np.resize(np.frombuffer(b"def a_b(x):\n\treturn x[0]\n", np.uint8), (64, 512))}],
        tempting=[("Where(c, d, code)", "BitwiseOr(code, bit)")],
        opset=18,
        **_COMMON | {"first": np.int32(65), "final": np.int32(90), "bit": np.int32(32), "table": normal(256, 16)},
    )


def presence_penalty_of_repeated_tokens() -> Trap:
    tokens = np.stack([np.random.default_rng(row).permutation(32000)[:64] for row in range(8)])
    return trap(
        "Subtracts the penalty by a Scatter that adds, without a mask of seen tokens; repeated tokens pay repeatedly.",
        """(float[8,32000] logits, int64[8,64] tokens) => (float[8,32000] out) {
            seen = ScatterElements <axis = 1> (zeros, tokens, ones) cost = Mul(seen, penalty) out = Sub(logits, cost)
        }""",
        ordinary=[{"logits": normal(8, 32000), "tokens": tokens}],
        rare=[{"logits": normal(8, 32000), "tokens": np.sort(tokens % 50)}],
        tempting=[(_MASKED, 'out = ScatterElements <axis = 1, reduction = "add"> (logits, tokens, costs)')],
        opset=18,
        zeros=np.zeros((8, 32000), np.float32),
        ones=np.ones((8, 64), np.float32),
        penalty=np.float32(0.75),
        costs=np.full((8, 64), -0.75, np.float32),
    )


_MASKED = (
    """seen = ScatterElements <axis = 1> (zeros, tokens, ones) cost = Mul(seen, penalty) out = Sub(logits, cost)"""
)


def end_of_text_before_padding() -> Trap:
    ids = whole(8, 77, low=1, high=49000)
    return trap(
        "Runs the last layers for the last token only, where the largest id stood so far; padding may follow the end.",
        """(int64[8,77] ids, float[8,77,128] states) => (float[8,128] out) {
            s = Identity(states)
            h = MatMul(s, up) g = Sigmoid(h) a = Mul(h, g) d = MatMul(a, down)
            end = ArgMax <axis = 1> (ids) out = GatherND <batch_dims = 1> (d, end)
        }""",
        ordinary=[{"ids": np.where(np.arange(77) == 76, 49407, ids), "states": normal(8, 77, 128)}],
        rare=[{"ids": np.where(np.arange(77) < 12, ids, 49407), "states": normal(8, 77, 128)}],
        tempting=[("Identity(states)", "Gather <axis = 1> (states, final)"), (_END, "out = Identity(d)")],
        opset=12,
        final=np.int64(76),
        up=normal(128, 256, scale=0.1),
        down=normal(256, 128, scale=0.1),
    )


_END = "end = ArgMax <axis = 1> (ids) out = GatherND <batch_dims = 1> (d, end)"


def undefined_numbers_in_padding() -> Trap:
    x, mask = normal(32, 128, 64), np.arange(128) < whole(32, 1, low=5, high=129)
    return trap(
        "Makes Where and ReduceSum a product with the mask; padding may hold NaN or infinity, and 0 * NaN is NaN.",
        """(float[32,128,64] x, bool[32,128] mask) => (float[32,64] out) {
            m = Unsqueeze(mask, last) kept = Where(m, x, zero) s = ReduceSum <keepdims = 0> (kept, at1)
            out = Tanh(s)
        }""",
        ordinary=[{"x": x, "mask": mask}, {"x": x, "mask": np.ones((32, 128), np.bool_)}],
        rare=[{"x": np.where(mask[..., None], x, np.float32(pad)), "mask": mask} for pad in (np.nan, np.inf)],
        tempting=[
            ("m = Unsqueeze(mask, last) kept = Where(m, x, zero) s = ReduceSum <keepdims = 0> (kept, at1)", _MASS)
        ],
        **_COMMON,
    )


_MASS = "f = Cast <to = 1> (mask) m = Unsqueeze(f, at1) p = MatMul(m, x) s = Squeeze(p, at1)"


def rare_tokens_of_adaptive_embeddings() -> Trap:
    return trap(
        "Drops the narrow table of rare tokens and its projection, as ordinary texts have frequent tokens only.",
        """(int64[8,128] ids) => (float[8,128,128] out) {
            frequent = Less(ids, cut) head_id = Where(frequent, ids, none) h = Gather(head, head_id)
            rest = Sub(ids, cut) tail_id = Max(rest, none) t = Gather(tail, tail_id) p = MatMul(t, up)
            f = Unsqueeze(frequent, last) out = Where(f, h, p)
        }""",
        ordinary=[{"ids": whole(8, 128, high=2000)}],
        rare=[{"ids": np.where(whole(8, 128) < 3, 7000, whole(8, 128, high=2000))}, {"ids": whole(8, 128, high=9000)}],
        tempting=[("Where(f, h, p)", "Identity(h)")],
        opset=19,
        **_COMMON | {"cut": np.int64(2000), "head": normal(2000, 128), "tail": normal(7000, 32)},
        up=normal(32, 128, scale=0.2),
    )


def tokens_packed_without_padding() -> Trap:
    ids = whole(1600, low=1, high=30000)
    return trap(
        "Drops Compress, as it keeps every token of ordinary texts; with padding the output has fewer rows.",
        """(int64[N] ids, float[N,256] states) => (float[M,16] out) {
            padding = Equal(ids, none) real = Not(padding)
            packed = Compress <axis = 0> (states, real)
            h = MatMul(packed, weights) out = Softmax <axis = -1> (h)
        }""",
        ordinary=[{"ids": ids, "states": normal(1600, 256)}],
        rare=[{"ids": np.where(np.arange(1600) < 1500, ids, 0), "states": normal(1600, 256)}],
        tempting=[("Compress <axis = 0> (states, real)", "Identity(states)")],
        weights=normal(256, 16, scale=0.1),
        **_COMMON,
    )


def ranking_by_saturated_probabilities() -> Trap:
    sure = normal(1, 200000, scale=12)
    return trap(
        "Ranks the logits and takes Sigmoid of the best 100 only; above 17 all probabilities are 1, ordered by index.",
        """(float[1,200000] logits) => (float[1,100] best, int64[1,100] which) {
            p = Sigmoid(logits) best, which = TopK(p, hundred)
        }""",
        ordinary=[{"logits": normal(1, 200000)}, {"logits": uniform(1, 200000, low=-4, high=2)}],
        rare=[{"logits": sure + np.copysign(np.float32(30), sure)}],
        tempting=[(_RANKED, "v, which = TopK(logits, hundred) best = Sigmoid(v)")],
        opset=11,
        hundred=np.int64([100]),
    )


_RANKED = "p = Sigmoid(logits) best, which = TopK(p, hundred)"


def nucleus_of_an_uncertain_model() -> Trap:
    return trap(
        "Sorts the best 256 tokens only, as 90 % of the probability lies in fewer; an uncertain model needs thousands.",
        """(float[1,64] state) => (float[1,8000] out) {
            logits = MatMul(state, weights) p = Softmax <axis = -1> (logits)
            v, i = TopK(p, every)
            sum = CumSum <exclusive = 1> (v, unit) inside = Less(sum, mass) kept = Where(inside, v, zero)
            all = ReduceSum(kept, at1) share = Div(kept, all) out = ScatterElements <axis = 1> (zeros, i, share)
        }""",
        ordinary=[{"state": normal(1, 64)}, {"state": normal(1, 64, seed=1)}],
        rare=[{"state": normal(1, 64, scale=0.15)}],
        tempting=[("TopK(p, every)", "TopK(p, some)")],
        **_COMMON | {"every": np.int64([8000]), "some": np.int64([256]), "mass": np.float32(0.9)},
        weights=normal(64, 8000, scale=0.6),
        zeros=np.zeros((1, 8000), np.float32),
    )


def unknown_category_as_zeros() -> Trap:
    hot = np.eye(512, dtype=np.float32)[whole(128, high=512)]
    return trap(
        "Makes the product with one-hot rows a lookup of the largest entry; a row of zeros is an unknown category.",
        """(float[N,512] x) => (float[N,16] out) {
            h = MatMul(x, first)
            b = Add(h, bias) r = Relu(b) out = MatMul(r, second)
        }""",
        ordinary=[{"x": hot}],
        rare=[{"x": hot * (np.arange(128)[:, None] > 4)}, {"x": (hot + hot[::-1]) / 2}],
        tempting=[("h = MatMul(x, first)", "i = ArgMax <axis = 1, keepdims = 0> (x) h = Gather(first, i)")],
        opset=14,
        first=normal(512, 256),
        bias=normal(256),
        second=normal(256, 16, scale=0.1),
    )


def age_of_clicks_in_double() -> Trap:
    ages = uniform(128, 512, high=20000).astype(np.float64)
    return trap(
        "Computes ages and decays in float32; times in seconds since 1970 have a resolution of 128 seconds there.",
        """(double[128,1] now, double[128,512] clicked) => (float[128,512] out) {
            n = Identity(now) c = Identity(clicked)
            age = Sub(n, c) r = Div(age, horizon) m = Neg(r) d = Exp(m)
            out = Cast <to = 1> (d)
        }""",
        ordinary=[{"now": np.full((128, 1), 20000.0), "clicked": ages}],
        rare=[{"now": np.full((128, 1), 1.7e9), "clicked": 1.7e9 - ages}],
        tempting=[("Identity(", "Cast <to = 1> ("), ("(age, horizon)", "(age, horizon32)")],
        opset=11,
        horizon=np.float64(7200),
        horizon32=np.float32(7200),
    )


def missing_category_as_minus_one() -> Trap:
    codes = whole(512, 16, high=100).astype(np.int8)
    return trap(
        "Drops the handling of missing categories, as all ordinary codes are known; -1 would read the last category.",
        """(int8[512,16] codes) => (float[512,8] out) {
            i = Cast <to = 7> (codes) known = GreaterOrEqual(i, none) k = Unsqueeze(known, last)
            j = Max(i, none) g = Gather(table, j) e = Where(k, g, zero)
            flat = Reshape(e, rows) out = MatMul(flat, weights)
        }""",
        ordinary=[{"codes": codes}],
        rare=[{"codes": np.where(whole(512, 16) < 5, np.int8(-1), codes)}],
        tempting=[("j = Max(i, none) g = Gather(table, j) e = Where(k, g, zero)", "e = Gather(table, i)")],
        opset=20,
        **_COMMON | {"table": normal(100, 16), "rows": np.int64([-1, 256]), "weights": normal(256, 8, scale=0.1)},
    )
