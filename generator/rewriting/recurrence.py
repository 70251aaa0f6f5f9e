"""Unrolled recurrent cells: products with one matrix that follow each other become LSTM, GRU or RNN.

The matrix of the state is in products that depend on each other; the matrix of the input is in as many products, or in
one product of all steps. Order of gates and biases are found by computing the states in NumPy and comparing them with
the recorded ones.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ...models.subgraphs import rename
from .form import Array, Draft, Rewrite, RewriteGraph
from .repetition import loops
from .values import Values, late

_FEWEST_STEPS = 3
_CLOSE = 1e-4
_GAIN = 0.7
_OPERATORS = {1: "RNN", 3: "GRU", 4: "LSTM"}
"""By number of gates."""
_MOST_CANDIDATES = 24
_ROUNDS = 6
"""Rounds of a loop that are written out to recognise its cell."""


def recurrence(values: Values, deadline: float) -> list[Rewrite]:
    """Return unrolled cells as recurrent operators."""
    groups = defaultdict[str, list[int]](list)
    for index, node in enumerate(values.graph.nodes):
        product = node.op_type in {"Gemm", "MatMul"} and len(node.input) > 1 and not values.is_constant(node.input[0])
        if product and node.input[1] in values.graph.constants and node.input[0] in values.runs[0]:
            groups[node.input[1]].append(index)
    found = list[Rewrite]()
    chains = [group for group in groups.values() if len(group) >= _FEWEST_STEPS and _follows(values, group)]
    for chain in chains:
        inputs = [group for group in groups.values() if group not in chains]
        if late(deadline):
            break
        found += values.attempt(list, itertools.islice(_cells(values, chain, inputs), 1)) or []
    return found


def looped(values: Values, deadline: float) -> list[Rewrite]:
    """Return scans and loops that are recurrent cells as recurrent operators.

    A few rounds are written out. The operator that computes them computes any number of rounds.
    """
    found = [
        values.attempt(_looped, values, index, deadline)
        for index, node in enumerate(values.graph.nodes) if node.op_type in {"Loop", "Scan"}
    ]  # fmt: skip
    return [rewrite for rewrite in found if rewrite is not None]


def _looped(values: Values, index: int, deadline: float) -> Rewrite | None:
    graph, node = values.graph, values.graph.nodes[index]
    given = values.constant(node.input[0])
    if node.op_type == "Scan":
        rounds = values.shapes[node.input[-1]][0]
    else:
        rounds = 0 if given is None else int(given.reshape(-1)[0])
    names = [name for name in graph.reads[index] if not values.is_constant(name)]
    if rounds <= _ROUNDS or any(name not in values.shapes for name in names):
        return None
    cut = {
        name: slice(0, _ROUNDS if values.shapes[name] and values.shapes[name][0] == rounds else None) for name in names
    }
    feeds = [{name: run[name][cut[name]] if run[name].ndim else run[name] for name in names} for run in values.runs]
    fixed = {
        name: array for name in graph.reads[index] if name not in names and (array := values.constant(name)) is not None
    }
    if node.op_type == "Loop":
        fixed[node.input[0]] = np.array(_ROUNDS, np.int64)
    elif any(array.ndim and len(array) == rounds for name, array in fixed.items() if name in node.input):
        return None
    wanted = [name for name in node.output if name and (name in graph.wanted or graph.readers[name])]
    small = RewriteGraph(onnx.helper.make_model(onnx.helper.make_graph(
        [node], "rounds",
        [onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(values.dtypes[name]), None)
         for name in names],
        [onnx.ValueInfoProto(name=name) for name in wanted],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in fixed.items()],
    ), opset_imports=[onnx.helper.make_opsetid(*entry) for entry in graph.opsets.items()], ir_version=8))  # fmt: skip
    unrolled = RewriteGraph(small.build(loops(Values(small, feeds))))
    for cell in recurrence(Values(unrolled, feeds), deadline):
        made = RewriteGraph(unrolled.build([cell]))
        if any(inner.op_type in {"Concat", "MatMul", "Gemm"} for inner in made.nodes):
            continue  # a part that depends on the number of rounds, or steps that are left
        new = {name: graph.fresh("round") for name in (*made.constants, *made.producer) if name not in wanted}
        nodes = list[onnx.NodeProto]()
        for inner in made.nodes:
            nodes.append(onnx.NodeProto())
            nodes[-1].CopyFrom(inner)
            nodes[-1].name = graph.fresh("round")
            rename(nodes[-1], new)
        constants = {new[name]: array for name, array in made.constants.items()}
        saving_ns = _GAIN * values.total_ns
        return Rewrite(cell.kind, tuple(wanted), tuple(nodes), constants, (node.name,), saving_ns, f"{rounds} rounds")
    return None


def _follows(values: Values, group: Sequence[int]) -> bool:
    """Return True if the second product depends on the first, and the last on its predecessor."""
    pairs = ((group[0], group[1]), (group[-2], group[-1]))
    return all(_depends(values, later, earlier) for earlier, later in pairs)


def _depends(values: Values, later: int, earlier: int) -> bool:
    waiting, seen = [later], set[int]()
    while waiting:
        index = waiting.pop()
        if index == earlier:
            return True
        if index in seen or index < earlier:
            continue
        seen.add(index)
        waiting += [values.graph.producer[name] for name in values.graph.reads[index] if name in values.graph.producer]
    return False


def _matrix(values: Values, index: int) -> Array:
    weight = values.graph.constants[values.graph.nodes[index].input[1]].astype(np.float64)
    return weight.T if values.graph.attributes[index].get("transB") else weight


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of the cell at each step.

    Attributes:
        weight: Matrix of the input, inputs by gates.
        steps: The input of each step in the first run.
        write: Writes all steps as one value of steps, batch and inputs.
    """

    weight: Array
    steps: list[Array]
    write: Callable[[Draft], str]


def _inputs(values: Values, chain: Sequence[int], others: Sequence[Sequence[int]]) -> Iterator[_Inputs]:
    """Yield possible inputs of the cell: one product for each step, or one product of all steps."""
    width = _matrix(values, chain[0]).shape[1]
    batch = _rows(values, values.graph.nodes[chain[0]].input[0])
    for group in others:
        weight = _matrix(values, group[0])
        if weight.ndim != 2 or weight.shape[1] != width:
            continue
        names = [values.graph.nodes[index].input[0] for index in group]
        depth = weight.shape[0]
        if len(group) in {len(chain), len(chain) + 1}:
            steps = [values.runs[0][name].reshape(-1, depth).astype(np.float64) for name in names]
            if all(len(step) == batch for step in steps):
                yield _Inputs(weight, steps, _joiner(values, names, batch, depth))
        if len(group) == 1:
            array = values.runs[0][names[0]]
            number = array.size // (batch * depth)
            if array.ndim == 3 and number in {len(chain), len(chain) + 1} and number > 1:
                first = array.shape[:2] == (number, batch)
                turned = array if first else array.transpose(1, 0, 2)
                if turned.shape[:2] == (number, batch):
                    steps = list(turned.astype(np.float64))
                    yield _Inputs(weight, steps, _whole(names[0], turned=not first))


def _rows(values: Values, name: str) -> int:
    shape = values.shapes[name]
    return int(np.prod(shape[:-1]))


def _joiner(values: Values, names: Sequence[str], batch: int, depth: int) -> Callable[[Draft], str]:
    """Return a function that writes the inputs of all steps: the value that they were cut from, if any."""
    stacked = np.stack([values.runs[0][name].reshape(batch, depth) for name in names])
    first = min(values.graph.producer.get(name, -1) for name in names)
    for name, array in values.runs[0].items():
        if array.ndim != 3 or array.size != stacked.size or values.graph.producer.get(name, -1) >= max(first, 0):
            continue
        if array.shape == stacked.shape and np.array_equal(array, stacked):
            return _whole(name, turned=False)
        if array.shape[:2] == stacked.shape[1::-1] and np.array_equal(array.transpose(1, 0, 2), stacked):
            return _whole(name, turned=True)
    return lambda draft: draft.op("Concat", *(draft.reshape(name, (1, batch, depth)) for name in names), axis=0)


def _whole(name: str, *, turned: bool) -> Callable[[Draft], str]:
    return lambda draft: draft.op("Transpose", name, perm=[1, 0, 2]) if turned else name


@dataclass(frozen=True, slots=True)
class _Cell:
    """A recurrent cell with its gates in ONNX's order.

    Attributes:
        weight: Matrix of the input.
        state: Matrix of the state.
        bias: Both biases, side by side.
        activation: Activation of an RNN.
    """

    weight: Array
    state: Array
    bias: Array
    activation: str = "Tanh"

    @property
    def size(self) -> int:
        return int(self.state.shape[0])

    def states(self, steps: Sequence[Array]) -> tuple[list[Array], Array]:
        """Return the state after each step, and the last memory of an LSTM, all from zeros."""
        hidden, memory, found = np.zeros((len(steps[0]), self.size)), np.zeros((len(steps[0]), self.size)), []
        own, other = np.split(self.bias, 2)
        gates = self.state.shape[1] // self.size
        for step in steps:
            left, right = step @ self.weight + own, hidden @ self.state + other
            if gates == 1:
                hidden = _ACTIVATIONS[self.activation](left + right)
            elif gates == 3:
                (z, r, n), (zh, rh, nh) = (np.split(side, 3, 1) for side in (left, right))
                update = _sigmoid(z + zh)
                hidden = (1 - update) * np.tanh(n + _sigmoid(r + rh) * nh) + update * hidden
            else:
                i, o, f, c = np.split(left + right, 4, 1)
                memory = _sigmoid(f) * memory + _sigmoid(i) * np.tanh(c)
                hidden = _sigmoid(o) * np.tanh(memory)
            found.append(hidden)
        return found, memory


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"Tanh": np.tanh, "Relu": _relu, "Sigmoid": _sigmoid}


def _cells(values: Values, chain: Sequence[int], others: Sequence[Sequence[int]]) -> Iterator[Rewrite]:
    state = _matrix(values, chain[0])
    if state.ndim != 2 or state.shape[1] % state.shape[0] or state.shape[1] // state.shape[0] not in _OPERATORS:
        return
    for inputs in _inputs(values, chain, others):
        for cell in _orders(values, chain, inputs, state):
            states, memory = cell.states(inputs.steps)
            if rewrite := _written(values, inputs, cell, states, memory):
                yield rewrite
                return


def _biases(values: Values, wanted: Array, after: int) -> list[Array]:
    """Return constants that recorded values differ by from a product, the same in every row."""
    found = [np.zeros(wanted.shape[1])]
    for name, array in values.runs[0].items():
        if array.size != wanted.size or array.shape[-1:] != wanted.shape[1:] or array.dtype.kind != "f":
            continue
        if values.graph.producer.get(name, -1) < after:
            continue
        apart = array.reshape(wanted.shape).astype(np.float64) - wanted
        if np.abs(apart - apart[:1]).max() < _CLOSE and not any(np.abs(apart[0] - own).max() < _CLOSE for own in found):
            found.append(apart[0])
        if len(found) >= _MOST_CANDIDATES:
            break
    return found


def _orders(values: Values, chain: Sequence[int], inputs: _Inputs, state: Array) -> Iterator[_Cell]:
    """Yield cells that make the recorded state of the second step, with their gates in every order."""
    size, gates = state.shape[0], state.shape[1] // state.shape[0]
    offset = len(inputs.steps) - len(chain)
    hidden = [
        values.runs[0][values.graph.nodes[index].input[0]].reshape(-1, size).astype(np.float64) for index in chain
    ]
    if not offset and np.abs(hidden[0]).max() > 0:
        return  # only cells that begin with zeros
    wanted = hidden[2 - offset]
    before = hidden[1 - offset]
    first = chain[1 - offset]
    left, right = inputs.steps[1] @ inputs.weight, before @ state
    if gates == 3:
        pairs = list(itertools.product(_biases(values, left, 0), _biases(values, right, first)))
    else:
        pairs = [(bias, np.zeros_like(bias)) for bias in _biases(values, left + right, first)]
    for own, other in pairs:
        for order in itertools.permutations(range(gates)):
            for sign in (1.0, -1.0) if gates == 3 else (1.0,):
                signs = np.ones((gates, 1))
                signs[0] = sign

                def arranged(array: Array, order: Sequence[int] = order, signs: Array = signs) -> Array:
                    blocks = array.reshape(*array.shape[:-1], gates, size)[..., list(order), :] * signs
                    return blocks.reshape(array.shape)

                bias = np.concatenate([arranged(own), arranged(other)])
                for activation in _ACTIVATIONS if gates == 1 else ("Tanh",):
                    cell = _Cell(arranged(inputs.weight), arranged(state), bias, activation)
                    made, _ = cell.states(inputs.steps[:2])
                    if np.abs(made[1] - wanted).max() < _CLOSE:
                        yield cell


def _written(values: Values, inputs: _Inputs, cell: _Cell, states: Sequence[Array], memory: Array) -> Rewrite | None:
    """Write the cell as one operator, and every recorded value that is one of its states from its outputs."""
    graph, draft = values.graph, Draft(values.graph)
    operator = _OPERATORS[cell.state.shape[1] // cell.size]
    source = inputs.write(draft)
    weights = [
        draft.constant(array, np.float32) for array in (cell.weight.T[None], cell.state.T[None], cell.bias[None])
    ]
    names = [graph.fresh(name) for name in ("states", "last", "memory")][: 3 if operator == "LSTM" else 2]
    own: dict[str, Any] = {"activations": [cell.activation]} if operator == "RNN" else {}
    own |= {"linear_before_reset": 1} if operator == "GRU" else {}
    draft.ops(operator, (source, *weights), names, hidden_size=cell.size, **own)
    outputs = _outputs(values, draft, names, (states, memory), min(graph.producer.get(source, 0), len(graph.nodes)))
    if not outputs:
        return None
    read = [name for node in draft.nodes for name in node.input if name in graph.producer]
    gone = graph.unneeded(outputs, read)
    note = f"{len(states)} steps, state of {cell.size}"
    saving_ns = _GAIN * values.cost_of(gone)
    return draft.rewrite(f"recurrence: {operator}", outputs, graph.names(gone), saving_ns, note)


def _outputs(
    values: Values, draft: Draft, names: Sequence[str], made: tuple[Sequence[Array], Array], after: int
) -> list[str]:
    """Write the recorded values that are states, and return their names."""
    states, memory = made
    stacked = np.stack(states)
    outputs = list[str]()
    for name, array in values.runs[0].items():
        if values.graph.producer.get(name, -1) < after or array.dtype != np.float32:
            continue
        if array.size == stacked.size and array.ndim == 3:
            for order in ((0, 1, 2), (1, 0, 2)):
                if array.shape == stacked.transpose(order).shape and _equal(array, stacked.transpose(order)):
                    flat = draft.op("Squeeze", names[0], draft.constant([1], np.int64))
                    draft.finish(flat if order == (0, 1, 2) else draft.op("Transpose", flat, perm=list(order)), name)
                    outputs.append(name)
                    break
        elif array.size == memory.size:
            place = next(
                (place for place, state in enumerate(states) if _equal(array.reshape(state.shape), state)), None
            )
            if place is not None:
                row = draft.op(
                    "Gather", names[0], draft.constant([place if place + 1 < len(states) else -1], np.int64), axis=0
                )
                draft.reshape(row, array.shape, to=name)
                outputs.append(name)
            elif len(names) > 2 and _equal(array.reshape(memory.shape), memory):
                draft.reshape(names[2], array.shape, to=name)
                outputs.append(name)
    return outputs


def _equal(own: Array, other: Array) -> bool:
    return bool(np.abs(own - other).max() < _CLOSE * max(1e-2, float(np.abs(other).max())))
