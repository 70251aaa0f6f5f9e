"""A model's sequences as an outline in which a block that repeats stands once, however layers are named."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

__all__ = ["Block", "outline"]

_LONGEST = 256
"""Sequences of a block at most: comparing every length with every place takes time by the product of both."""


@dataclass(frozen=True, slots=True)
class Block:
    """Part of an outline.

    Attributes:
        begin: Position of its first sequence.
        width: Sequences that each repetition has.
        count: How often it repeats; 1 for what stands alone.
        inside: What one repetition is made of; empty for a single sequence.
    """

    begin: int
    width: int
    count: int
    inside: tuple[Block, ...] = ()


def outline(keys: Sequence[Hashable]) -> tuple[Block, ...]:
    """Fold what repeats without a gap, from left to right, that which covers most first (O(n * ``_LONGEST``)).

    Args:
        keys: What each sequence is; equal ones are the same.

    Returns:
        Blocks that together are all positions, in order.

    Example:
        >>> [(block.begin, block.width, block.count) for block in outline("xababababy")]
        [(0, 1, 1), (1, 2, 4), (9, 1, 1)]
    """
    return _folded(keys, 0)


def _folded(keys: Sequence[Hashable], offset: int) -> tuple[Block, ...]:
    size = len(keys)
    widths = range(1, min(_LONGEST, size // 2) + 1)
    # equal[w][i]: how many positions from i on are the same as those w later.
    equal: dict[int, list[int]] = {}
    for width in widths:
        run = [0] * (size + 1)
        for place in range(size - width - 1, -1, -1):
            run[place] = run[place + 1] + 1 if keys[place] == keys[place + width] else 0
        equal[width] = run
    found: list[Block] = []
    place = 0
    while place < size:
        best_width, best_count = 1, 1
        for width in widths:
            count = equal[width][place] // width + 1
            if count > 1 and count * width > best_count * best_width:
                best_width, best_count = width, count
        inside = _folded(keys[place : place + best_width], offset + place) if best_width > 1 else ()
        found.append(Block(offset + place, best_width, best_count, inside))
        place += best_width * best_count
    return tuple(found)
