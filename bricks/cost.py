"""Work and memory traffic of one execution of a layer."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cost"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Work by kind and bytes by kind of one execution (after the six counters of Benanza's code, dlperf).

    Attributes:
        macs: Multiply-accumulates.
        additions: Additions and subtractions outside multiply-accumulates.
        multiplications: Multiplications outside multiply-accumulates.
        divisions: Divisions and square roots.
        exponentials: exp, log, tanh, erf, sigmoid and the like, one each.
        comparisons: Comparisons, minima, maxima, selections.
        weight_bytes: Bytes of the constant inputs.
        input_bytes: Bytes of the activation inputs.
        output_bytes: Bytes of the outputs.
    """

    macs: int = 0
    additions: int = 0
    multiplications: int = 0
    divisions: int = 0
    exponentials: int = 0
    comparisons: int = 0
    weight_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0

    @property
    def flops(self) -> int:
        """``2 macs + additions + multiplications + divisions + exponentials`` (comparisons are not counted)."""
        return 2 * self.macs + self.additions + self.multiplications + self.divisions + self.exponentials

    @property
    def activation_bytes(self) -> int:
        """Bytes of activation inputs and outputs."""
        return self.input_bytes + self.output_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))
