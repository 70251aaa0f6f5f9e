"""A model after expansion of control flow: a branch in place of its If, iterations one after the other.

The time that a runtime spends on the operator itself, beyond its bodies, stays in the model as *the bare operator*: an
operator of the same kind with empty bodies, which is measured like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ...errors import BrokenModel, ModelError, UnsupportedModel
from ...models.constants import node_constant
from ...models.control_flow import Course, body_of, label_of
from ...models.subgraphs import attributes_of, bodies, is_constant, is_standard, own_names, rename
from ...models.time_limit import in_time

BARE = "/bare"
"""Suffix of a bare operator's name."""

FRAMING = frozenset({"Gather", "Unsqueeze", "Concat"})
"""Operators that slice scanned inputs and stack the results of iterations; their names are NAME/OPERATOR/VALUE."""

_AXES_ARE_INPUTS = 13
"""Opset since which the axes of Unsqueeze are an input."""


ExpansionStep: TypeAlias = tuple[str, Course, ValueInfoProto | None]
"""The expansion of one operator: its first output, which identifies it; the course to follow; and for a bare operator
its input: the condition of an If, any carried value of a Loop or Scan. None if a runtime does not execute the operator,
or without a suitable value."""


class Expansion:
    """An expansion of control flow in a model, in place.

    Attributes:
        opset: Opset of ONNX's own operators.
        keep_weights: True for a model with its weights (``normalise``): large constants of bodies then move unchanged.

    Args:
        model: In normal form.
        keep_weights: See above.
    """

    def __init__(self, model: ModelProto, *, keep_weights: bool = False) -> None:
        self._graph = model.graph
        self.keep_weights = keep_weights
        self.opset = max((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), default=1)
        self._taken = own_names(model.graph)
        self._numbers: dict[str, int] = {}

    def apply(self, steps: Sequence[ExpansionStep]) -> dict[str, ExpandedOperator | str]:
        """Expand operators of the model's main graph, all in one pass.

        Args:
            steps: The expansions; unknown operators are ignored.

        Returns:
            The results by first output. An operator stays unchanged, with the reason as its result, if its body does
            not match it, or if the shape of a result is unknown because no iteration makes it.
        """
        steps_by_output = {step[0]: step for step in steps}
        results: dict[str, ExpandedOperator | str] = {}
        nodes: list[NodeProto] = []
        for node in in_time(self._graph.node, "expanding control flow"):
            output = next(filter(None, node.output), "")
            if output in steps_by_output:
                try:
                    results[output] = part = ExpandedOperator(self, node, steps_by_output[output])
                    nodes += part.nodes
                    continue
                except ModelError as error:
                    results[output] = error.message
            nodes.append(node)
        del self._graph.node[:]
        self._graph.node.extend(nodes)
        return results

    # ------------------------------------------------------------------ for the expansions of operators

    def fresh(self, name: str) -> str:
        """Reserve and return a name that is new to the model."""
        new_name = name
        while new_name in self._taken:
            number = self._numbers[name] = self._numbers.get(name, 0) + 1  # earlier ones stay reserved
            new_name = f"{name}#{number}"
        self._taken.add(new_name)
        return new_name

    def keep(self, tensor: TensorProto, name: str) -> str:
        """Add a constant to the model and return its name there."""
        copy = self._graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = self.fresh(name)
        return str(copy.name)

    def hand_out(self, value: ValueInfoProto) -> None:
        """Make a value an output of the model, so that its producer stays."""
        self._graph.output.append(value)

    def keep_sparse(self, body: GraphProto, prefix: str) -> dict[str, str]:
        """Move the sparse constants of a body into the model; return old to new names."""
        names = {}
        for sparse in body.sparse_initializer:
            copy = self._graph.sparse_initializer.add()
            copy.CopyFrom(sparse)
            copy.values.name = names[sparse.values.name] = self.fresh(f"{prefix}/{sparse.values.name}")
        return names


class ExpandedOperator:
    """The expansion of one control-flow operator.

    Attributes:
        nodes: The operators in its place.
        inner: Control flow among these: first output to the label in the file.
        bare: Output of the bare operator, or empty.
    """

    def __init__(self, expansion: Expansion, node: NodeProto, step: ExpansionStep) -> None:
        self._expansion = expansion
        self._node = node
        self._at, course, bare = step
        self.nodes: list[NodeProto] = []
        self.inner: dict[str, str] = {}
        self.bare = ""
        if isinstance(course, str):
            self._branch(course)
        elif node.op_type == "Loop":
            self._loop(course)
        else:
            self._scan(course)
        if bare is not None:
            self._bare(course, bare)

    # ------------------------------------------------------------------ the three operators

    def _branch(self, course: str) -> None:
        body = body_of(self._node, f"{course}_branch")
        self._fits(len(body.output) == len(self._node.output) and not body.input)
        names = self._constants(body)
        self._write(body, names, "", self._direct(body, dict(enumerate(self._node.output))))
        for value, output in zip(body.output, self._node.output, strict=True):
            self._hand_on(names.get(value.name, value.name), output)

    def _loop(self, trips: int) -> None:
        node, body = self._node, body_of(self._node, "body")
        carried = len(node.input) - 2
        self._fits(
            carried >= 0
            and len(body.input) == carried + 2
            and len(body.output) > carried
            and len(node.output) <= len(body.output) - 1
        )
        condition = node.input[1] or self._constant(np.ones((), np.bool_), "true")

        def count(trip: int, names: dict[str, str]) -> None:
            names[body.input[0].name] = self._constant(np.array(trip, np.int64), f"{trip}/{body.input[0].name}")

        state, results = [condition, *node.input[2:]], ["", *node.output]
        for values, output in self._repeat(trips, body.input[1:], state, results, count):
            self._stack(values, output, 0)

    def _scan(self, trips: int) -> None:
        node, body = self._node, body_of(self._node, "body")
        attributes = attributes_of(node)
        scanned = int(attributes.get("num_scan_inputs", 0))
        carried = len(node.input) - scanned
        made_slots = len(body.output) - carried
        self._fits(
            carried >= 0
            and len(body.input) == len(node.input)
            and made_slots >= 0
            and len(node.output) <= len(body.output)
        )
        axes = {name: list(attributes.get(f"scan_{name}_axes", ())) for name in ("input", "output")}
        backward = {name: list(attributes.get(f"scan_{name}_directions", ())) for name in ("input", "output")}
        for name, count in (("input", scanned), ("output", made_slots)):
            axes[name] = axes[name] or [0] * count
            backward[name] = backward[name] or [0] * count
            self._fits(len(axes[name]) == len(backward[name]) == count)

        def read(trip: int, names: dict[str, str]) -> None:
            for slot, value in enumerate(body.input[carried:]):
                position = trips - 1 - trip if backward["input"][slot] else trip
                index = self._constant(np.array(position, np.int64), f"{trip}/at{slot}")
                names[value.name] = self._expansion.fresh(f"{self._at}/{trip}/{value.name}")
                self._add("Gather", [node.input[carried + slot], index], [names[value.name]], axis=axes["input"][slot])

        scan_outputs = self._repeat(trips, body.input[:carried], node.input[:carried], node.output, read)
        for slot, (values, output) in enumerate(scan_outputs):
            self._stack(values[::-1] if backward["output"][slot] else values, output, axes["output"][slot])

    def _repeat(
        self,
        trips: int,
        carried: Sequence[ValueInfoProto],
        state: Sequence[str],
        results: Sequence[str],
        begin: Callable[[int, dict[str, str]], None],
    ) -> list[tuple[list[str], str]]:
        """Write the iterations of a body.

        Args:
            trips: Number of iterations.
            carried: Inputs of the body that it carries; its first outputs are their next values.
            state: Their values before the first iteration.
            results: Name of each of the body's outputs after the last iteration, if any; missing ones are empty.
            begin: Adds the body's other inputs in an iteration to the names.

        Returns:
            Per output that is not carried its value in each iteration, and its name.
        """
        body, count = body_of(self._node, "body"), len(carried)
        ends = [*results, *[""] * (len(body.output) - len(results))]
        constants = self._constants(body)
        values_by_output: list[list[str]] = [[] for _ in ends[count:]]
        for trip in in_time(range(trips), "repeating the body of a loop"):
            names = dict(constants)
            begin(trip, names)
            names.update((value.name, name) for value, name in zip(carried, state, strict=True))
            direct = self._direct(body, dict(enumerate(ends[:count])) if trip == trips - 1 else {})
            self._write(body, names, f"{trip}/", direct)
            trip_outputs = [names.get(value.name, value.name) for value in body.output]
            state = trip_outputs[:count]
            for values, result in zip(values_by_output, trip_outputs[count:], strict=True):
                values.append(result)
        for name, output in zip(state, ends, strict=False):
            self._hand_on(name, output)
        return list(zip(values_by_output, ends[count:], strict=True))

    def _bare(self, course: Course, carried: ValueInfoProto) -> None:
        """Add the operator with empty bodies."""
        output = self.bare = self._expansion.fresh(f"{self._at}{BARE}")
        name = f"{label_of(self._node)}{BARE}"
        if isinstance(course, str):
            branches = {}
            for branch, number in (("then", 0.0), ("else", 1.0)):
                tensor = numpy_helper.from_array(np.array([number], np.float32), "value")
                branch_output = helper.make_tensor_value_info("value", TensorProto.FLOAT, [1])
                branches[f"{branch}_branch"] = helper.make_graph([], branch, [], [branch_output], [tensor])
            self.nodes.append(helper.make_node("If", [carried.name], [output], name=name, **branches))
            self._expansion.hand_out(helper.make_tensor_value_info(output, TensorProto.FLOAT, [1]))
            return
        state = ValueInfoProto(name="kept", type=carried.type)
        goes_on = helper.make_tensor_value_info("goes_on", TensorProto.BOOL, [])
        trip = helper.make_tensor_value_info("trip", TensorProto.INT64, [])
        body = helper.make_graph([], "body", [trip, goes_on, state], [goes_on, state])
        trips = self._constant(np.array(course, np.int64), "trips")
        self.nodes.append(helper.make_node("Loop", [trips, "", carried.name], [output], name=name, body=body))
        self._expansion.hand_out(ValueInfoProto(name=output, type=carried.type))

    # ------------------------------------------------------------------ bodies

    def _fits(self, fits: object) -> None:
        if not fits:
            raise BrokenModel(f"the body of {self._node.op_type} '{label_of(self._node)}' does not fit it")

    def _constants(self, body: GraphProto) -> dict[str, str]:
        """Move the constants of a body into the model, once for all iterations; return old to new names."""
        names = self._expansion.keep_sparse(body, self._at)
        for tensor in body.initializer:
            names[tensor.name] = self._expansion.keep(tensor, f"{self._at}/{tensor.name}")
        for node in body.node:
            if not is_constant(node) or not node.output:
                continue
            if self._expansion.keep_weights:
                copy = NodeProto()
                copy.CopyFrom(node)
                copy.output[0] = names[node.output[0]] = self._expansion.fresh(f"{self._at}/{node.output[0]}")
                self.nodes.append(copy)
            else:
                tensor = node_constant(node, node.output[0]).tensor
                if tensor is None:
                    raise UnsupportedModel(f"a constant in {self._node.op_type} '{label_of(self._node)}' is too large")
                names[node.output[0]] = self._expansion.keep(tensor, f"{self._at}/{node.output[0]}")
        return names

    def _direct(self, body: GraphProto, outputs: Mapping[int, str]) -> dict[str, str]:
        """Return the values of a body that can take the name of the operator's output at once."""
        computed_names = {name for node in body.node if not is_constant(node) for name in node.output}
        direct_names: dict[str, str] = {}
        for slot, output in outputs.items():
            name = body.output[slot].name
            if output and name in computed_names:
                direct_names.setdefault(name, output)
        return direct_names

    def _write(self, body: GraphProto, names: dict[str, str], trip: str, direct: Mapping[str, str]) -> None:
        """Write the nodes of a body under outside names; add the names of their results to ``names``."""
        for node in body.node:
            if is_constant(node):
                continue
            copy = NodeProto()
            copy.CopyFrom(node)
            rename(copy, names)
            for slot, name in enumerate(node.output):
                if name:
                    names[name] = direct.get(name) or self._expansion.fresh(f"{self._at}/{trip}{name}")
                    copy.output[slot] = names[name]
            if node.name and trip:
                copy.name = f"{node.name}/{trip.rstrip('/')}"
            if next(bodies(copy), None) is not None and is_standard(copy):
                self.inner[next(filter(None, copy.output), "")] = label_of(node)
            self.nodes.append(copy)

    def _hand_on(self, name: str, output: str) -> None:
        if output and name != output:
            self._add("Identity", [name], [output])

    def _stack(self, values: Sequence[str], output: str, axis: int) -> None:
        """Stack the results of iterations along a new axis."""
        if not output:
            return
        if not values:
            raise UnsupportedModel(
                f"{self._node.op_type} '{label_of(self._node)}' makes '{output}' in no iteration, so its shape is open"
            )
        parts = []
        for trip, value in enumerate(values):
            parts.append(self._expansion.fresh(f"{output}/{trip}"))
            if self._expansion.opset >= _AXES_ARE_INPUTS:
                axes = self._constant(np.array([axis], np.int64), f"axes{axis}")
                self._add("Unsqueeze", [value, axes], [parts[-1]])
            else:
                self._add("Unsqueeze", [value], [parts[-1]], axes=[axis])
        self._add("Concat", parts, [output], axis=axis)

    def _add(self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        name = f"{label_of(self._node)}/{operator}/{outputs[0]}"
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))

    def _constant(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str) -> str:
        return self._expansion.keep(numpy_helper.from_array(array), f"{self._at}/{name}")
