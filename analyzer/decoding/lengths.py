"""The models of a decoder's prompt and step at several lengths: one file for both, or one for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...bricks.decoder import Decoder, read_decoder
from ...errors import UnboundDimension, UsageError
from ...models import ModelSource
from ...models.dimensions import DimensionKind
from ...models.source import find_models, require_inputs
from ...models.user_inputs import NOTHING_GIVEN, UserInputs, input_types

_LENGTH_PARTS = ("_prompt", "_step")
"""Ends of names in the zoo: of the model that fills a cache, and of the model that extends it."""


@dataclass(frozen=True, slots=True)
class Side:
    """The prompt or the step of a decoder, at any length.

    Attributes:
        source: The model.
        dimension: The dimension that varies: one of the model, or ``prompt`` or ``context`` of a file with both.
        seen: Positions that a step sees beyond its length: its own token.
        decoder: The inputs of a file with both; None for a separate model.
        batch: Sequences at once.
    """

    source: ModelSource
    dimension: str
    seen: int
    decoder: Decoder | None = None
    batch: int = 1

    def at(self, lengths: Iterable[int]) -> list[ModelSource]:
        """Return the model at each length, with ``@dimension=length`` at the end of its name."""
        if self.decoder is None:
            return at_lengths(self.source, self.dimension, lengths)
        sources = []
        for length in lengths:
            new, past = (1, length) if self.seen else (length, 0)
            dims, control = self.decoder.dims(batch=self.batch, new=new, past=past), self.decoder.control(past)
            name = f"{self.source.name}@{self.dimension}={length}"
            # A step at context 0 is a prompt of one token: the branch of a merged file that reads no cache.
            sizes = tuple(dims.items())
            sources.append(replace(self.source, name=name, dims=sizes, chosen=frozenset(dims), control=control))
        return sources


def at_lengths(source: ModelSource, dimension: str, lengths: Iterable[int]) -> list[ModelSource]:
    """Return a model at each length of one dimension, with ``@dimension=length`` at the end of its name."""
    others = tuple((name, size) for name, size in source.dims if name != dimension)
    chosen = source.chosen | {dimension}
    return [
        replace(source, name=f"{source.name}@{dimension}={length}", dims=(*others, (dimension, length)), chosen=chosen)
        for length in lengths
    ]


def decoder_models(
    models: Sequence[str], dims: Mapping[str, int] | None = None, given: UserInputs = NOTHING_GIVEN
) -> tuple[ModelSource, ModelSource | None]:
    """Return the models of a prompt and of a step; the step is None for a file that is both.

    Args:
        models: One file, two files or names, or the common beginning of two zoo names.
        dims: Values of the dimensions that do not vary, for example an encoder's length.
        given: The user's own values of inputs.

    Raises:
        UsageError: There are more names, a single name without a pair in the zoo, or an argument with several models.
    """
    if len(models) == 1:
        found = find_models(models, dims=dims)
        if len(found) == 1 and found[0].path is not None and found[0].problem is None:
            return replace(found[0], given=given), None
    return pair(models, dims, given)


def pair(
    models: Sequence[str], dims: Mapping[str, int] | None = None, given: UserInputs = NOTHING_GIVEN
) -> tuple[ModelSource, ModelSource]:
    """Return the models of prompt and step, from two names, or from the common beginning of two zoo names.

    Args:
        models: Files or names.
        dims: Values of the dimensions that do not vary, for example an encoder's length.
        given: The user's own values of inputs.

    Raises:
        UsageError: There are more names, a single name without a pair in the zoo, or an argument with several models.
    """
    arguments = [f"{models[0]}{part}" for part in _LENGTH_PARTS] if len(models) == 1 else list(models)
    sources = find_models(arguments, dims=dims)
    problem = next((source.problem for source in sources if source.problem), None)
    if len(models) == 1 and problem is not None:
        raise UsageError(
            f"'{models[0]}' is not a decoder of the zoo, and no model file",
            remedy="give a decoder's file, or the models of the prompt and of a step; "
            "'dlbricks models list' shows names that end in _prompt and _step",
        )
    if problem is not None:
        raise problem
    if len(sources) != len(_LENGTH_PARTS):
        raise UsageError(f"{len(sources)} models are not a prompt and a step", remedy="give two models, or one name")
    prompt, step = (replace(source, given=given) for source in sources)
    return prompt, step


def sides_of(
    prompt: ModelSource,
    step: ModelSource | None,
    *,
    prompt_dimension: str | None = None,
    past_dimension: str | None = None,
    roles: Mapping[str, str] | None = None,
    batch: int | None = None,
    opened: bool = False,
) -> tuple[Side, Side]:
    """Return the prompt and the step of a decoder.

    Args:
        prompt: The model of the prompt, or a file with both.
        step: The model of a step; None for a file with both.
        prompt_dimension: Of two models: the dimension that counts tokens of a prompt; None: found.
        past_dimension: Of two models: the dimension that counts positions of the cache; None: found.
        roles: Of a file with both: role by input, for inputs that names and use do not tell.
        batch: Sequences at once; None: 1, or the batch that two models fix.
        opened: The runtime keeps the lengths of files open, as a loop does.

    Raises:
        UsageError: An input of the file is not understood, an option belongs to two models or to one, or a value is
            given for an input with a shape that follows the length.
        UnboundDimension: One of two models does not have the dimension.
        ModelError: A model cannot be read.
    """
    if step is not None:
        if roles:
            raise UsageError("--input tells roles of a file with prompt and step", remedy="leave it out")
        sources = [
            replace(source, batch=batch or source.batch, opened=opened and source.path is not None)
            for source in (prompt, step)
        ]
        filled = length_dimension(prompt, DimensionKind.SEQUENCE, prompt_dimension, "--prompt-dim")
        extended = length_dimension(step, DimensionKind.PAST, past_dimension, "--past-dim")
        sides = Side(sources[0], filled, 0, batch=batch or 1), Side(sources[1], extended, 1, batch=batch or 1)
        return _with_own_values(sides)
    if prompt.given:
        raise UsageError(
            f"own values of inputs are for the models of a prompt and of a step: '{prompt.name}' is one file, and its "
            "loop feeds every input",
            remedy="leave out --value and --data",
        )
    if prompt.path is None:
        raise UsageError(f"'{prompt.name}' is not a file with prompt and step", remedy="give the model of a step too")
    if prompt_dimension or past_dimension:
        raise UsageError(
            "--prompt-dim and --past-dim name dimensions of two models", remedy="use --input NAME=ROLE for one file"
        )
    decoder = read_decoder(prompt.path, prompt.name, roles=roles, dims=dict(prompt.dims))
    size = batch or 1
    decoder.dims(batch=size, new=1, past=1)  # the file may fix another batch
    source = replace(prompt, opened=opened)
    return Side(source, "prompt", 0, decoder, size), Side(source, "context", 1, decoder, size)


def _with_own_values(sides: tuple[Side, Side]) -> tuple[Side, Side]:
    """Return both sides, each with the values given for its inputs; refuse values that cannot fit every length."""
    options = sides[0].source.given.names()
    if not options:
        return sides
    own = [[_shapes(source) for source in side.at((1, 2))] for side in sides]
    for side, (short, long) in zip(sides, own, strict=True):
        if varying := next((name for name in options if short.get(name) != long.get(name)), None):
            raise UsageError(
                f"{options[varying]}: the shape of '{varying}' of {side.source.name} follows the length, which varies",
                remedy="leave it out; its values are seeded",
            )
    require_inputs([side.source for side in sides])
    prompt, step = (
        replace(side, source=replace(side.source, given=side.source.given.only(short)))
        for side, (short, _) in zip(sides, own, strict=True)
    )
    return prompt, step


def _shapes(source: ModelSource) -> dict[str, tuple[int, ...]]:
    graph = replace(source, given=NOTHING_GIVEN).skeleton().model.graph
    return {name: shape for name, _, shape in input_types(graph)}


def length_dimension(source: ModelSource, kind: DimensionKind, dimension: str | None, option: str) -> str:
    """Return the dimension that counts the length of a model.

    Args:
        source: The model.
        kind: Kind of the dimension: ``SEQUENCE`` or ``PAST``.
        dimension: Its name; None: found by name and place.
        option: The option that gives the name, for the error.

    Raises:
        UnboundDimension: The model does not have the dimension.
        ModelError: The model cannot be read.
    """
    kinds = source.open_dimensions()
    name = dimension or next((name for name, dimension_kind in kinds.items() if dimension_kind is kind), None)
    if name is None or name not in kinds:
        what = f"dimension '{dimension}'" if dimension else f"open dimension that counts {_COUNTED[kind]}"
        remedy = f"there are {', '.join(kinds)}: {option} NAME" if kinds else "export it with dynamic dimensions"
        raise UnboundDimension(f"model '{source.name}' has no {what}", remedy=remedy)
    return name


_COUNTED = {DimensionKind.SEQUENCE: "tokens of a prompt", DimensionKind.PAST: "positions of a cache"}
