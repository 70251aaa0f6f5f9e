"""A model beside its roofline: how fast it could be at most, and how far it is from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..bricks.sequence import LayerSequence
from ..db.values import NATIVE
from .composition.composition import Quotient, critical_path, sequential
from .coverage import cannot_be_bricks
from .decomposition import Decomposition, state_of
from .remedies import Remedies
from .result import Estimate
from .roofline.roofline import roofline
from .stored import Stored

__all__ = ["beside_roofline"]


def beside_roofline(  # noqa: PLR0917  (what ``estimate`` has at hand)
    estimate: Estimate,
    model: Decomposition,
    parts: Sequence[LayerSequence],
    quotient: Quotient,
    stored: Stored,
    remedies: Remedies,
) -> Estimate:
    """Add the roofline to an estimate.

    Args:
        estimate: So far, its sequential sum included.
        model: As decomposed.
        parts: The sequences that it is composed of.
        quotient: Their quotient DAG.
        stored: What is known, the ceilings included.
        remedies: What would measure the ceilings.
    """
    choice, state = stored.choice, state_of(model, stored.choice)
    if choice is None:
        return replace(estimate, roofline_reason="nothing is stored, and so nothing of the machine is known")
    bricks, ceilings = stored.bricks_in(state), stored.ceilings
    found = roofline(
        model.graph, parts, bricks.latest, ceilings, state=state, system=choice.system, repeated=bricks.repeated
    )
    estimate = replace(estimate, roofline=found)
    bounds = found.bounds_ms(parts)
    if bounds is None:
        single = ceilings.known  # what is not computed in the precision is in float32, and that is missing
        missing = "the bandwidth" if ceilings.compute is not None and not single else "the rate of arithmetic"
        dtype = NATIVE if single else ceilings.dtype
        reason = f"{missing} of this system is not measured with these threads in {dtype}"
        return replace(estimate, roofline_reason=reason, roofline_remedy=remedies.ceilings())
    if cannot_be_bricks(model.graph):
        return replace(estimate, roofline_reason="a layer cannot be a brick, and its work is not known")
    whole = sequential(bounds)
    return replace(
        estimate,
        roofline_ms=whole,
        roofline_critical_path_ms=critical_path(quotient, bounds).latency,
        roofline_headroom=estimate.sequential_ms / whole if estimate.sequential_ms is not None and whole else None,
    )
