"""The ceilings of a system: the best that any of its runtimes reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...bricks.reference import CHAIN, OVERHEAD
from ...db import Measurement, Stack
from ...db.samples.rates import (
    STREAM_SIZES,
    Rate,
    ceiling_names,
    ceiling_work,
    gemm_sizes_on,
    level_of_cache,
    node_ns,
    rate_of,
)
from ...db.values import NATIVE
from ..choice import Choice, narrows

__all__ = ["Ceiling", "Ceilings", "ceilings_of", "networks_of"]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The best rate of some networks, and where it was reached.

    Attributes:
        rate: FLOP/s or bytes/s.
        network: Name of the built-in network.
        backend: The runtime.
        stack: Key of its stack.
    """

    rate: Rate
    network: str
    backend: str
    stack: str


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a system does at most, with so many threads in a precision.

    Attributes:
        dtype: The precision of ``compute``.
        compute: FLOP/s; None where it was not measured in this precision.
        bandwidths: Working set to bytes/s, ascending; never more for a larger one than for a smaller.
        levels: Name of a cache, or ``memory``, to the most of the working sets that it holds; nearest first.
        call_ms: What a call takes that does nothing, in the runtime of the estimate; None where it is not known.
        node_ms: What a node takes there that has next to nothing to do; likewise.
        single: FLOP/s of float32, where ``dtype`` is another; None where that was not measured.
        least: Working sets below so many bytes lie in caches whose bandwidth was not measured, as those of a GPU.
    """

    dtype: str = NATIVE
    compute: Ceiling | None = None
    bandwidths: tuple[tuple[int, Ceiling], ...] = ()
    levels: tuple[tuple[str, Ceiling], ...] = ()
    call_ms: float | None = None
    node_ms: float | None = None
    single: Ceiling | None = None
    least: int = 0

    @property
    def rest(self) -> Ceiling | None:
        """FLOP/s of what is computed in float32 although the precision is another."""
        return self.compute if self.dtype == NATIVE else self.single

    @property
    def known(self) -> bool:
        """Whether bounds can be derived from them."""
        return self.compute is not None and bool(self.bandwidths)

    def bandwidth(self, working_set: int) -> Ceiling | None:
        """The bandwidth of a working set: that of the next larger one that was measured, else of the largest."""
        if not self.bandwidths or working_set < self.least:
            return None
        return next((found for size, found in self.bandwidths if size >= working_set), self.bandwidths[-1][1])


def networks_of(choice: Choice) -> list[str]:
    """Names of the built-in networks whose latencies show the ceilings of a combination."""
    single = () if choice.conditions.dtype == NATIVE else _products(NATIVE, choice)
    return [OVERHEAD, CHAIN, *_products(choice.conditions.dtype, choice), *single, *_streams()]


def ceilings_of(
    found: Mapping[tuple[str, str], Mapping[str, Measurement]], stacks: Mapping[str, Stack], choice: Choice
) -> Ceilings:
    """The ceilings of the system, device, threads and precision of a combination, over all stacks.

    Args:
        found: By stack and precision what was measured of built-in networks, by their names.
        stacks: The stacks, by key.
        choice: The combination; what a call and a node cost is that of its own stack.
    """
    dtype, device = choice.conditions.dtype, choice.stack.device
    backends = {key: stack.backend for key, stack in stacks.items() if narrows(stack) == narrows(choice.stack)}
    own = found.get((choice.stack_key, dtype), {})
    call, node = own.get(OVERHEAD), node_ns(own.get(CHAIN), own.get(OVERHEAD))
    bandwidths = _falling(_rates(found, backends, _streams(), NATIVE, device))
    levels: dict[str, Ceiling] = {}
    for size, ceiling in bandwidths:
        levels.setdefault(level_of_cache(size, choice.system, choice.conditions.threads, device), ceiling)
    single = () if dtype == NATIVE else _products(NATIVE, choice)
    return Ceilings(
        dtype,
        compute=_best(_rates(found, backends, _products(dtype, choice), dtype, device)),
        bandwidths=bandwidths,
        levels=tuple(levels.items()),
        call_ms=None if call is None else call.latency_ms,
        node_ms=None if node is None else node / 1e6,
        single=_best(_rates(found, backends, single, NATIVE, device)),
        least=bandwidths[0][0] // 2 if bandwidths and device != "cpu" else 0,
    )


def _products(dtype: str, choice: Choice) -> list[str]:
    return ceiling_names((), dtype=dtype, gemm_sizes=gemm_sizes_on(choice.stack.device))


def _streams() -> list[str]:
    return ceiling_names(STREAM_SIZES, gemm_sizes=())


def _rates(
    found: Mapping[tuple[str, str], Mapping[str, Measurement]],
    backends: Mapping[str, str],
    names: Sequence[str],
    dtype: str,
    device: str,
) -> list[Ceiling]:
    """What any stack reached with some networks."""
    rates = []
    for (stack, precision), measured in found.items():
        for name in names if precision == dtype and stack in backends else ():
            rate = rate_of(name, measured[name], measured.get(OVERHEAD), device) if name in measured else None
            if rate is not None:
                rates.append(Ceiling(rate, name, backends[stack], stack))
    return rates


def _best(ceilings: Iterable[Ceiling]) -> Ceiling | None:
    return max(ceilings, key=lambda one: one.rate.best, default=None)


def _falling(ceilings: Sequence[Ceiling]) -> tuple[tuple[int, Ceiling], ...]:
    """By working set, the best of it and of all larger ones: what is nearer is never slower."""
    sizes = sorted({ceiling_work(one.network)[1] for one in ceilings}, reverse=True)
    steps: list[tuple[int, Ceiling]] = []
    for size in sizes:
        here = [one for one in ceilings if ceiling_work(one.network)[1] == size]
        best = _best([*here, *(step for _, step in steps[-1:])])
        if best is not None:
            steps.append((size, best))
    return tuple(reversed(steps))
