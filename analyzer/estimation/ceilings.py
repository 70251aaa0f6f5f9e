"""The ceilings of a system, as they are stored."""

from __future__ import annotations

from collections import defaultdict

from ...bricks.reference import built_in_key
from ...constructor.choice import Choice
from ...constructor.roofline.ceilings import Ceilings, ceilings_of, networks_of
from ...db import Measurement, Store, Subject

__all__ = ["find_ceilings"]


def find_ceilings(store: Store, choice: Choice) -> Ceilings:
    """The ceilings of a combination (``constructor.roofline.ceilings``), over all stacks.

    Args:
        store: The database.
        choice: The combination.
    """
    names = {built_in_key(name): name for name in networks_of(choice)}
    found: defaultdict[tuple[str, str], dict[str, Measurement]] = defaultdict(dict)
    for one in store.measurements(
        subject=Subject.REFERENCE,
        keys=list(names),
        system=choice.system_key,
        threads=choice.conditions.threads,
        cache="hot",
        device=choice.stack.device,
    ):
        found[one.stack, one.conditions.dtype][names[one.key]] = one
    return ceilings_of(found, store.stacks(), choice)
