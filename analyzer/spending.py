"""Where a command's time went, and why its budget did not hold."""

from __future__ import annotations

from collections.abc import Mapping

from ..generator.machine.lock import work_clock

_BEYOND = 0.2
"""Share of a budget that work may take beyond it without a reason."""

_LONG_MS = 300.0
"""The reason names an execution that takes longer than this, since no budget can divide it."""


class Spending:
    """The work of a command by step, in seconds; it begins with the first."""

    def __init__(self) -> None:
        self._last = work_clock()
        self._steps: dict[str, float] = {}

    def on(self, step: str) -> None:
        """Count the time since the last call as spent on a step."""
        now = work_clock()
        self._steps[step], self._last = self._steps.get(step, 0.0) + now - self._last, now

    def beyond(self, budget_s: float | None, latencies_ms: Mapping[str, float | None]) -> tuple[str, ...]:
        """Return the reason why a budget did not hold within a fifth; empty if it did.

        Args:
            budget_s: The budget; None for none.
            latencies_ms: One execution of each model, by name; None if unknown.
        """
        whole_s = sum(self._steps.values())
        if budget_s is None or whole_s <= (1 + _BEYOND) * budget_s:
            return ()
        step = max(self._steps, key=self._steps.__getitem__)
        reason = f"{whole_s:.0f} s of work for a budget of {budget_s:g} s: {step} took {self._steps[step]:.0f} s"
        longest = max(((ms, name) for name, ms in latencies_ms.items() if ms is not None), default=(0.0, ""))
        if longest[0] > _LONG_MS:
            reason += f"; one execution of {longest[1]} takes {longest[0] / 1e3:.2g} s"
        return (reason,)
