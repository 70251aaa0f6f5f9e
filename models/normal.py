"""The normal form of a model: constants in one form, no functions, names checked.

``Skeleton.model`` describes the form. Large constants in subgraphs (If, Loop, Scan) become weights of the *model*,
which subgraphs see by name like any outer value. Valid ONNX then does not require their payload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx
import onnx.inliner
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from ..errors import BrokenModel, UnsupportedModel
from .constants import Constant, filled_constant, graph_constants, initializers, node_constant
from .external import count_elements
from .skeleton import KEPT_ELEMENTS, mark_causal, mark_weight
from .subgraphs import (
    Scopes,
    all_nodes,
    bodies,
    given_names,
    in_order,
    is_constant,
    may_have_bodies,
    plain_domain,
    rename,
    require_text,
    sees,
)
from .time_limit import in_time

# Inlining of model-local functions, so that every node of a model is an operator.


_MAX_NODES = 200_000
"""Maximum nodes after inlining: a minute of analysis."""
_MAX_BYTES = 1 << 30
"""Maximum bytes of these nodes: a call copies the attributes of the function."""
_MAX_DEPTH = 100

_Id = tuple[str, str, str]
"""Domain, name and overload of a function."""


def inline_functions(model: ModelProto) -> ModelProto:
    """Return the model with every call of a model-local function replaced by the function's nodes.

    Returns ``model`` itself if it has only operators. The values of large constants may be absent.

    Raises:
        BrokenModel: Functions call each other in a cycle.
        UnsupportedModel: The calls expand to more nodes than any real model has, or a function uses another opset than
            the model and cannot be converted.
    """
    if not model.functions:
        return model
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    for function in model.functions:
        require_text(function.domain, function.name, *(opset.domain for opset in function.opset_import))
        for node in all_nodes(function.node):
            require_text(node.domain, node.op_type)
    _measure(model, functions)
    try:
        inlined = onnx.inliner.inline_local_functions(model, not _align(model))
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UnsupportedModel(f"its model-local functions cannot be inlined: {reason}") from error
    if inlined.functions:
        raise UnsupportedModel(f"its model-local function '{inlined.functions[0].name}' cannot be inlined")
    return inlined


def _measure(model: ModelProto, functions: dict[_Id, FunctionProto]) -> None:
    """Refuse recursive functions and unbounded expansion, before inlining."""
    sizes: dict[_Id, tuple[int, int]] = {}
    open_calls: list[_Id] = []

    def expanded(nodes: Iterable[NodeProto]) -> tuple[int, int]:
        """Return how many nodes these expand to, and their bytes."""
        count = nbytes = 0
        for node in all_nodes(nodes):
            name = (node.domain, node.op_type, node.overload)
            more = size(name) if name in functions else (1, node.ByteSize())
            count, nbytes = count + more[0], nbytes + more[1]
        return count, nbytes

    def size(name: _Id) -> tuple[int, int]:
        if name not in sizes:
            if name in open_calls:
                raise BrokenModel(f"model-local function '{name[1]}' calls itself")
            if len(open_calls) >= _MAX_DEPTH:
                raise UnsupportedModel(f"model-local functions are nested more than {_MAX_DEPTH} deep")
            open_calls.append(name)
            sizes[name] = expanded(functions[name].node)
            open_calls.pop()
        return sizes[name]

    own = sum(node.ByteSize() for node in model.graph.node)
    count, nbytes = expanded(model.graph.node)
    if count > _MAX_NODES or nbytes - own > _MAX_BYTES:
        raise UnsupportedModel(
            f"its model-local functions expand to {count} nodes of {nbytes >> 20} MiB, "
            f"more than {_MAX_NODES} or {_MAX_BYTES >> 20} MiB"
        )


def _align(model: ModelProto) -> bool:
    """Set each function's opsets to the model's if this changes no operator; return True if all could be set."""
    versions = {opset.domain: opset.version for opset in model.opset_import}
    aligned = True
    for function in model.functions:
        for opset in function.opset_import:
            version = versions.setdefault(opset.domain, opset.version)
            if version != opset.version:
                if _same_operators(function, opset.domain, opset.version, version):
                    opset.version = version
                else:
                    aligned = False
    for domain in versions.keys() - {opset.domain for opset in model.opset_import}:
        model.opset_import.add(domain=domain, version=versions[domain])
    return aligned


def _same_operators(function: FunctionProto, domain: str, version: int, other: int) -> bool:
    for operator in {node.op_type for node in all_nodes(function.node) if node.domain == domain}:
        if onnx.defs.has(operator, domain):
            try:
                first, second = (onnx.defs.get_schema(operator, opset, domain) for opset in (version, other))
            except onnx.defs.SchemaError:
                return False  # one of the opsets lacks it
            if first.since_version != second.since_version:
                return False
    return True


# Large constants of subgraphs, which become constants of the model.


_Message = TypeVar("_Message")


def hoist_constants(
    nodes: Iterable[NodeProto], defined: set[str], definitions: Counter[str]
) -> list[tuple[str, Constant]]:
    """Move the large constants out of the subgraphs of a model's nodes, in place.

    A subgraph sees outer values by name, so its large constants can belong to the model, without a payload. Small ones
    stay.

    Args:
        nodes: The nodes of the model's main graph.
        defined: All names defined by the main graph; new ones are added.
        definitions: The number of definitions of each name in all subgraphs.

    Returns:
        Name in the model and value of each moved constant.
    """
    hoist = _Hoist(defined, definitions)
    for node in nodes:
        for graph in bodies(node):
            hoist.take(graph)
    return hoist.taken


class _Hoist:
    def __init__(self, defined: set[str], definitions: Counter[str]) -> None:
        self.taken: list[tuple[str, Constant]] = []
        self._defined = defined
        self._definitions = definitions

    def take(self, graph: GraphProto) -> None:
        for node in graph.node:
            for nested in bodies(node):
                self.take(nested)
        large = {name: constant for name, constant in graph_constants(graph) if constant.tensor is None}
        if not large:
            return
        _replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in large])
        _replace(graph.sparse_initializer, [s for s in graph.sparse_initializer if s.values.name not in large])
        nodes = [node for node in graph.node if not (is_constant(node) and node.output and node.output[0] in large)]
        handed_out = {value.name for value in graph.output}
        for name, constant in large.items():
            outer = name
            if name in handed_out or name in self._defined or self._definitions[name] > 1:
                outer = self._fresh(name)
                for node in nodes:
                    rename(node, {name: outer})
            if name in handed_out:  # a subgraph may return only its own values
                nodes.insert(0, NodeProto(op_type="Identity", input=[outer], output=[name]))
            self._defined.add(outer)
            self.taken.append((outer, constant))
        _replace(graph.node, nodes)

    def _fresh(self, name: str) -> str:
        number = 1
        while (fresh := f"{name}__{number}") in self._defined or fresh in self._definitions:
            number += 1
        return fresh


def _replace(field: MutableSequence[_Message], items: list[_Message]) -> None:
    del field[:]
    field.extend(items)


_DEFAULTS_SINCE = 4
"""IR version since which an initializer of a graph input is a default; before, every initializer was an input."""

_IR_VERSION = 10
"""Lowest IR version of the form: initializers need not be inputs (4), and values have metadata (10)."""

_NOTES = tuple(
    name
    for name in ("doc_string", "metadata_props", "device_configurations")
    if name in NodeProto.DESCRIPTOR.fields_by_name  # the last came with onnx 1.18
)


@dataclass(frozen=True, slots=True, eq=False)
class NormalForm:
    """A model in normal form.

    Attributes:
        model: The model; graph inputs are first its activations, in the file's order, then its weights.
        weight_bytes: Bytes of all constants of the source.
        overridable: Constants that a caller may override, because they are also graph inputs. Runtimes do not fold or
            pack them.
    """

    model: ModelProto
    weight_bytes: int
    overridable: frozenset[str] = frozenset()


def normalise(model: ModelProto, *, keep_weights: bool = False) -> NormalForm:
    """Bring a model into normal form; ``model`` is modified.

    Args:
        model: The result of ``read_structure`` or ``read_full``.
        keep_weights: Leave large constants unchanged instead of making them weights: the same model under the same
            names, for a runtime.

    Raises:
        BrokenModel: A name is used before its definition or defined twice, or a constant is invalid.
        UnsupportedModel: Model-local functions cannot be inlined.
    """
    return _Normaliser(inline_functions(model), keep_weights=keep_weights).run()


class _Normaliser:
    """One pass over the nodes of one model, in order."""

    def __init__(self, model: ModelProto, *, keep_weights: bool) -> None:
        self._keep_weights = keep_weights
        self._source = model
        self._graph = model.graph
        self._domains = {plain_domain(opset.domain) for opset in model.opset_import}
        self._constants: dict[str, Constant] = {}
        self._live: list[NodeProto] = []
        self._produced: set[str] = set()
        self._defined: set[str] = set()
        self._used: set[str] = set()
        self._hoisted: list[tuple[str, Constant]] = []
        self._definitions: Counter[str] = Counter()  # of names within subgraphs
        self._weight_bytes = 0

    def run(self) -> NormalForm:
        for name, constant in initializers(self._graph):
            self._add_constant(name, constant)
        # An input with an initializer is a constant (the only form before IR 4, a default since).
        inputs = [value for value in self._graph.input if value.name not in self._constants]
        defaults = frozenset[str]()
        if self._source.ir_version >= _DEFAULTS_SINCE:
            defaults = frozenset(value.name for value in self._graph.input if value.name in self._constants)
        for value in inputs:
            self._define(value.name)
        for node in in_time(self._nodes(), "reading nodes"):
            self._visit(node)
        for value in self._graph.output:
            if value.name not in self._defined:
                raise BrokenModel(f"graph output '{value.name}' is made by no node")
            self._used.add(value.name)
        if self._definitions and not self._keep_weights:
            self._hoisted = hoist_constants(self._live, self._defined, self._definitions)
        return NormalForm(self._build(inputs), self._weight_bytes, defaults & self._used)

    # ------------------------------------------------------------------ nodes, in order

    def _nodes(self) -> Sequence[NodeProto]:
        """Return the nodes in order: some converters write a file unsorted, and runtimes sort it.

        Nodes that depend on each other in a circle stay as they are, to be refused.
        """
        nodes, defined_names = list(self._graph.node), set(self._defined)
        for node in nodes:
            if any(name and name not in defined_names for name in node.input):
                ordered_nodes = in_order(nodes)
                return ordered_nodes if len(ordered_nodes) == len(nodes) else nodes
            defined_names.update(node.output)
        return nodes

    def _visit(self, node: NodeProto) -> None:
        operator = node.op_type
        standard = self._check_domain(node)
        defined = self._defined
        inputs = node.input
        for name in inputs:
            if name not in defined and name:
                raise BrokenModel(f"{_label(node)} reads '{name}', which nothing before it defines")
        constant = None
        if standard and operator in {"Constant", "ConstantOfShape"}:
            constant = self._fold(node)
        if constant is not None:
            self._add_constant(node.output[0], constant)
            if constant.tensor is not None or not self._keep_weights:
                return
        elif may_have_bodies(node):
            for graph in bodies(node):
                self._used |= self._visit_subgraph(graph, (defined,))
        self._used.update(inputs)
        self._live.append(node)
        for name in node.output:
            if name:
                self._produced.add(name)
                if constant is None:
                    self._define(name)

    def _check_domain(self, node: NodeProto) -> bool:
        """Normalise the domain's spelling; return True for ONNX's own."""
        domain = node.domain
        if domain == "ai.onnx":
            node.domain = domain = ""
        if domain not in self._domains:
            raise BrokenModel(
                f"{_label(node)} is of domain '{domain or 'ai.onnx'}', whose opset the model does not state"
            )
        return not domain

    def _fold(self, node: NodeProto) -> Constant | None:
        """Return the constant that a node makes; None if it depends on unknown values."""
        if not node.output or not node.output[0]:
            raise BrokenModel(f"{_label(node)} has no output")
        name = node.output[0]
        if node.op_type == "Constant":
            return node_constant(node, name)
        shape = self._constants.get(node.input[0]) if node.input else None
        if shape is None or shape.tensor is None:
            return None
        if shape.dtype != TensorProto.INT64 or len(shape.dims) != 1:
            raise BrokenModel(f"{_label(node)} wants a list of int64 as its shape")
        return filled_constant(node, tuple(np.frombuffer(shape.tensor.raw_data, "<i8").tolist()), name)

    def _define(self, name: str) -> None:
        if name in self._defined:
            raise BrokenModel(f"'{name}' is defined twice")
        if not name:
            raise BrokenModel("an input or a constant of the graph has no name")
        require_text(name)
        self._defined.add(name)

    def _add_constant(self, name: str, constant: Constant) -> None:
        self._define(name)
        self._constants[name] = constant
        self._weight_bytes += constant.nbytes

    # ------------------------------------------------------------------ subgraphs

    def _visit_subgraph(self, graph: GraphProto, outer: Scopes) -> set[str]:
        """Check a subgraph, and return the outer names that it uses."""
        local = given_names(graph)
        scopes = (*outer, local)
        captured: set[str] = set()
        for node in graph.node:
            self._check_domain(node)
            for name in node.input:
                if name and name not in local:
                    if not sees(outer, name):
                        raise BrokenModel(f"{_label(node)} reads '{name}', which nothing before it defines")
                    captured.add(name)
            for nested in bodies(node):
                captured |= self._visit_subgraph(nested, scopes) - local
            local.update(node.output)
            _drop_notes(node)
        for value in graph.output:
            if value.name not in local:
                if not sees(outer, value.name):
                    raise BrokenModel(f"subgraph output '{value.name}' is made by no node")
                captured.add(value.name)
        self._definitions.update(local)
        graph.ClearField("doc_string")
        graph.ClearField("metadata_props")
        graph.ClearField("quantization_annotation")
        self._weight_bytes += sum(constant.nbytes for _, constant in graph_constants(graph))
        return captured

    # ------------------------------------------------------------------ the result

    def _build(self, inputs: list[ValueInfoProto]) -> ModelProto:
        source = self._source
        model = ModelProto(ir_version=max(source.ir_version, _IR_VERSION), producer_name=source.producer_name)
        for opset in source.opset_import:
            domain = plain_domain(opset.domain)
            if domain in self._domains:
                self._domains.remove(domain)  # both spellings may occur
                model.opset_import.add(domain=domain, version=opset.version)
        graph = model.graph
        graph.name = self._graph.name or "graph"
        for node in self._live:
            require_text(node.name, node.op_type, *[attribute.name for attribute in node.attribute])
            _drop_notes(node)
        graph.node.extend(self._live)
        graph.input.extend(inputs)
        graph.output.extend(self._graph.output)
        used, produced = self._used, self._produced
        graph.value_info.extend(value for value in self._graph.value_info if value.name in produced)
        for value in (*graph.input, *graph.output, *graph.value_info):
            value.ClearField("doc_string")
            value.ClearField("metadata_props")  # also so that files cannot mark inputs as weights
        for name, constant in self._constants.items():
            if name in used:
                if constant.tensor is not None:
                    graph.initializer.append(constant.tensor)
                elif not self._keep_weights:
                    _add_weight(graph, name, constant)
        for name, constant in self._hoisted:
            _add_weight(graph, name, constant)
        if self._keep_weights:
            graph.initializer.extend(t for t in self._graph.initializer if count_elements(t.dims) > KEPT_ELEMENTS)
            graph.sparse_initializer.extend(
                s for s in self._graph.sparse_initializer if count_elements(s.dims) > KEPT_ELEMENTS
            )
        return model


def _add_weight(graph: GraphProto, name: str, constant: Constant) -> None:
    value = graph.input.add(name=name)
    tensor_type = value.type.tensor_type
    tensor_type.elem_type = constant.dtype
    tensor_type.shape.SetInParent()
    dims = tensor_type.shape.dim
    for dim in constant.dims:
        dims.add(dim_value=dim)
    mark_weight(value)
    if constant.causal:
        mark_causal(value)


def _drop_notes(node: NodeProto) -> None:
    for name in _NOTES:
        node.ClearField(name)


def _label(node: NodeProto) -> str:
    return f"{node.op_type} '{node.name}'" if node.name else f"{node.op_type} (of {', '.join(map(str, node.output))})"
