"""Control flow: the work of bodies is not counted, unless there is none."""

from __future__ import annotations

from ...models.subgraphs import bodies
from ..cost import Cost
from .call import Call, Formula, UnknownCostError

__all__ = ["FORMULAS"]


def bare(call: Call) -> Cost:
    """No work where the bodies hold no operators; how often others run is not known here."""
    held = list(bodies(call.node))
    if not held or any(body.node for body in held):
        raise UnknownCostError(f"the work of the bodies of {call.node.op_type} is not known")
    return Cost()


FORMULAS: dict[tuple[str, str], Formula] = {("", name): bare for name in ("If", "Loop")}
