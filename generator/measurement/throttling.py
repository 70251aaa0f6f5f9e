"""Sessions in which power or temperature held a GPU's clocks back: they are taken again, a few times."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..device.opening import state_of
from ..machine.nvml import throttled
from .costs import RunCosts
from .sampling.pace import Pace

__all__ = ["Throttling"]

_AGAIN = 2
"""Sessions that are discarded in a row: a device that is still held back then is so by the work or by its place."""


class Throttling:
    """Watches a device while a session is taken. Nothing is asked of one that reports no reasons, as the CPU.

    Args:
        device: Its name.
        pace: Must have the time for a session that is taken again.
        costs: Where sessions are counted that were taken again, and those that were kept all the same.
    """

    def __init__(self, device: str, pace: Pace, costs: RunCosts) -> None:
        self._device = device
        self._pace = pace
        self._costs = costs
        self._reports = "held_back" in state_of(device)
        self._begun: tuple[float, Mapping[str, object]] = (0.0, {})
        self._discarded = 0  # since the last session that was not held back

    @property
    def found(self) -> dict[str, object]:
        """For the record of a run; empty where the device reports nothing."""
        if not self._reports:
            return {}
        return {"sessions_again": self._costs.again, "sessions_throttled": self._costs.throttled}

    def watch(self) -> None:
        """A session begins."""
        if self._reports:
            self._begun = time.monotonic(), state_of(self._device)

    def discards(self) -> bool:
        """Whether the session that ends here is to be taken again, since the device was held back meanwhile.

        It is not where several in a row were, and where that would leave too little time for what is to come.
        """
        if not self._reports:
            return False
        begun_s, before = self._begun
        elapsed_s = time.monotonic() - begun_s
        if not throttled(before, state_of(self._device), elapsed_s):
            self._discarded = 0
            return False
        if self._discarded == _AGAIN or not self._pace.again(elapsed_s):
            self._costs.throttled += 1
            return False
        self._discarded += 1
        self._costs.again += 1
        return True
