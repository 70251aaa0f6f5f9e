"""The execution plans that cuDNN offers for an operation graph.

A plan is an engine with its knobs. The heuristics of mode A and B rank what they expect to be fast, ``FALLBACK`` adds
engines that support much and promise nothing. A plan's numerical notes say whether it uses Tensor Cores, its name does
not: of float32 tensors such a plan multiplies in TF32.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....errors import DlbricksError
from .lowering import lower
from .operations import OperationGraph

__all__ = [
    "DESELECTED",
    "MODES",
    "NOTES",
    "NOT_BUILT",
    "RUNTIME_COMPILATION",
    "UNSUPPORTED",
    "Offer",
    "Plan",
    "engine_notes",
    "offered",
    "planned",
    "reason_of",
]

MODES = ("A", "B", "FALLBACK")
"""The library's heuristics, as Benanza's "best against first suggestion" needs them: in order of trust."""

NOTES = (
    "TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC", "FFT", "WINOGRAD",
)  # fmt: skip
"""Numerical notes that are asked for."""

RUNTIME_COMPILATION = "RUNTIME_COMPILATION"
"""The behaviour note of an engine that compiles its kernel when the plan is built."""
NOT_BUILT = "compiled when it is built, which needs the driver of a GPU"
_USUAL = frozenset({"TENSOR_CORE"})
"""Notes that most engines have."""
UNSUPPORTED = "cuDNN: no engine supports this graph"
DESELECTED = "Deselecting execution plan"
"""What the library says of a plan that was left out for one of its notes."""
_DECLINED = "the backend declined:"
_NONE = ("No valid engine configs", "CUDNN_STATUS_NOT_SUPPORTED")
"""What the library says of a graph that none of its engines can run."""
_DEVICE = "cuda_get_device"
"""What it calls where a description of the device is not enough."""
_QUOTED = re.compile(r"\{.*", re.DOTALL)
_REASON_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Plan:
    """An engine and its knobs.

    Attributes:
        tag: The library's name of both.
        engine: Number of the engine, for this graph and version of the library.
        knobs: Name and value of each, sorted.
        modes: Heuristics that offer it.
        rank: Place in the list of the first of these, from 0: mode A's 0 is what the library suggests first.
        notes: Numerical notes that hold for it.
        behavior: Behaviour notes.
        workspace_bytes: Memory that it needs beside its tensors; None where it cannot be built.
        reason: Why it cannot be built; empty where it can.
    """

    tag: str
    engine: int
    knobs: tuple[tuple[str, int], ...]
    modes: tuple[str, ...]
    rank: int
    notes: tuple[str, ...] = ()
    behavior: tuple[str, ...] = ()
    workspace_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """All plans for one brick in one precision and layout.

    Attributes:
        operations: Operations of the graph, in order.
        plans: Those of mode A first, in the library's order; each once.
        reason: Why there are none; empty where there are.
        planning_ns: Time that all of it took: graphs, heuristics, and building every plan.
    """

    operations: tuple[str, ...]
    plans: tuple[Plan, ...] = ()
    reason: str = ""
    planning_ns: int = 0


def offered(graph: OperationGraph, *, dtype: str, channels_last: bool, **target: Any) -> Offer:
    """Ask for every plan of every heuristic, and build each.

    Args:
        graph: A brick, with as few dimensions as it has (``dimensions.merged``).
        dtype: Precision of the tensors (``lowering.DTYPES``).
        channels_last: Layout of images.
        **target: As ``lowering.lower``.

    Raises:
        BackendError: The library infers other dimensions than the translation has.

    Returns:
        What is offered. A graph that the library does not support has no plans, and the reason; a plan that cannot be
        built keeps its row, with the reason.
    """
    begun = time.perf_counter_ns()
    how = {"dtype": dtype, "channels_last": channels_last, **target}
    found: dict[str, Plan] = {}
    reasons = []
    for mode in MODES:
        try:
            built = planned(graph, [mode], **how)
        except DlbricksError:
            raise  # it is the translation that is wrong, not the library that has nothing
        except Exception as error:  # noqa: BLE001  # the library's exceptions share no base class; the reason is kept
            reasons.append(reason_of(error))
            continue
        for rank in range(built.get_execution_plan_count()):
            tag = built.get_plan_name_at_index(rank)
            known = found.get(tag)
            found[tag] = (
                _examined(built, rank, tag, mode) if known is None else replace(known, modes=(*known.modes, mode))
            )
    engines = engine_notes(graph, {plan.engine: tag for tag, plan in found.items()}, **how)
    plans = tuple(replace(plan, notes=engines[plan.engine]) for plan in found.values())
    kinds = tuple(operation.kind for operation in graph.operations)
    reason = "" if found else (reasons or ["no heuristic offers a plan"])[0]
    return Offer(kinds, plans, reason, time.perf_counter_ns() - begun)


def planned(graph: OperationGraph, modes: Sequence[str], **how: Any) -> Any:
    """The library's graph with the plans of some heuristics, none of them built."""
    import cudnn

    built = lower(graph, **how)
    built.build_operation_graph()
    built.create_execution_plans([getattr(cudnn.heur_mode, mode) for mode in modes])
    return built


def _examined(built: Any, index: int, tag: str, mode: str) -> Plan:
    """One plan of a graph, built where that can be done here."""
    engine, knobs = built.get_engine_and_knobs_at_index(index)
    named = tuple(sorted((knob.name, int(value)) for knob, value in knobs.items()))
    behavior = tuple(sorted(note.name for note in built.get_behavior_notes_for_plan_at_index(index)))
    plan = Plan(tag, int(engine), named, (mode,), index, behavior=behavior)
    if RUNTIME_COMPILATION in behavior:
        return replace(plan, reason=NOT_BUILT)
    try:
        built.build_plan_at_index(index)
        return replace(plan, workspace_bytes=int(built.get_workspace_size_plan_at_index(index)))
    except Exception as error:  # noqa: BLE001  # as above: an engine that refuses is a row, not the end
        return replace(plan, reason=reason_of(error))


def engine_notes(graph: OperationGraph, examples: Mapping[int, str], **how: Any) -> dict[int, tuple[str, ...]]:
    """Numerical notes of each engine; they are the engine's, whatever its knobs.

    The Python frontend does not report them; but it can leave out the plans that have a note, or that lack one, and
    refuses to build these. A plan that it does not refuse is built, which takes a second where its kernel is compiled:
    so it is asked for what is likely to be refused.

    Args:
        graph: A brick.
        examples: Engine to the tag of one of its plans.
        **how: As ``offered``.
    """
    import cudnn

    found: dict[int, tuple[str, ...]] = dict.fromkeys(examples, ())
    for note in NOTES if examples else ():
        built = planned(graph, MODES, **how)
        chosen = [getattr(cudnn.numerical_note, note)]
        refuses_with = note in _USUAL
        if refuses_with:
            built.deselect_numeric_notes(chosen)
        else:
            built.select_numeric_notes(chosen)
        places = {built.get_plan_name_at_index(at): at for at in range(built.get_execution_plan_count())}
        for engine, tag in examples.items():
            if _refused(built, places[tag]) == refuses_with:
                found[engine] = (*found[engine], note)
    return found


def _refused(built: Any, index: int) -> bool:
    """Whether a plan was left out."""
    try:
        built.build_plan_at_index(index)
    except Exception as error:  # noqa: BLE001  # as above; any other failure comes after the question was answered
        return DESELECTED in str(error)
    return False


def reason_of(error: Exception) -> str:
    """One line of an exception of the library, without the plans that it quotes."""
    text = " ".join(str(error).split())
    found = _QUOTED.sub("", text.rpartition(_DECLINED)[2]).rstrip(" :_")[:_REASON_LENGTH]
    if any(words in found for words in _NONE):
        return UNSUPPORTED
    if _DEVICE in found:
        return "cuDNN: this graph is not planned without a device"
    return f"cuDNN: {found or type(error).__name__}"
