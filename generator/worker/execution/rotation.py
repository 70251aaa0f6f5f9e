"""Running many networks in turn, as a model runs its layers: between two visits of one, all others have run."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .rotor import Rotor
from .timing import undisturbed

__all__ = ["Rotation"]


class Rotation:
    """Passes over rotors; keeps the memory that is read where they do not touch enough."""

    def __init__(self) -> None:
        self._filler: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def turn(self, rotors: Sequence[Rotor], *, distance: int, passes: int, warmups: int = 0, seed: int = 0) -> int:
        """Visit every rotor once per pass.

        Every pass has an order of its own, so that no network always follows the same neighbour.

        Args:
            rotors: Their times of earlier turns are forgotten.
            distance: Bytes to be touched per pass. What the rotors do not touch is read from a buffer, in equal
                parts before each visit.
            passes: Timed passes.
            warmups: Passes before them.
            seed: Of the orders.

        Returns:
            Nanoseconds of the timed passes.
        """
        missing = max(0, distance - sum(rotor.touched_bytes for rotor in rotors))
        if self._filler.nbytes < missing:
            self._filler = np.ones(missing // 8 + 1, dtype=np.int64)
        parts = np.array_split(self._filler[: missing // 8], len(rotors))
        order = list(range(len(rotors)))
        shuffler = random.Random(seed)  # noqa: S311  # an order, not a secret
        begin = 0
        with undisturbed():
            for number in range(-warmups, passes):
                if number <= 0:
                    begin = time.perf_counter_ns()
                    for rotor in rotors:
                        rotor.begin()
                shuffler.shuffle(order)
                for place, index in enumerate(order):
                    if missing:
                        parts[place].sum()
                    rotors[index].visit(number)
            return time.perf_counter_ns() - begin
