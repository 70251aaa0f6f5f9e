"""Work of convolutions, matrix products, recurrent operators, attention, pooling and resampling."""

from __future__ import annotations

import math

from ..layer import Cost
from .costed_node import CostedNode, UnknownCostError
from .elementwise import per_element

# Work of recurrent operators, unrolled over all time steps.
#
# T steps, batch B, input width I, hidden width H, D directions; gates per cell: LSTM 4, GRU 3, RNN 1. Padding by
# ``sequence_lens`` counts in full.


def recurrent(call: CostedNode, gates: int, cell: Cost) -> Cost:
    """``macs = D T B gates H (I + H)``; ``cell`` per hidden unit and step; both biases 2 additions per gate."""
    data, weights = call.input(0), call.input(1)
    if len(data.shape) != 3 or len(weights.shape) != 3:
        raise UnknownCostError(f"{call.node.op_type} of rank {len(data.shape)}")
    steps = math.prod(data.shape[:2])  # T B in either layout
    directions, rows, width = weights.shape
    hidden = rows // gates
    units = directions * steps * hidden
    biases = 2 * gates * units if call.has(3) else 0
    work = units * cell
    return work + Cost(macs=units * gates * (width + hidden), additions=biases + units * gates)


def lstm(call: CostedNode) -> Cost:
    """Macs ``D T B 4H (I + H)``; per unit 3 sigmoids, 2 tanh, 3 multiplications, 1 addition, 4 to join the products.

    ``c = f c + i g``, ``h = o tanh(c)``; peepholes add 3 multiplications and 3 additions, biases 8 additions.
    """
    peepholes = 3 if call.has(7) else 0
    cell = Cost(exponentials=5, multiplications=3 + peepholes, additions=1 + peepholes)
    return recurrent(call, 4, cell)


def gru(call: CostedNode) -> Cost:
    """Macs ``D T B 3H (I + H)``; per unit 2 sigmoids, 1 tanh, 3 multiplications, 2 additions, 3 to join.

    ``h = (1 - z) n + z h`` with the reset gate's product; biases 6 additions.
    """
    return recurrent(call, 3, Cost(exponentials=3, multiplications=3, additions=2))


def rnn(call: CostedNode) -> Cost:
    """Macs ``D T B H (I + H)``; per unit 1 tanh and 1 addition to join; biases 2 additions."""
    return recurrent(call, 1, Cost(exponentials=1))


# Work of attention: ONNX's Attention, RotaryEmbedding and LinearAttention, and ONNX Runtime's fused forms.
#
# B batch, H query heads, S query positions, L key positions (past included), d and v the widths of a key and a value
# head. Masked scores count, because only some runtimes skip them.


_MICROSOFT = "com.microsoft"


def scaled_dot_product(scores: int, width: int, value_width: int) -> Cost:
    """``softmax(Q K^T scale) V`` with ``scores = B H S L``: ``macs = scores (d + v)``, a scaling and a softmax each.

    A softmax element is 1 comparison, 2 additions, 1 exponential, 1 division.
    """
    return Cost(
        macs=scores * (width + value_width),
        multiplications=scores,
        comparisons=scores,
        additions=2 * scores,
        exponentials=scores,
        divisions=scores,
    )


def _length(call: CostedNode, past: int, axis: int) -> int:
    """Return the positions of a past; 0 without one."""
    return call.input(past).shape[axis] if call.has(past) else 0


def attention(call: CostedNode) -> Cost:
    """``scaled_dot_product`` over 3-D ``[B, S, H d]`` or 4-D ``[B, H, S, d]`` inputs; a mask adds one per score."""
    query, key, value = call.input(0).shape, call.input(1).shape, call.input(2).shape
    if len(query) == 4:
        batch, heads, queries, width = query
        keys, value_width = key[2], value[3]
    elif len(query) == 3:
        batch, queries, packed = query
        heads = call.require("q_num_heads")
        kv_heads = call.require("kv_num_heads")
        width, keys, value_width = packed // heads, key[1], value[2] // kv_heads
    else:
        raise UnknownCostError(f"Attention of rank {len(query)}")
    keys += _length(call, 4, 2)
    masked = batch * heads * queries * keys if call.has(3) else 0
    return scaled_dot_product(batch * heads * queries * keys, width, value_width) + Cost(additions=masked)


def linear_attention(call: CostedNode) -> Cost:
    """Recurrent form over T tokens: per query head ``T d v`` macs to read, per key head ``T d v`` to update.

    The delta rules read the state once more per key head; the gated rules decay it: ``T d v`` multiplications.
    """
    query, value = call.input(0).shape, call.input(2).shape
    if len(query) != 3 or len(value) != 3:
        raise UnknownCostError(f"LinearAttention of rank {len(query)}")
    heads, kv_heads = call.require("q_num_heads"), call.require("kv_num_heads")
    rule = call.attribute("update_rule", "gated_delta")
    state = query[0] * query[1] * (query[2] // heads) * (value[2] // kv_heads)
    updates = 2 if "delta" in rule else 1
    decay = state * kv_heads if "gated" in rule else 0
    return Cost(macs=state * (heads + updates * kv_heads), multiplications=decay)


def rotary_embedding(call: CostedNode) -> Cost:
    """Each rotated element is two products and a sum: 2 multiplications, 1 addition.

    ``rotary_embedding_dim`` of the head's width are rotated; 0 means all.
    """
    data = call.input(0)
    rotated = call.attribute("rotary_embedding_dim", 0)
    heads = call.attribute("num_heads", 0)
    width = data.shape[-1] if len(data.shape) == 4 else data.shape[-1] // heads if heads else 0
    n = data.elements * rotated // width if rotated and width else data.elements
    return Cost(multiplications=2 * n, additions=n)


def fused_attention(call: CostedNode) -> Cost:
    """Packed projection ``B S I * (Hq + Hk + Hv)`` macs with its bias, then ``scaled_dot_product``."""
    data, weights = call.input(0).shape, call.input(1).shape
    if len(data) != 3 or len(weights) != 2:
        raise UnknownCostError(f"Attention of rank {len(data)}")
    batch, queries, width = data
    heads = call.require("num_heads")
    sizes = call.attribute("qkv_hidden_sizes") or [weights[1] // 3] * 3
    projected = batch * queries * sum(sizes)
    keys = queries + _length(call, 4, 3)
    masked = batch * heads * queries * keys if call.has(3) or call.has(5) else 0
    work = scaled_dot_product(batch * heads * queries * keys, sizes[0] // heads, sizes[2] // heads)
    return work + Cost(macs=projected * width, additions=(projected if call.has(2) else 0) + masked)


def multi_head_attention(call: CostedNode) -> Cost:
    """``scaled_dot_product`` of ``[B, S, H d]`` queries; the bias adds one per element of query, key and value.

    Keys and values may come projected per head (4-D) or packed with the query (5-D ``[B, S, H, 3, d]``).
    """
    query = call.input(0).shape
    heads = call.require("num_heads")
    batch, queries = query[0], query[1]
    if len(query) == 5:
        keys, width, value_width = queries, query[4], query[4]
    else:
        key = call.input(1).shape
        value = call.input(2).shape if call.has(2) else key
        width = query[2] // heads
        keys = key[2] if len(key) == 4 else key[1]
        value_width = value[-1] if len(value) > 3 else value[2] // heads
    keys += _length(call, 6, 2)
    added = sum(call.input(slot).elements for slot in range(3) if call.has(slot)) if call.has(3) else 0
    masked = batch * heads * queries * keys if call.has(4) or call.has(5) else 0
    return scaled_dot_product(batch * heads * queries * keys, width, value_width) + Cost(additions=added + masked)


def group_query_attention(call: CostedNode) -> Cost:
    """``scaled_dot_product`` of H query heads; L is the cache's capacity if this is more than S.

    Rotary embedding inside the operator adds 2 multiplications and 1 addition per element of query and key.
    """
    query = call.input(0).shape
    heads, kv_heads = call.require("num_heads"), call.require("kv_num_heads")
    batch, queries = query[0], query[1]
    packed = not call.has(1)
    width = query[2] // (heads + 2 * kv_heads) if packed else query[2] // heads
    keys = max(queries, _length(call, 3, 2), *([call.output(1).shape[2]] if len(call.outputs) > 1 else []))
    rotated = batch * queries * (heads + kv_heads) * width if call.attribute("do_rotary", 0) else 0
    work = scaled_dot_product(batch * heads * queries * keys, width, width)
    return work + Cost(multiplications=2 * rotated, additions=rotated)


def fused_matmul(call: CostedNode) -> Cost:
    """``macs = batch M N K``; alpha other than 1: one multiplication per output element."""
    data, out = call.input(0), call.output()
    if len(data.shape) < 2:
        common = data.elements
    elif call.attribute("transA", 0):
        common = data.shape[0] if call.attribute("transBatchA", 0) else data.shape[-2]
    else:
        common = data.shape[-1]
    scaled = out.elements if call.attribute("alpha", 1.0) != 1 else 0
    return Cost(macs=out.elements * common, multiplications=scaled)


def convolution(call: CostedNode, *, weight: int = 1) -> int:
    """``macs = N Cout Hout Wout * Kh Kw Cin / groups``: every output element is one dot product with a filter.

    The filter is ``[Cout, Cin / groups, Kh, Kw]``; the plain kernel counts, not its dilated extent.
    """
    filters = call.input(weight)
    if len(filters.shape) < 2 or filters.shape[0] == 0 or len(call.input(0).shape) < 2:
        raise UnknownCostError(f"{call.node.op_type} without a filter")
    return call.output().elements * (filters.elements // filters.shape[0])


def product(call: CostedNode, *, transposed: bool = False) -> int:
    """``macs = output elements * K``, K the common dimension; batched and broadcast like numpy.matmul."""
    shape = call.input(0).shape
    if not shape:
        raise UnknownCostError(f"{call.node.op_type} of a scalar")
    return call.output().elements * shape[-2 if transposed else -1]


def biased(call: CostedNode, slot: int) -> int:
    """Count one addition per output element if the bias is present, else 0."""
    return call.output().elements if call.has(slot) else 0


def conv(call: CostedNode) -> Cost:
    """``macs = N Cout Hout Wout Kh Kw Cin / groups``; bias: ``additions = N Cout Hout Wout``."""
    return Cost(macs=convolution(call), additions=biased(call, 2))


def conv_transpose(call: CostedNode) -> Cost:
    """``macs = N Cin Hin Win Kh Kw Cout / groups``; bias: ``additions = N Cout Hout Wout``."""
    filters = call.input(1)
    if not filters.shape or filters.shape[0] == 0:
        raise UnknownCostError("ConvTranspose without a filter")
    macs = call.input(0).elements * (filters.elements // filters.shape[0])
    return Cost(macs=macs, additions=biased(call, 2))


def deform_conv(call: CostedNode) -> Cost:
    """Count a convolution over bilinear samples: macs as Conv; per sample 4 multiplications and 3 additions.

    ``samples = N Cin Hout Wout Kh Kw``; a mask adds one multiplication to each.
    """
    data, filters, out = call.input(0), call.input(1), call.output()
    kernel = math.prod(filters.shape[2:])
    samples = math.prod(data.shape[:2]) * math.prod(out.shape[2:]) * kernel
    return Cost(
        macs=convolution(call),
        multiplications=samples * (5 if call.has(4) else 4),
        additions=samples * 3 + biased(call, 3),
    )


def conv_integer(call: CostedNode) -> Cost:
    """Macs as Conv; a zero point: one subtraction per element of that input."""
    shifts = (call.input(0).elements if call.has(2) else 0) + (call.input(1).elements if call.has(3) else 0)
    return Cost(macs=convolution(call), additions=shifts)


def qlinear_conv(call: CostedNode) -> Cost:
    """Macs as Conv; per output element one rescaling, one zero point, rounding and saturation (2 comparisons)."""
    n = call.output().elements
    macs = convolution(call, weight=3)
    return Cost(macs=macs, multiplications=n, additions=n + biased(call, 8), comparisons=2 * n)


def causal_conv_with_state(call: CostedNode) -> Cost:
    """``macs = B C L k`` (depthwise); bias ``B C L`` additions; SiLU one exponential and one multiplication."""
    n = call.output().elements
    gate = 0 if call.attribute("activation", "none") == "none" else n
    macs = n * call.input(1).shape[-1]
    return Cost(macs=macs, additions=biased(call, 2), exponentials=gate, multiplications=gate)


def matmul(call: CostedNode) -> Cost:
    """``macs = batch M N K``."""
    return Cost(macs=product(call))


def gemm(call: CostedNode) -> Cost:
    """``macs = M N K``; C: ``additions = M N``; alpha or beta other than 1: ``multiplications = M N`` each."""
    n = call.output().elements
    added = biased(call, 2)
    scaled = n if call.attribute("alpha", 1.0) != 1 else 0
    scaled += added if call.attribute("beta", 1.0) != 1 else 0
    macs = product(call, transposed=bool(call.attribute("transA", 0)))
    return Cost(macs=macs, additions=added, multiplications=scaled)


def matmul_integer(call: CostedNode) -> Cost:
    """``macs = batch M N K``; a zero point: one subtraction per element of that input."""
    shifts = (call.input(0).elements if call.has(2) else 0) + (call.input(1).elements if call.has(3) else 0)
    return Cost(macs=product(call), additions=shifts)


def qlinear_matmul(call: CostedNode) -> Cost:
    """``macs = batch M N K``; per output element one rescaling, one zero point, 2 comparisons to saturate."""
    n = call.output().elements
    return Cost(macs=product(call), multiplications=n, additions=n, comparisons=2 * n)


def einsum(call: CostedNode) -> Cost:
    """``points`` = product of the sizes of all labels, as one loop nest; k operands.

    If a label is summed: ``macs = (k - 1) points`` (one operand: ``additions = points``). Otherwise: ``multiplications
    = (k - 1) points``. A broadcast ``...`` counts with its largest size.
    """
    equation = str(call.require("equation")).replace(" ", "")
    operands, _, explicit_output = equation.partition("->")
    terms = operands.split(",")
    sizes: dict[str, int] = {}
    for slot, term in enumerate(terms):
        shape = call.input(slot).shape
        for label, size in _labels(term, shape):
            sizes[label] = max(size, sizes.get(label, 1))
    output = _implicit_output(operands) if "->" not in equation else explicit_output
    points = math.prod(sizes.values())
    named = {label for label in sizes if len(label) == 1}
    summed = any(label not in output for label in named) or (len(named) < len(sizes) and "..." not in output)
    factors = len(terms) - 1
    if not summed:
        return Cost(multiplications=factors * points)
    return Cost(macs=factors * points) if factors else Cost(additions=points)


def _labels(term: str, shape: tuple[int, ...]) -> list[tuple[str, int]]:
    """Pair the labels of one Einsum term with their sizes; the axes under ``...`` count from the right."""
    before, dots, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise UnknownCostError(f"Einsum term {term} does not fit the rank {len(shape)}")
    axes = [*before, *(f"...{hidden - axis}" for axis in range(hidden)), *after]
    return list(zip(axes, shape, strict=True))


def _implicit_output(operands: str) -> str:
    """Return the labels that an Einsum without ``->`` keeps: those with one occurrence."""
    letters = operands.replace(",", "").replace(".", "")
    return "".join(letter for letter in letters if letters.count(letter) == 1) + ("..." if "..." in operands else "")


def det(call: CostedNode) -> Cost:
    """LU decomposition of ``batch`` matrices of order n: ``macs = batch n^3 / 3``, ``divisions = batch n^2 / 2``."""
    shape = call.input(0).shape
    order = shape[-1]
    batch = math.prod(shape[:-2])
    return Cost(macs=batch * order**3 // 3, divisions=batch * order**2 // 2)


# Work of interpolation and of operators on signals: resizing, grid sampling, Fourier transforms, windows.


_TAPS = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
"""Neighbours read per axis by interpolation mode."""


def interpolate(elements: int, mode: str, axes: int) -> Cost:
    """``taps^axes`` macs per output element: 2 taps an axis for linear, 4 for cubic; nearest only copies."""
    taps = _TAPS.get(mode)
    if taps is None:
        raise UnknownCostError(f"interpolation mode {mode}")
    if taps == 1:
        return Cost()
    return Cost(multiplications=elements * taps**axes, additions=elements * (taps**axes - 1))


def resize(call: CostedNode) -> Cost:
    """``interpolate`` over the axes with another size in the output."""
    data, out = call.input(0), call.output()
    changed = sum(before != after for before, after in zip(data.shape, out.shape, strict=True))
    return interpolate(out.elements, call.attribute("mode", "nearest"), changed)


def grid_sample(call: CostedNode) -> Cost:
    """``interpolate`` over all spatial axes."""
    out = call.output()
    return interpolate(out.elements, call.attribute("mode", "linear"), len(out.shape) - 2)


def affine_grid(call: CostedNode) -> Cost:
    """One matrix-vector product per point: ``macs = points * d (d + 1)`` with d spatial axes."""
    out = call.output()
    d = out.shape[-1]
    return Cost(macs=out.elements // d * d * (d + 1)) if d else Cost()


def _fourier(transforms: int, length: int) -> Cost:
    """Radix-2 butterflies of length N: ``2 N log2 N`` multiplications and ``3 N log2 N`` additions each."""
    stages = max(1, (length - 1).bit_length())
    return Cost(multiplications=2 * transforms * length * stages, additions=3 * transforms * length * stages)


def dft(call: CostedNode) -> Cost:
    """Count ``transforms * (2 + 3) N log2 N`` (``_fourier``); N is the transformed axis of the output."""
    out = call.output()
    axis = call.parameter(2, "axis")
    index = int(axis[0]) if axis else (1 if call.attribute("axis") is not None else -2)
    length = max(out.shape[index], call.input(0).shape[index])
    transforms = out.elements // (out.shape[index] * out.shape[-1]) if out.elements else 0
    return _fourier(transforms, length)


def stft(call: CostedNode) -> Cost:
    """Per frame one windowing (N multiplications) and one transform (``_fourier``) of N = frame length."""
    out = call.output()
    length = call.values(3)
    size = int(length[0]) if length else (call.input(2).elements if call.has(2) else 0)
    if size == 0:
        raise UnknownCostError("STFT with a frame length computed at run time")
    frames = math.prod(out.shape[:-2])
    work = _fourier(frames, size)
    return work + Cost(multiplications=frames * size) if call.has(2) else work


def window(call: CostedNode) -> Cost:
    """Per point of the window at most two cosines with a multiplication and an addition each."""
    n = call.output().elements
    terms = 2 if call.node.op_type == "BlackmanWindow" else 1
    return Cost(exponentials=terms * n, multiplications=2 * terms * n, additions=terms * n)


UNIFORM = per_element("scale draw + shift", Cost(multiplications=1, additions=1))
"""Without the generator's integer arithmetic."""
BERNOULLI = per_element("one draw < p", Cost(comparisons=1))
NORMAL = per_element(
    "scale sqrt(-2 log u) cos(2 pi v) + mean",  # Box-Muller
    Cost(exponentials=2, divisions=1, multiplications=2, additions=1),
)

# Work of pooling. A window over the edge counts in full.


def max_pool(call: CostedNode) -> Cost:
    """``comparisons = output elements * Kh Kw``."""
    return Cost(comparisons=call.output().elements * call.window())


def average_pool(call: CostedNode) -> Cost:
    """``additions = output elements * Kh Kw``, ``divisions = output elements``."""
    n = call.output().elements
    return Cost(additions=n * call.window(), divisions=n)


def lp_pool(call: CostedNode) -> Cost:
    """``(sum |x|^p)^(1/p)``: one addition and, by p, comparison, multiplication or pow per element; one root."""
    n = call.output().elements
    return _lp(call.attribute("p", 2), n * call.window(), n)


def global_lp_pool(call: CostedNode) -> Cost:
    """As LpPool with the whole plane as window."""
    return _lp(call.attribute("p", 2), call.input(0).elements, call.output().elements)


def _lp(p: int, taps: int, n: int) -> Cost:
    """Return the work of n p-norms over ``taps`` elements altogether."""
    if p == 1:
        return Cost(additions=taps, comparisons=taps)
    if p == 2:
        return Cost(additions=taps, multiplications=taps, divisions=n)
    return Cost(additions=taps, exponentials=taps + n)


def roi_align(call: CostedNode) -> Cost:
    """Per sample a bilinear interpolation: 4 multiplications, 3 additions; one addition (max: comparison) to pool.

    ``samples = output elements * sampling_ratio^2``; an adaptive ratio (0) depends on the boxes and is unknown.
    """
    ratio = call.attribute("sampling_ratio", 0)
    if ratio <= 0:
        raise UnknownCostError("RoiAlign with a sampling ratio that depends on the boxes")
    n = call.output().elements
    samples = n * ratio * ratio
    if call.attribute("mode", "avg") == "max":
        return Cost(multiplications=4 * samples, additions=3 * samples, comparisons=samples)
    return Cost(multiplications=4 * samples, additions=4 * samples, divisions=n)


def max_roi_pool(call: CostedNode) -> Cost:
    """``comparisons = R C H W``: an upper bound, each box as the whole plane."""
    data, boxes = call.input(0), call.input(1)
    return Cost(comparisons=boxes.shape[0] * math.prod(data.shape[1:]))
