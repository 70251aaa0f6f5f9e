"""What analyses of patterns have in common: where a rewrite applies, and what of it the runtime really executes.

A pattern of the model's own graph counts where operators that came from it alone are executed: what the runtime fuses,
merges or removes by itself is no finding. All places that one rewrite changes are one finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from ....bricks.layer import Role
from ....constructor.remedies import Task, TaskKind
from ....generator.rewriting.moments import REDUCING
from ....generator.rewriting.movement import MOVING
from ....generator.rewriting.pattern import Match, View
from ....generator.rewriting.rewrite import matches
from ...shell import shell_command
from ..finding import Analysis, Finding, Idea, Remedy, finding_of, spent_by
from ..subject import AnalysedModel, Node, Spent

Priced = Callable[[AnalysedModel, Match, list[Node]], list[Node] | Spent | None]
"""What of the executed operators of a match would go: these, or so much of them; None where that is not known."""


def nodes_of(*types: str) -> Priced:
    """Return the pricing by which executed operators of these types would go; without types all would."""

    def priced(_subject: AnalysedModel, _match: Match, nodes: list[Node]) -> list[Node]:
        return [node for node in nodes if not types or node.layer.op_type in types]

    return priced


# Fusions that a runtime does not make, since something else reads a value in the midst of them.
#
# * A batch normalisation with constant statistics is folded into the weights of the convolution before it, which then
#   applies what follows too (Jacob et al., CVPR 2018, section 3.2). Where another layer reads the convolution, or the
#   model hands it out, the normalisation runs by itself. Saving: what it takes, with what it is fused with and the
#   activation behind it.
# * A GELU or layer normalisation in whose midst a value is read. Saving: as ``activations`` and ``normalisations`` say.
#
# No rewrite is tried: what is read elsewhere would still have to be made.


_SHOWN = 3


def of_rewrite(
    name: str,
    rewrite: str,
    *,
    title: str,
    text: str,
    priced: Priced,
    fused: Collection[str] = (),
    why: Callable[[Match], str] | None = None,
) -> Analysis:
    """The analysis that asks what a rewrite would save.

    Args:
        name: What its findings are called.
        rewrite: Name of the rewrite.
        title: What is missed; ``{}`` is the number of places.
        text: What to do.
        priced: What would go.
        fused: Operators that the runtime does it with: a place where one of them is executed is none.
        why: Why the runtime does not do it by itself. Where something else reads a value in the midst, a rewrite could
            not leave out what makes that either: that is a finding of ``broken_fusion``.
    """

    def going(subject: AnalysedModel) -> Iterable[tuple[Match, list[Node], list[Node] | Spent | None]]:
        """The places where something would go, with what is executed there and what of it goes."""
        for match, nodes in executed(subject, rewrite, fused):
            gone = priced(subject, match, nodes)
            if gone != [] and not (why and match.broken_by):
                yield match, nodes, gone

    def run(subject: AnalysedModel) -> Iterable[Finding]:
        places = []
        for match, nodes, gone in going(subject):
            current = subject.spent(nodes)
            saving = subject.spent(gone) if isinstance(gone, list) else gone
            if current is not None and saving is not None:
                places.append((match, nodes, current, saving))
        if not places:
            return
        distinct = {id(node): node for _, nodes, _, _ in places for node in nodes}
        current = subject.spent(list(distinct.values()))
        assert current is not None  # noqa: S101  # each of them is measured
        evidence = [f"'{match.value}': {spent_by(nodes)}" for match, nodes, _, _ in places[:_SHOWN]]
        evidence += [f"and {len(places) - _SHOWN} places more like these"] if len(places) > _SHOWN else []
        evidence += list(dict.fromkeys(why(match) for match, *_ in places if why is not None))[:_SHOWN]
        idea = Idea(
            name,
            title.format(len(places)),
            remedy_of(subject, rewrite, text, len(places)),
            tuple(evidence),
            subject.names(index for match, *_ in places for index in match.layers),
        )
        yield finding_of(
            subject,
            idea,
            current,
            # Places that are alike err together: their intervals are added up.
            Spent(sum(spent.ms for *_, spent in places), sum(spent.half_ms for *_, spent in places), ()),
        )

    def ideas(subject: AnalysedModel) -> Iterable[Idea]:
        found = [match for match, *_ in going(subject)]
        if found:
            layers = subject.names(index for match in found for index in match.layers)
            remedy = remedy_of(subject, rewrite, text, len(found))
            yield Idea(name, title.format(len(found)), remedy, layers=layers)

    return Analysis(name, run=run, ideas=ideas)


def executed(subject: AnalysedModel, rewrite: str, fused: Collection[str] = ()) -> list[tuple[Match, list[Node]]]:
    """The places where a rewrite applies, with the operators that are executed there and nowhere else.

    An operator that came from the layers of several places (a product and an activation that are fused) goes where the
    first of them is: the rewrite changes them all.
    """
    places = matches(rewrite, subject.graph, subject.source)
    found, taken = [], set[int]()
    everywhere = subject.of({index for match in places for index in match.layers})
    for match in places:
        nodes = [node for node in everywhere if node.origins & set(match.layers) and id(node) not in taken]
        taken |= {id(node) for node in nodes}
        if nodes and not any(node.layer.op_type in fused for node in subject.touching(match.layers)):
            found.append((match, nodes))
    return found


def remedy_of(subject: AnalysedModel, rewrite: str, text: str, places: int) -> Remedy:
    """A rewrite as what to do.

    Args:
        subject: The model.
        rewrite: Name of the rewrite.
        text: One sentence for people.
        places: At how many places it applies.
    """
    return Remedy(
        action="rewrite",
        text=text,
        settings={"rewrite": rewrite, "places": str(places)},
        code=shell_command(Task(TaskKind.PROOFS, subject.source)),
    )


# An activation function that runs operator by operator: GELU in its exact and tanh forms, and its sigmoid form.
#
# Saving: what all its executed operators take but the longest, which holds the function itself (erf, tanh): one fused
# operator reads and writes as much as that one. Fusion as in Benanza (IPDPS 2020), section III.D, Q5: the fused
# operator in place of the operators of its pattern. Where these are reached and left through changes of the layout
# alone, the changes go as well: the fused operator runs in the runtime's own layout.


ACTIVATIONS_FUSED = ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")


def gone_activations(subject: AnalysedModel, _match: Match, nodes: list[Node]) -> list[Node]:
    """All executed operators but the longest, and the changes of layout around them."""
    return [*sorted(nodes, key=lambda node: node.ms or 0.0)[:-1], *_layout_changes(subject, nodes)]


def _layout_changes(subject: AnalysedModel, nodes: list[Node]) -> list[Node]:
    """The changes of layout before and behind some operators; none where there is another way in or out."""
    graph = subject.model.graph
    places = dict(zip(graph.live, subject.nodes, strict=True))
    inside = {node.layer.index for node in nodes}
    read = {operand.value for node in nodes for operand in node.layer.operands if operand.role is Role.ACTIVATION}
    given = {value for node in nodes for value in node.layer.outputs if value}
    before = {value: graph.producer(value) for value in read - given}
    behind = {reader for value in given for reader in graph.consumers(value)} - inside
    shared = [reader for value in before for reader in graph.consumers(value) if reader not in inside]
    wanted = {*given, *before, *(value for index in behind for value in graph.layers[index].outputs)}
    around = [*before.values(), *behind]
    if not before or not behind or shared or not wanted.isdisjoint(graph.outputs):
        return []
    changes = [places[index] for index in around if index is not None and index in places]
    only = len(changes) == len(around) and all(subject.layouts.is_change(node.layer, node.origins) for node in changes)
    return changes if only else []


def why_unfused(_match: Match) -> str:
    """Why the runtime does not fuse a pattern by itself."""
    return "nothing else reads its interior values: the runtime does not fuse this order of its factors, or this form"


ACTIVATIONS = of_rewrite(
    "unfused_activation",
    "activations",
    title="{} activation functions (GELU) run operator by operator",
    text="Write the function as one operator (Gelu), which runs in one pass over the data.",
    priced=gone_activations,
    fused=ACTIVATIONS_FUSED,
    why=why_unfused,
)


# Attention that runs operator by operator, where ONNX Runtime has it as one.
#
# Saving: what its executed operators take that only scale and mask the scores, which the fused operator does on the
# way. Both products, the softmax and the transpositions stay, as it has its own. Fusion as in Benanza (IPDPS 2020),
# section III.D, Q5. Where the runtime has put scale and mask into other operators, nothing is predicted, and it is
# only tried.


_FUSED = ("Attention", "DecoderMaskedMultiHeadAttention", "GroupQueryAttention", "MultiHeadAttention")

_EVERYWHERE = of_rewrite(
    "unfused_attention",
    "attention",
    title="{} attentions run operator by operator",
    text="Write it as one MultiHeadAttention of ONNX Runtime.",
    priced=nodes_of("Add", "Div", "Mul"),
    fused=_FUSED,
)


def _applies(subject: AnalysedModel) -> bool:
    return subject.choice is None or subject.choice.stack.backend == "onnxruntime"


def _attention_run(subject: AnalysedModel) -> Iterable[Finding]:
    return _EVERYWHERE.run(subject) if _applies(subject) else ()


def _attention_ideas(subject: AnalysedModel) -> Iterable[Idea]:
    return _EVERYWHERE.ideas(subject) if _applies(subject) else ()


ATTENTION = replace(_EVERYWHERE, run=_attention_run, ideas=_attention_ideas)


# A normalisation of layers or of single channels that runs operator by operator.
#
# Saving: what all its executed operators take but two, the longest that reduces and the longest that does not: one
# fused operator passes over the data twice, once for the moments and once to normalise. Fusion as in Benanza, Q5.


NORMALISATIONS_FUSED = (
    "LayerNormalization",
    "SkipLayerNormalization",
    "EmbedLayerNormalization",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "InstanceNormalization",
)


def gone_normalisations(_subject: AnalysedModel, _match: Match, nodes: list[Node]) -> list[Node]:
    """All executed operators but the longest that reduces and the longest that does not."""
    ordered = sorted(nodes, key=lambda node: -(node.ms or 0.0))
    reducing = [node for node in ordered if node.layer.op_type in REDUCING]
    others = [node for node in ordered if node.layer.op_type not in REDUCING]
    return [*reducing[1:], *others[1:]]


NORMALISATIONS = of_rewrite(
    "unfused_normalisation",
    "normalisations",
    title="{} normalisations run operator by operator",
    text="Write it as one LayerNormalization (InstanceNormalization for rows and columns of each channel).",
    priced=gone_normalisations,
    fused=NORMALISATIONS_FUSED,
    why=why_unfused,
)


_APPLIED = ("Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
"""Activations that a convolution applies to what it makes."""
_PATTERNS = (
    ("activations", ACTIVATIONS_FUSED, gone_activations),
    ("normalisations", NORMALISATIONS_FUSED, gone_normalisations),
)


@dataclass(frozen=True, slots=True)
class _Place:
    """A fusion that is not made.

    Attributes:
        layers: The layers concerned.
        nodes: What is executed of them.
        gone: What of that would go.
        readers: What reads a value in the midst, by name.
    """

    layers: tuple[int, ...]
    nodes: list[Node]
    gone: list[Node]
    readers: tuple[str, ...]


def _broken_fusion_run(subject: AnalysedModel) -> Iterable[Finding]:
    places = [place for place in (*_unfolded(subject), *_unfused(subject)) if place.gone]
    current = subject.spent(list(chain.from_iterable(place.nodes for place in places)))
    saving = subject.spent(list(chain.from_iterable(place.gone for place in places)))
    if current is None or saving is None:
        return
    evidence = [
        f"{', '.join(place.readers[:3])} breaks the fusion of {spent_by(place.nodes)}" for place in places[:_SHOWN]
    ]
    evidence += [f"and {len(places) - _SHOWN} places more like these"] if len(places) > _SHOWN else []
    idea = Idea(
        "broken_fusion",
        f"{len(places)} fusions are not made, since a value in their midst is read elsewhere",
        Remedy(
            "manual",
            "Do not hand out the value, and compute what is read of it elsewhere from what goes in or comes out: of a "
            "normalised value, scale and shift of each channel can be undone.",
        ),
        tuple(evidence),
        subject.names(index for place in places for index in place.layers),
    )
    yield finding_of(subject, idea, current, saving)


def _unfolded(subject: AnalysedModel) -> Iterator[_Place]:
    """Batch normalisations behind a convolution that something else reads."""
    view = View(subject.graph)
    for normalisation in view.live("BatchNormalization"):
        convolution = view.maker(normalisation.node.input[0], "Conv")
        if convolution is None or any(view.weight(normalisation, slot) is None for slot in (1, 2, 3, 4)):
            continue
        made = normalisation.outputs[0]
        readers = view.broken_by({convolution.index, normalisation.index}, made)
        nodes = [node for node in subject.touching([normalisation.index]) if convolution.index not in node.origins]
        if not readers or not nodes:
            continue
        behind = view.readers(made)
        alone = len(behind) == 1 and behind[0].op_type in _APPLIED and not view.is_output(made)
        layers = (normalisation.index, *((behind[0].index,) if alone else ()))
        nodes += [node for node in subject.of(layers[1:]) if node not in nodes]
        yield _Place(layers, nodes, nodes, readers)


def _unfused(subject: AnalysedModel) -> Iterator[_Place]:
    """Activations and layer normalisations in whose midst a value is read."""
    for rewrite, fused, gone in _PATTERNS:
        for match, nodes in executed(subject, rewrite, fused):
            if match.broken_by:
                yield _Place(match.layers, nodes, gone(subject, match, nodes), match.broken_by)


BROKEN_FUSION = Analysis("broken_fusion", run=_broken_fusion_run)


# Conversions of element types there and back, without any loss on the way.
#
# Saving: what the executed conversions take. Only pairs whose middle type holds every value count: all others change
# numbers, and may be meant (``roundings``).


CONVERSIONS = of_rewrite(
    "conversions",
    "casts",
    title="{} pairs of conversions that undo each other",
    text="Leave both conversions out.",
    priced=nodes_of("Cast"),
)


# Work that is done twice: layers that compute the same of the same.
#
# Saving: what the executed operators of every repetition take. Common subexpressions, by value numbering (Alpern,
# Wegman and Zadeck 1988); large weights are compared by what they hold, which runtimes do not.


DUPLICATES = of_rewrite(
    "duplicates",
    "duplicates",
    title="{} layers repeat what another one has computed",
    text="Compute it once, and let all readers read that.",
    priced=nodes_of(),
)


# Values that are written out again and again for operators that broadcast anyway.
#
# Saving: what the executed Expand takes. Its readers must all broadcast, and come to the same shape without it.


EXPANSIONS = of_rewrite(
    "needless_expansions",
    "expansions",
    title="{} values are repeated for operators that broadcast",
    text="Leave Expand out: its readers broadcast by themselves.",
    priced=nodes_of("Expand"),
)


# Parts that compute in float64 between parts that do not.
#
# Saving: conversions go, and of all else half: float64 moves twice the bytes, and a vector register holds half the
# numbers. That is a prediction from the sizes of types; what a runtime has no float32 kernel for is seen by trying.


def _float64_gone(subject: AnalysedModel, _match: Match, nodes: list[Node]) -> Spent | None:
    casts = [node for node in nodes if node.layer.op_type == "Cast"]
    rest = [node for node in nodes if node.layer.op_type != "Cast"]
    whole, half = subject.spent(casts), subject.spent(rest)
    if (casts and whole is None) or (rest and half is None):
        return None
    found = [(1.0, spent) for spent in (whole,) if spent] + [(0.5, spent) for spent in (half,) if spent]
    return Spent(
        sum(share * spent.ms for share, spent in found), sum(share * spent.half_ms for share, spent in found), ()
    )


FLOAT64 = of_rewrite(
    "float64",
    "islands",
    title="{} parts of the model compute in float64",
    text="Compute in float32, where float64 is not needed for the result.",
    priced=_float64_gone,
)


# Operators that the runtime put in: reorders into and out of a layout of its own, transpositions, conversions.
#
# They serve the kernels around them, so that their time is the most that another layout could save, and no finding
# until it was tried.


_WORTH = 0.01


def _inserted_ideas(subject: AnalysedModel) -> Iterable[Idea]:
    nodes = [node for node in subject.nodes if not node.origins]
    spent, latency = subject.spent(nodes), subject.latency_ms
    if spent is None or not latency or spent.ms / latency < _WORTH or subject.choice is None:
        return
    level = dict(subject.choice.stack.options).get("optimization")
    if subject.layouts.changes.isdisjoint(node.layer.kind for node in nodes) or level != "all":
        return
    counts = ", ".join(f"{count} x {name}" for name, count in Counter(node.layer.op_type for node in nodes).items())
    yield Idea(
        "inserted_operators",
        "the runtime changes layouts on the way",
        Remedy(
            "session_option",
            "Keep images in the model's own layout.",
            {"optimization": "extended"},
            "options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED",
        ),
        (f"it put in {counts}, which take {spent.ms:.3g} ms",),
    )


INSERTED = Analysis("inserted_operators", ideas=_inserted_ideas)


# Local response normalisation, whose power is computed element by element.
#
# Saving: what it takes, less what stands in its place: a convolution of 1 x 1 over all channels, at the rate at which
# this model's own operators multiply and accumulate, and squares, roots and a quotient that read and write its data 12
# times, at the rate at which they move data.


_PASSES = 12


def _local_response_gone(subject: AnalysedModel, match: Match, nodes: list[Node]) -> Spent | None:
    current, made = subject.spent(nodes), subject.graph.types.get(match.value)
    if current is None or made is None or subject.bytes_per_ms is None or subject.macs_per_ms is None:
        return None
    left = _PASSES * made.nbytes / subject.bytes_per_ms + made.elements * made.shape[1] / subject.macs_per_ms
    return Spent(max(0.0, current.ms - left), current.half_ms, ())


LOCAL_RESPONSE = of_rewrite(
    "local_response",
    "local_response",
    title="{} local response normalisations compute a power for every element",
    text="Write it as squares, a convolution of 1 x 1 that sums over channels, and square roots.",
    priced=_local_response_gone,
)


# A product with one-hot rows, computed or constant, which picks rows, columns or channels.
#
# Saving: what the executed operators take, less the rows that must be read and written in any case, at the rate at
# which this model's own operators move data.


def _one_hot_gone(subject: AnalysedModel, match: Match, nodes: list[Node]) -> Spent | None:
    current, made = subject.spent(nodes), subject.graph.types.get(match.value)
    if current is None or made is None or subject.bytes_per_ms is None:
        return None
    left = min(current.ms, 2 * made.nbytes / subject.bytes_per_ms)
    return Spent(current.ms - left, current.half_ms, ())


ONE_HOT = of_rewrite(
    "one_hot",
    "one_hot",
    title="{} products with one-hot rows, where Gather would pick rows",
    text="Write the lookup as Gather; an index out of range is then an error, and not a row of zeros.",
    priced=_one_hot_gone,
)


# Conversions to a narrower floating-point type and back, with no arithmetic in between.
#
# Saving: what the executed conversions take. They round, so that no runtime may leave them out; where they are what a
# conversion of the model left over, nothing needs the rounding. Where it is meant, as in training for that type, the
# finding is to be left alone: that is for the model's owner to judge.


ROUNDINGS = of_rewrite(
    "roundings",
    "roundings",
    title="{} values are converted to a narrower type and back, and nothing is computed in it",
    text="Leave both conversions out, where the rounding is not meant: the outputs become more exact.",
    priced=nodes_of("Cast"),
)


# Data that is moved there and back, by transpositions or whatever else moves it, or twice where once would do.
#
# Saving: what the executed moves of a chain take, all of it where they cancel, the shorter of both where one is left.
# As in Ivanov et al. 2021, "Data movement is all you need" (MLSys), which counts what moves data and computes
# nothing. ONNX Runtime removes most pairs by itself; those are not executed, and are no findings.


def _transposes_gone(_subject: AnalysedModel, match: Match, nodes: list[Node]) -> list[Node] | None:
    moved = sorted((node for node in nodes if node.layer.op_type in MOVING), key=lambda node: node.ms or 0.0)
    return moved if match.form == "cancel" else moved[: len(moved) - 1]


TRANSPOSES = of_rewrite(
    "transposes",
    "transposes",
    title="data is moved there and back, or twice where once would do, at {} places",
    text="Leave out what moves the data (Transpose, Reshape and the like), and work on it as it lies.",
    priced=_transposes_gone,
)


# Constants that are computed at every inference.
#
# Saving: what is executed of layers that read nothing but constants, and the batch normalisations behind convolutions
# whose filters are among them: a runtime folds a normalisation only into a filter that it knows. Runtimes compute
# constants when they load a model, but for those that they do not know to be constant, or may not fold. A filter that
# is not known is not laid out ahead either; what that costs is seen by trying.


_TITLE = "constants are computed at every inference, at {} places"
_TEXT = "Store what is computed as an initializer (constant folding when the model is exported)."


def _unfolded_run(subject: AnalysedModel) -> Iterable[Finding]:
    view = View(subject.graph)
    folded = {layer.index for layer in subject.graph.layers if view.is_constant(layer)}
    nodes = [node for node in subject.of(folded) if node.ms is not None]
    behind = _unfoldable(subject, set(chain.from_iterable(node.origins for node in nodes)))
    spent = subject.spent([*nodes, *behind])
    if spent is None:
        return
    nodes.sort(key=lambda node: -(node.ms or 0.0))
    evidence = [f"all that they read is constant: {spent_by(nodes[:5])}"]
    if behind:
        evidence.append(f"normalisations of convolutions whose filters they make: {spent_by(behind[:5])}")
    (rewritten,) = [*_REWRITTEN.ideas(subject), None][:1]
    idea = Idea(
        "unfolded_constants",
        f"{len(nodes)} operators compute constants at every inference",
        Remedy("manual", _TEXT) if rewritten is None else rewritten.remedy,
        tuple(evidence),
        subject.names(index for node in nodes for index in node.origins),
    )
    yield finding_of(subject, idea, spent, spent)


def _unfoldable(subject: AnalysedModel, computed: Collection[int]) -> list[Node]:
    """Executed normalisations behind convolutions with a filter that some layers compute."""
    view, found = View(subject.graph), list[Node]()
    for normalisation in view.live("BatchNormalization"):
        convolution = view.maker(normalisation.node.input[0], "Conv")
        if convolution is not None and subject.graph.producer(convolution.node.input[1]) in computed:
            touching = subject.touching([normalisation.index])
            found += [node for node in touching if convolution.index not in node.origins]
    return found


_REWRITTEN = of_rewrite("unfolded_constants", "constants", title=_TITLE, text=_TEXT, priced=nodes_of())
UNFOLDED = Analysis("unfolded_constants", run=_unfolded_run, ideas=_REWRITTEN.ideas)
