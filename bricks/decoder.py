"""Decoders of text: which inputs of a model are tokens, positions, mask and cache, and how long each is.

An input's name suggests its role, and its use has to agree: tokens select rows of a table, positions turn queries or
select rows of another table, a mask reaches scores, and a cache is extended into an output. Otherwise an
error names the input.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import onnx
from onnx import TensorProto

from ..errors import BrokenModel, UsageError
from ..models.control_flow import CourseChoice, label_of
from ..models.dimensions import NAMELESS
from ..models.runnable import load_open
from ..models.skeleton import is_weight
from ..models.subgraphs import attribute_of, attributes_of, bodies, is_standard
from . import operators
from .costs.result_types import grouped_head_size
from .encoding import element_name
from .layer import ELEMENT_BITS
from .operators import Kind, Trait, operator_of


class InputRole(StrEnum):
    """The role of an input of a decoder."""

    TOKENS = "tokens"
    """Numbers of the new tokens."""
    POSITIONS = "positions"
    """Positions of the new tokens."""
    MASK = "mask"
    """Ones, or zeros added to scores, for cached and new positions."""
    CACHE = "cache"
    """Keys or values of the positions before, extended into an output."""
    BRANCH = "branch"
    """Whether the cache is used, of a file with a branch for each."""
    LAST = "last"
    """The last position of each sequence."""
    TOTAL = "total"
    """Number of cached and new positions."""
    LOGITS = "logits"
    """Number of last positions to compute logits for."""


_NAMES: tuple[tuple[re.Pattern[str], InputRole], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), role)
    for pattern, role in (
        (r"use_cache", InputRole.BRANCH),
        (r"logits_to_keep|num_logits", InputRole.LOGITS),
        (r"seqlens?_k$", InputRole.LAST),
        (r"total_seq", InputRole.TOTAL),
        (r"position|^pos(_ids)?$", InputRole.POSITIONS),
        (r"mask", InputRole.MASK),
        (r"^past|cache|^(key|value)s?[._]?\d+$", InputRole.CACHE),
        (r"(^|_)(input_ids|ids|tokens?|token_ids)$", InputRole.TOKENS),
    )
)
"""Roles by name; the first match counts."""

_INTEGERS = frozenset({TensorProto.INT32, TensorProto.INT64})

_GROUPED = "GroupQueryAttention"

OPTION = "--input"
"""The option that tells a role."""


@dataclass(frozen=True, slots=True)
class DecoderInput:
    """An input of a decoder.

    Attributes:
        name: Its name.
        role: Its role.
        dtype: Element type, ONNX's name in lower case.
        shape: Sizes that the file fixes; None for an open axis.
        labels: Name of each open axis as ``--dim`` takes it; empty for a fixed one.
        axis: Of a cache: the axis of its positions.
        present: Of a cache: the output that extends it.
    """

    name: str
    role: InputRole
    dtype: str
    shape: tuple[int | None, ...]
    labels: tuple[str, ...]
    axis: int = -1
    present: str = ""

    def sizes(self, batch: int, new: int, past: int) -> tuple[int | None, ...]:
        """Return the size of each axis for new tokens behind cached positions; None for an axis that counts neither."""
        rank, total = len(self.shape), past + new
        counted: dict[InputRole, tuple[int | None, ...]] = {
            InputRole.TOKENS: (batch, new),
            InputRole.POSITIONS: (batch, new),
            InputRole.MASK: {2: (batch, total), 3: (batch, new, total), 4: (batch, None, new, total)}.get(rank, ()),
            InputRole.CACHE: (batch, *(past if axis == self.axis else None for axis in range(1, rank))),
            InputRole.LAST: (batch, *(None for _ in self.shape[1:])),
        }
        sizes = counted.get(self.role, ())[-rank:] if rank else ()
        # Positions may have other axes before, such as those of a picture.
        return (*(None for _ in range(rank - len(sizes))), *sizes)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder in one file.

    Attributes:
        name: The file.
        inputs: Its inputs.
        logits: The output with the scores of all tokens.
        vocabulary: Number of tokens; None if the file leaves it open.
        branches: Names of the operators that choose between prompt and step; empty if both take the same way.
        shared: Past and present keys and values are one buffer.
        fixed: Sizes of axes that count neither sequences nor positions, given or found, by label.
        weight_bytes: Bytes of its weights.
        positions: Most positions that its tables have; None if no table tells.
    """

    name: str
    inputs: tuple[DecoderInput, ...]
    logits: str
    vocabulary: int | None
    branches: tuple[str, ...]
    shared: bool
    fixed: Mapping[str, int]
    weight_bytes: int
    positions: int | None

    @property
    def caches(self) -> tuple[DecoderInput, ...]:
        """The inputs with keys and values."""
        return tuple(entry for entry in self.inputs if entry.role is InputRole.CACHE)

    def buffer(self, past: int, new: int) -> int:
        """Return the length of the caches that are read: a shared buffer has room for the new positions."""
        return past + new if self.shared else past

    def dims(self, *, batch: int, new: int, past: int) -> dict[str, int]:
        """Return the size of every open dimension.

        Raises:
            UsageError: The file fixes another size, or one dimension counts two things.
        """
        sizes: dict[str, tuple[int, str]] = {}
        for entry in self.inputs:
            held = self.buffer(past, new) if entry.role is InputRole.CACHE else past
            wanted = entry.sizes(batch, new, held)
            for axis, (label, size, own) in enumerate(zip(entry.labels, wanted, entry.shape, strict=True)):
                place = f"axis {axis} of input '{entry.name}'"
                if own is not None:
                    if size not in {None, own}:
                        raise UsageError(
                            f"{self.name}: {place} is fixed at {own}, and {size} are needed",
                            remedy="export it with open lengths, or give the models of the prompt and of a step",
                        )
                    continue
                told = self.fixed.get(label) if size is None else size
                if told is None:
                    raise _unknown_axis(self.name, entry.name, axis, label)
                before, where = sizes.setdefault(label, (told, place))
                if before != told:
                    raise UsageError(
                        f"{self.name}: dimension '{label}' is {before} at {where}, and {told} at {place}",
                        remedy=f"name them apart in the file, or tell what the input is: {OPTION} '{entry.name}=ROLE'",
                    )
        return {label: size for label, (size, _) in sizes.items()}

    def control(self, past: int) -> tuple[CourseChoice, ...]:
        """Return the course of the branch, before a prompt or with cached positions."""
        return tuple(CourseChoice(name, "then" if past else "else") for name in self.branches)

    def cache_bytes(self, *, batch: int, positions: int) -> int:
        """Return the bytes of all keys and values of some positions."""
        bits = 0
        for entry in self.caches:
            size = ELEMENT_BITS[entry.dtype]
            for own, wanted, label in zip(entry.shape, entry.sizes(batch, 0, positions), entry.labels, strict=True):
                size *= own if own is not None else self.fixed.get(label, wanted or 0)
            bits += size
        return bits // 8

    def described(self) -> str:
        """Return one line with the roles of the inputs."""
        words = []
        for role in InputRole:
            names = [entry.name for entry in self.inputs if entry.role is role]
            if role is InputRole.CACHE:
                first = self.caches[0]
                shape = ", ".join(str(size) if size is not None else label or "?" for size, label in
                                  zip(first.shape, first.labels, strict=True))  # fmt: skip
                start = "a branch of its own" if self.branches else "an empty cache"
                kept = ", one buffer for past and present" if self.shared else ""
                words.append(
                    f"cache {names[0]} to {names[-1]} ({len(names)} of {first.dtype}[{shape}]{kept}; "
                    f"a prompt starts from {start})"
                )
            elif names:
                words.append(f"{role} {', '.join(names)}")
        return f"{self.name}: {'; '.join(words)}; scores {self.logits}"


def read_decoder(
    path: Path, name: str, *, roles: Mapping[str, str] | None = None, dims: Mapping[str, int] | None = None
) -> Decoder:
    """Find the roles of the inputs of a decoder.

    Args:
        path: The model file.
        name: Its name in messages.
        roles: Role by input, if names and use do not tell it.
        dims: Sizes of dimensions that count neither sequences nor positions.

    Raises:
        UsageError: The model is not a decoder, or an input is not understood; the message names it and the option.
        ModelError: The file cannot be read, or weights do not fit their operator.
    """
    given = {input_name: _role(text, input_name) for input_name, text in (roles or {}).items()}
    normal = load_open(path)
    return _Reading(normal.model, normal.weight_bytes, name, given, dims or {}, kept=_keeps_buffers(path)).decoder()


_SETTINGS = "genai_config.json"
"""The settings of onnxruntime-genai, beside the file that its builder makes."""

_MOST_SETTINGS = 1 << 20


def _keeps_buffers(path: Path) -> bool:
    """Return True if the settings beside a file say that its loop gives past and present one buffer.

    The builder declares the lengths of both by different names even then.

    Raises:
        BrokenModel: The settings cannot be read.
    """
    beside = path.parent / _SETTINGS
    if not beside.is_file():
        return False
    try:
        with beside.open("rb") as stream:
            settings = json.loads(stream.read(_MOST_SETTINGS))
    except (OSError, ValueError, RecursionError) as error:
        raise BrokenModel(f"{beside} cannot be read: {error}", remedy="mend it, or move it away") from error
    match settings:
        case {"model": {"decoder": {"filename": path.name}}, "search": {"past_present_share_buffer": True}}:
            return True
        case _:
            return False


def _role(text: str, name: str) -> InputRole:
    try:
        return InputRole(text)
    except ValueError as error:
        raise UsageError(f"{OPTION} {name}={text}: no role", remedy=f"there are {', '.join(InputRole)}") from error


def _unknown_axis(model: str, name: str, axis: int, label: str) -> UsageError:
    return UsageError(
        f"{model}: input '{name}' has one free axis too many: nothing tells the size of axis {axis}, '{label}'",
        remedy=f"give it: --dim '{label}=N'",
    )


class _Reading:
    """The graph of a decoder, with the branch of a merged file that reads the cache."""

    def __init__(
        self,
        model: onnx.ModelProto,
        weight_bytes: int,
        name: str,
        given: Mapping[str, InputRole],
        dims: Mapping[str, int],
        *,
        kept: bool,
    ) -> None:
        self._graph, self._name, self._given, self._dims = model.graph, name, given, dims
        self._kept = kept
        self._weight_bytes = weight_bytes
        self._inputs = {value.name: value for value in model.graph.input if not is_weight(value)}
        self._outputs = {value.name: value for value in model.graph.output}
        self._shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer} | {
            value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in model.graph.input
            if is_weight(value)
        }
        self._columns = {
            value.name: int(axes[-1].dim_value)
            for value in model.graph.value_info
            if (axes := value.type.tensor_type.shape.dim) and axes[-1].dim_value
        }
        self._branches: list[str] = []
        self._readers: dict[str, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
        for node in self._nodes(model.graph):
            for slot, value in enumerate(node.input):
                self._readers[value].append((node, slot))
            if "N" in (attributes := attributes_of(node)) and node.output:
                self._columns.setdefault(node.output[0], int(attributes["N"]))

    def _nodes(self, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
        for node in graph.node:
            yield node
            if node.op_type == "If" and is_standard(node) and node.input[0] in self._inputs:
                self._branches.append(label_of(node))
                body = attribute_of(node, "then_branch")
                yield from self._nodes(body)
                for inner, outer in zip(body.output, node.output, strict=True):
                    yield onnx.helper.make_node("Identity", [inner.name], [outer])
            else:
                for body in bodies(node):
                    yield from self._nodes(body)

    def decoder(self) -> Decoder:
        """Return the decoder."""
        if unknown := sorted(set(self._given) - set(self._inputs)):
            raise UsageError(
                f"{OPTION} {unknown[0]}: {self._name} has no such input", remedy=f"there are {', '.join(self._inputs)}"
            )
        self._require_blocks()
        extended = {name: self._extended(name) for name in self._inputs}
        pairs = {name: found for name, found in extended.items() if found is not None}
        if not pairs:
            raise UsageError(
                f"{self._name} is not a decoder: none of its inputs ({', '.join(self._inputs)}) is a cache that an "
                "output extends",
                remedy="give a decoder with past keys and values, or the models of the prompt and of a step",
            )
        logits = self._logits({present for present, _ in pairs.values()})
        dims = self._outputs[logits].type.tensor_type.shape.dim
        self._vocabulary = int(dims[-1].dim_value) or None
        entries = tuple(self._entry(name, pairs.get(name)) for name in self._inputs)
        tokens = [entry.name for entry in entries if entry.role is InputRole.TOKENS]
        if len(tokens) != 1:
            what = f"inputs {', '.join(tokens)} all seem to be" if tokens else "none of its inputs seems to be"
            raise UsageError(f"{self._name}: {what} tokens", remedy=f"tell which: {OPTION} NAME=ROLE")
        shared = all(self._in_place(entry) for entry in entries if entry.role is InputRole.CACHE)
        self._require_free(entries)
        decoder = Decoder(
            self._name, entries, logits, self._vocabulary, tuple(self._branches), shared,
            {**self._head_sizes(entries), **self._dims}, self._weight_bytes, self._most_positions(entries),
        )  # fmt: skip
        decoder.dims(batch=self._batch(entries), new=3, past=5)  # every open axis is known, and none counts two things
        return decoder

    def _head_sizes(self, entries: Sequence[DecoderInput]) -> dict[str, int]:
        """Return the sizes of open last axes of caches: the operator that reads a cache divides columns by heads."""
        sizes: dict[str, set[int]] = defaultdict(set)
        for entry in entries:
            if entry.role is InputRole.CACHE and entry.shape[-1] is None and entry.axis != len(entry.shape) - 1:
                for node, _ in self._readers[entry.name]:
                    columns = self._columns.get(node.input[0]) if node.op_type == _GROUPED else None
                    sizes[entry.labels[-1]] |= {grouped_head_size(node, columns)} if columns else set()
        return {label: next(iter(found)) for label, found in sizes.items() if len(found) == 1}

    def _most_positions(self, entries: Sequence[DecoderInput]) -> int | None:
        """Return the rows of the shortest table that positions select from."""
        rows = []
        for entry in entries:
            reached = self._reached(entry.name, _keeps) if entry.role is InputRole.POSITIONS else ()
            rows += [
                self._shapes.get(node.input[0], ())[:1]
                for node, slot in reached
                if slot and dict(operator_of(node).roles).get(slot) == operators.ROWS
            ]
        for readers in self._readers.values():
            for node, _ in readers:
                rows += [self._shapes.get(node.input[slot], ())[:1] for slot in _angles(node)]
        return min((size for size, *_ in filter(None, rows) if size > 1), default=None)

    def _require_free(self, entries: Sequence[DecoderInput]) -> None:
        """Check that each size that the caller gives is one that nothing else tells."""
        counted = {
            label: size is not None
            for entry in entries
            for label, size in zip(entry.labels, entry.sizes(1, 1, 1), strict=True)
            if label
        }
        for label in self._dims:
            if label not in counted:
                raise UsageError(
                    f"--dim {label}: {self._name} has no such dimension", remedy=f"there are: {', '.join(counted)}"
                )
            if counted[label]:
                raise UsageError(
                    f"--dim {label}: this dimension of {self._name} counts sequences or positions",
                    remedy="--prompt, --new and --batch vary it",
                )

    @staticmethod
    def _batch(entries: Sequence[DecoderInput]) -> int:
        """Return a batch that the file allows."""
        sizes = (zip(entry.shape, entry.sizes(-1, 0, 0), strict=True) for entry in entries)
        return next((own for entry in sizes for own, counted in entry if own and counted == -1), 2)

    def _in_place(self, entry: DecoderInput) -> bool:
        """Return True if a cache and its extension are one buffer, and the operator extends it in place.

        They are if the file declares both alike, or if the settings beside it say so.
        """
        types = (self._inputs[entry.name].type, self._outputs[entry.present].type)
        first, second = (kind.SerializeToString(deterministic=True) for kind in types)
        named = entry.labels[entry.axis] != f"{entry.name}[{entry.axis}]"  # lengths without a name may differ
        readers = (operator_of(node).traits for node, _ in self._readers[entry.name])
        alike = first == second and named
        return bool((alike or self._kept) and all(Trait.IN_PLACE in traits for traits in readers))

    def _logits(self, presents: set[str]) -> str:
        """Return the output with scores: a number per token of the vocabulary, for each position."""
        candidates = [
            value.name
            for value in self._graph.output
            if value.name not in presents
            and value.type.tensor_type.elem_type not in _INTEGERS
            and len(value.type.tensor_type.shape.dim) in {2, 3}
        ]
        named = [name for name in candidates if "logits" in name.lower()] or candidates
        if len(named) != 1:
            raise UsageError(
                f"{self._name} is not a decoder of text: "
                + (f"outputs {', '.join(named)} could all be" if named else "none of its outputs is")
                + " the scores of tokens",
                remedy="name the output 'logits'",
            )
        return str(named[0])

    def _entry(self, name: str, pair: tuple[str, int | None] | None) -> DecoderInput:
        tensor = self._inputs[name].type.tensor_type
        shape: list[int | None] = []
        labels: list[str] = []
        for axis, dim in enumerate(tensor.shape.dim):
            fixed = int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else None
            label = "" if dim.dim_param in NAMELESS else dim.dim_param
            shape.append(fixed)
            labels.append("" if fixed is not None else label or f"{name}[{axis}]")
        role = self._role_of(name, pair, len(shape))
        entry = DecoderInput(name, role, element_name(tensor.elem_type), tuple(shape), tuple(labels))
        if role is not InputRole.CACHE:
            return entry
        if pair is None:
            raise self._not_understood(name, "no output extends it")
        return replace(entry, axis=self._positions_axis(entry, pair[1]), present=pair[0])

    def _positions_axis(self, entry: DecoderInput, axis: int | None) -> int:
        """Return the axis of a cache that counts positions."""
        open_axes = [
            i for i, size in enumerate(entry.shape) if i and size is None and entry.labels[i] not in self._dims
        ]
        if axis is None and len(open_axes) != 1:
            if open_axes:
                raise _unknown_axis(self._name, entry.name, open_axes[0], entry.labels[open_axes[0]])
            raise self._not_understood(entry.name, "a cache of fixed length is not supported")
        found = open_axes[0] if axis is None else axis % len(entry.shape)
        if entry.shape[found] is not None:
            raise self._not_understood(
                entry.name, f"a cache of fixed length ({entry.shape[found]} positions) is not supported"
            )
        return found

    def _not_understood(self, name: str, why: str) -> UsageError:
        return UsageError(
            f"{self._name}: input '{name}' is not understood: {why}",
            remedy=f"tell what it is: {OPTION} '{name}=ROLE', one of {', '.join(InputRole)}",
        )

    def _role_of(self, name: str, pair: tuple[str, int | None] | None, rank: int) -> InputRole:
        """Return the role of an input: the given one, or the one that its name and its use agree on."""
        if name in self._given:
            return self._given[name]
        named = next((role for pattern, role in _NAMES if pattern.search(name)), None)
        used = {InputRole.CACHE} if pair is not None else self._alone(name, self._used(name, rank))
        if named is not None and (named in used or not used):
            if not used and self._readers.get(name) and named in {InputRole.TOKENS, InputRole.CACHE}:
                raise self._not_understood(name, f"it is named as {named}, and not used so")
            return named
        if named is not None:
            raise self._not_understood(name, f"it is named as {named}, and used as {' or '.join(sorted(used))}")
        if len(used) == 1:
            return next(iter(used))
        raise self._not_understood(
            name, f"it could be {' or '.join(sorted(used))}" if used else "neither its name nor its use tells"
        )

    def _used(self, name: str, rank: int) -> set[InputRole]:
        """Return the roles that fit the use of an input."""
        kind = self._inputs[name].type.tensor_type.elem_type
        roles: set[InputRole] = set()
        if kind == TensorProto.BOOL and any(node.op_type == "If" for node, _ in self._readers[name]):
            return {InputRole.BRANCH}
        for node, slot in self._reached(name, _keeps):
            word = dict(operator_of(node).roles).get(slot)
            if word == operators.ROWS and kind in _INTEGERS:
                roles |= self._of_table(node, slot)
            elif word in {operators.POSITIONS, operators.LAST, operators.TOTAL}:
                roles.add(InputRole(word))
        if kind in _INTEGERS and any(node.op_type in {"Cos", "Sin"} for node, _ in self._reached(name, _turns)):
            roles.add(InputRole.POSITIONS)
        if rank > 1 and any(_masks(node, slot) for node, slot in self._reached(name, _computes)):
            roles.add(InputRole.MASK)
        return roles - {InputRole.MASK} if InputRole.TOKENS in roles else roles

    def _alone(self, name: str, used: set[InputRole]) -> set[InputRole]:
        """Return the roles without tokens, if only another input selects from a table with a row per token."""
        others = (other for other in self._inputs if other != name)
        if used == {InputRole.TOKENS, InputRole.POSITIONS} and any(
            self._used(other, 2) == {InputRole.TOKENS} for other in others
        ):
            return {InputRole.POSITIONS}
        return used

    def _of_table(self, node: onnx.NodeProto, slot: int) -> set[InputRole]:
        """Return the roles of an index of a table's rows: the table of the vocabulary has a row per token."""
        if not slot:
            return {InputRole.TOKENS}  # an operator that embeds tokens has its tables behind them
        table = self._shapes.get(node.input[0], ())
        if len(table) == 1:
            return set()
        exact = self._vocabulary is not None and table[:1] == (self._vocabulary,)
        return {InputRole.TOKENS} if exact else {InputRole.TOKENS, InputRole.POSITIONS}

    def _extended(self, name: str) -> tuple[str, int | None] | None:
        """Return the output that extends an input, and the extended axis; None if axes are permuted before."""
        kind = self._inputs[name].type.tensor_type
        if kind.elem_type in _INTEGERS or kind.elem_type == TensorProto.BOOL or len(kind.shape.dim) < 3:
            return None
        seen: dict[str, tuple[int | None, bool]] = {name: (None, False)}
        queue = [name]
        for value in queue:
            axis, turned = seen[value]
            if value in self._outputs and axis is not None:
                return value, None if turned else axis
            for node, slot in self._readers[value]:
                row = operator_of(node)
                results = [out for past, out in row.caches if past == slot]
                now, other = axis, turned
                if results:
                    targets = [node.output[out] for out in results if out < len(node.output)]
                    now = -2 if axis is None else axis
                elif _keeps(node, slot):
                    targets = list(node.output[:1])
                    if node.op_type == "Concat" and axis is None:
                        now = int(attribute_of(node, "axis", 0))
                    elif node.op_type not in {"Concat", "Identity", "Cast"} and axis is None:
                        other = True
                else:
                    continue
                for target in targets:
                    if target and target not in seen:
                        seen[target] = (now, other)
                        queue.append(target)
        return None

    def _reached(
        self, name: str, follows: Callable[[onnx.NodeProto, int], bool]
    ) -> Iterator[tuple[onnx.NodeProto, int]]:
        """Yield the readers of a value, and the readers of their results as far as a rule follows them."""
        seen, queue = {name}, [name]
        for value in queue:
            for node, slot in self._readers[value]:
                yield node, slot
                if follows(node, slot):
                    new = [output for output in node.output if output and output not in seen]
                    seen.update(new)
                    queue += new

    def _require_blocks(self) -> None:
        """Check that the packed weights of products have as many blocks as their attributes say.

        Raises:
            BrokenModel: They have not.
        """
        for node in self._graph.node:
            attributes = attributes_of(node)
            if not {"K", "N", "bits", "block_size"} <= attributes.keys() or len(node.input) < 2:
                continue
            rows, columns, bits, block = (int(attributes[key]) for key in ("K", "N", "bits", "block_size"))
            weights = self._shapes.get(node.input[1])
            elements = columns * -(-rows // block) * (block * bits // 8) if block > 0 else 0
            count = 1
            for size in weights or ():
                count *= size
            if weights is not None and count != elements:
                raise BrokenModel(
                    f"{self._name}: weights '{node.input[1]}' of {node.op_type} '{label_of(node)}' are "
                    f"{list(weights)}, which is not {columns} columns of {rows} in blocks of {block} ({bits} bits)",
                    remedy="quantise the model again with a block size that its tool supports",
                )


def _angles(node: onnx.NodeProto) -> tuple[int, ...]:
    """Return the slot of a table of angles, with a row per position."""
    slots = {_GROUPED: 7, "RotaryEmbedding": 2 if node.domain else 1}
    slot = slots.get(node.op_type, len(node.input))
    return (slot,) if slot < len(node.input) else ()


def _keeps(node: onnx.NodeProto, slot: int) -> bool:
    """Return True if an operator passes the elements of an operand on."""
    row = operator_of(node)
    moves = row.kind & (Kind.MOVE | Kind.VIEW) and (row.data is None or slot in row.data)
    return bool(moves) or bool(slot == 0 and row.traits & (Trait.PASSES | Trait.CASTS))


def _turns(node: onnx.NodeProto, slot: int) -> bool:
    """Return True if an operator may be on the way from positions to the angles of a rotation."""
    return _keeps(node, slot) or bool(operator_of(node).kind & (Kind.ELEMENTWISE | Kind.PRODUCT))


def _computes(node: onnx.NodeProto, slot: int) -> bool:
    """Return True if an operator may be on the way from a mask to scores."""
    kinds = Kind.ELEMENTWISE | Kind.REDUCTION | Kind.SCAN | Kind.MEASURE
    return _keeps(node, slot) or bool(operator_of(node).kind & kinds)


def _masks(node: onnx.NodeProto, slot: int) -> bool:
    """Return True if an operand of an operator is scores, a mask, or a number of positions."""
    row = operator_of(node)
    words = {operators.MASK, operators.LAST, operators.TOTAL}
    return bool(row.kind & Kind.SOFTMAX and slot == 0) or dict(row.roles).get(slot) in words
