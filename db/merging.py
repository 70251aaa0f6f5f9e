"""Bring the measurements of another database into ours."""

from __future__ import annotations

import os
import random
import time

from ..errors import DatabaseLocked, StoreError
from .store import Store
from .transfer import Policy, Transferred, transfer

__all__ = ["merge"]

_PATIENCE_S = 60.0
"""How long other writers are waited for: a transaction that copies a large database holds SQLite's lock for seconds."""

_PAUSE_S = 0.2
"""Longest pause before the next attempt, drawn at random, so that two that met do not meet again."""


def merge(target: Store, other: Store | str | os.PathLike[str], *, node: str | None = None) -> Transferred:
    """Add what another database holds, in one transaction; doing it twice adds nothing, and so does doing it at once.

    Databases of several machines merge: systems and stacks have content keys, everything measured has a UUID. Where
    both hold measurements of the same brick on the same system and stack, the newest is the one that queries see, by
    the clocks of the machines that took them. Open items of the other database are not taken: they are unfinished work
    of the machine that began them.

    Args:
        target: The database to add to.
        other: The database to add, or its path or URL; it is only read.
        node: Only what was measured on the node of this name, without kernel views, which are of none; None: all.

    Returns:
        How many rows were new.

    Raises:
        StoreError: Its kinds as for ``Store.open``, and for a database merged into itself; nothing is added then.
    """
    if not isinstance(other, Store):
        with Store.open(other, read_only=True) as opened:
            return merge(target, opened, node=node)
    if other is target or _same(target, other):
        raise StoreError(f"database {target.place} cannot be merged into itself", remedy="name another one")
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with other.reading() as source, target.writing() as connection:
                return transfer(source, connection, Policy(node))
        except DatabaseLocked:
            # Nothing was added: another process held it for too long, or the two waited for each other.
            if time.monotonic() >= deadline:
                raise
            time.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311  (no secret)


def _same(one: Store, other: Store) -> bool:
    if one.place.path is None or other.place.path is None:
        return not one.place.sqlite and one.place.url == other.place.url  # each database in memory is another one
    return one.place.path.samefile(other.place.path)
