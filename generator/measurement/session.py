"""One measuring session: workers one after the other, rounds that interleave, and what happens when a worker dies."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median_high
from types import TracebackType
from typing import Self

from ...db.values import Block, Stop
from ...errors import BackendError, DlbricksError, WorkerError
from ..progress import Progress, ProgressCallback, Stage
from ..worker.client import Timeouts, Worker
from ..worker.messages.protocol import INNER, Rotate, Sample
from .costs import RunCosts
from .item import Item
from .journal import Journal
from .sampling.allocation import time_shares
from .sampling.forecast import loading_s
from .sampling.schedule import Pace, fitting, interleaved, queued, slots_of, warmups_of
from .sampling.statistics import MIN_SAMPLES
from .sampling.stopping import decide

__all__ = ["Session"]

_BYTES_PER_S = 5e7
"""A large model may take longer to load than ``Timeouts.prepare``: slowest disk and packing that we wait for."""

_REFERENCE_NS = 40_000_000
"""Most time of the reference network per round."""


class Session:
    """Measures items until each has a result or a failure, or the time is up.

    A pass is one worker process that loads the items (in chunks, where they do not fit in memory together) and
    samples all of them once per round. Process numbers continue those of an interrupted run, so that a number means
    the same process for every item. The parent does nothing while a request is under way, and the reply to each
    sample request is committed before the next one.

    Args:
        launch: Starts a greeted worker.
        journal: Where results go.
        reference: The reference network, sampled once per round by every worker.
        pace: Protocol and total time.
        costs: Where wall time is booked.
        memory_bytes: Networks are kept loaded up to this size.
        cache: Cache state to ask for.
        seed: Of weights, inputs and orders.
        annotations: Which model holds which brick how often, where the suite tells: decides what a given time is spent
            on.
        progress: Told between requests.
    """

    def __init__(
        self,
        launch: Callable[[], Worker],
        journal: Journal,
        reference: Item,
        pace: Pace,
        costs: RunCosts,
        *,
        memory_bytes: int,
        cache: str,
        seed: int,
        annotations: Mapping[str, Mapping[str, int]] | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._launch = launch
        self._journal = journal
        self._reference = reference
        self._pace = pace
        self._protocol = pace.protocol
        self._costs = costs
        self._memory_bytes = memory_bytes
        self._cache = cache
        self._seed = seed
        self._annotations = annotations
        self._progress = progress
        self._worker: Worker | None = None
        self._process = -1
        self._round = -1
        self._items: list[Item] = []
        self._inner: dict[str, Item] = {}  # by the item that it is a variant of
        self._slots: dict[str, int] = {}
        self._left = 0
        self._done = 0
        self._parties = 0
        self._running: Item | None = None
        self._suspects: dict[str, Item] = {}  # executed since the reference network ran well
        self._unchecked = 0  # items at the head of the queue that a dead worker held

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            with self._costs.spend("start_s"):
                self._worker.close() if kind is None else self._worker.kill()

    def measure(self, items: Sequence[Item]) -> None:
        """Measure the items; each ends with ``result`` or ``failure``, or stays open where the time was short."""
        self._items = items = [*items]  # variants that are found on the way join them
        self._process = self._journal.take_up(self._reference, items)
        for item in items:
            self._settle(item)
            self._count(item)
        while any(item.open for item in items) and not self._pace.expired:
            self._pass([item for item in items if item.open])
        for item in items:
            if item.open and sum(len(block.samples) for block in item.blocks) >= MIN_SAMPLES:
                self._journal.finish(item, Stop.BUDGET)
        if self._reference.blocks and not any(item.open for item in items):
            # Left open otherwise: the run that takes up the open items wants the reference of their first blocks.
            self._journal.finish(self._reference, Stop.BUDGET)

    def _pass(self, items: Sequence[Item]) -> None:
        """One worker per party: for all items, and then for those that must run apart from the others."""
        tried: set[int] = set()
        if self._pace.budget_s is not None:
            self._pace.shares = time_shares(items, self._annotations)
        while parties := {item.party for item in items if item.open} - tried:
            if self._pace.expired:
                return
            party = min(parties)
            tried.add(party)
            members = [item for item in items if item.open and item.party == party]
            loading = loading_s(members)
            self._pace.overhead_s = self._passes_left() * loading
            self._restart()
            self._unchecked = 0
            queue = queued(members, self._seed, self._process, hurried=self._pace.budget_s is not None)
            while queue and not self._pace.expired:
                self._chunk(queue, overhead_s=max(0, self._passes_left() - 1) * loading)

    def _chunk(self, queue: deque[Item], *, overhead_s: float) -> None:
        """Load what fits, sample it in interleaved rounds, release it."""
        resident: dict[str, Item] = {}
        try:
            self._load(queue, resident)
            self._pace.overhead_s = overhead_s
            self._sample_rounds(resident)
            if queue and self._worker is not None:
                for item in resident.values():
                    self._worker.release(item.id)
        except (WorkerError, BackendError) as error:
            party = next((item.party for item in resident.values()), None)
            self._lose(error)
            survivors = [item for item in resident.values() if item.open and item.party == party]
            queue.extendleft(reversed(survivors))
            self._unchecked = len(survivors)

    def _load(self, queue: deque[Item], resident: dict[str, Item]) -> None:
        """Load what fits together; what a dead worker held is checked before more is added to it."""
        held = 0
        while queue and (not resident or held + queue[0].size_bytes <= self._memory_bytes):
            if self._pace.expired or not fitting(resident.values(), queue):
                return
            item = queue.popleft()
            if self._prepare(item):
                resident[item.id] = item
                held += item.size_bytes
                self._bring_inner(item, queue)
            if self._unchecked:
                self._unchecked -= 1
                if not self._unchecked:
                    self._begin_round()

    def _sample_rounds(self, resident: dict[str, Item]) -> None:
        for _ in range(self._protocol.rounds):
            rotating = any(item.distance for item in resident.values())
            if any(item.open for item in resident.values()):
                self._begin_round(rotating=rotating)
            if rotating:
                self._rotate([item for item in resident.values() if item.open])
                continue
            for item in interleaved(resident.values(), self._seed, self._process, self._round):
                if self._pace.expired:
                    return
                if item.open:
                    self._sample(item)

    def _prepare(self, item: Item) -> bool:
        """Load one item beside the others; False where the runtime refused it."""
        if self._worker is None:
            self._restart()
        assert self._worker is not None  # noqa: S101
        self._tell(Stage.PREPARE, item)
        timeout_s = min(Timeouts.prepare, self._protocol.timeout_ns / 1e9) + item.size_bytes / _BYTES_PER_S
        try:
            with self._costs.spend("prepare_s"), self._running_it(item):
                reply = self._worker.prepare(item.request(self._seed), timeout_s=timeout_s)
        except BackendError as error:
            self._fail(item, error)
            return False
        self._costs.load_s += reply.loading_ns / 1e9
        item.unroll, item.size_bytes, item.touched_bytes = reply.unroll, reply.bytes, reply.touched_bytes
        item.run_ns = item.run_ns or reply.first_run_ns
        if item.load_ns is None:
            item.load_ns, item.first_run_ns = reply.load_ns, reply.first_run_ns
        if INNER in reply.variants and item.id not in self._inner:
            self._begin_inner(item)
        return True

    def _begin_inner(self, item: Item) -> None:
        """Measure the variant without layout changes at the edges, too."""
        inner = self._inner[item.id] = item.in_variant(INNER)
        if item.alone:  # whatever ended the worker is to be found with nothing else beside it
            self._parties += 1
            inner.party = self._parties
        self._journal.resume(inner)
        self._items.append(inner)
        self._settle(inner)
        self._count(inner)

    def _bring_inner(self, item: Item, queue: deque[Item]) -> None:
        """Have the variant of an item loaded next: the worker has it at hand."""
        inner = self._inner.get(item.id)
        if inner is not None and inner.open and inner.party == item.party:
            if inner in queue:
                queue.remove(inner)
            queue.appendleft(inner)

    def _sample(self, item: Item) -> None:
        """Take one block and commit it; close the item where that was enough."""
        slot = self._pace.slot(item, self._left)
        self._tell(Stage.SAMPLE, item)
        try:
            with self._running_it(item):
                block = self._take(item, slot.budget_ns, slot.min_samples)
        except BackendError as error:
            self._fail(item, error)
            return
        self._done += 1
        self._journal.commit(item, block)
        self._settle(item)
        self._count(item)

    def _rotate(self, items: Sequence[Item]) -> None:
        """Take one block of each item, all in turn, and commit them; close those that it was enough for."""
        if not items or self._pace.expired:
            return
        assert self._worker is not None  # noqa: S101
        items = interleaved(items, self._seed, self._process, self._round)
        passes = self._pace.passes(items, self._left)
        begun = all(item.blocks and item.blocks[-1].process == self._process for item in items)
        request = Rotate(
            ids=tuple(item.id for item in items),
            distance=items[0].distance,
            passes=passes,
            warmups=warmups_of(items, begun=begun),
            seed=self._seed + self._round,
        )
        self._tell(Stage.SAMPLE, items[0])
        pass_s = sum(item.pass_ns for item in items) / 1e9 + items[0].distance / _BYTES_PER_S
        timeout_s = self._protocol.timeout_ns / 1e9 + 2 * (passes + request.warmups) * pass_s
        with self._costs.spend("sample_s"):
            reply = self._worker.rotate(request, timeout_s=timeout_s)
        self._costs.timed_s += reply.elapsed_ns / 1e9
        if len(reply.samples) != len(items):
            raise WorkerError(f"the worker timed {len(reply.samples)} of {len(items)} networks")
        for item, samples in zip(items, reply.samples, strict=True):
            if len(samples) != passes:
                raise WorkerError(f"the worker took {len(samples)} samples")
            item.run_ns = max(1, median_high(elapsed for elapsed, _ in samples))
            self._done += 1
            self._journal.commit(item, Block(self._process, self._round, samples, request.warmups))
            self._settle(item)
            self._count(item)

    def _begin_round(self, *, rotating: bool = False) -> None:
        """Rounds of a process are counted over its chunks; each begins with the reference network."""
        self._round += 1
        blocks = self._protocol.blocks
        budget_ns, minimum = self._protocol.item_budget_ns // blocks, math.ceil(MIN_SAMPLES / blocks)
        budget_ns = min(budget_ns, _REFERENCE_NS)
        if rotating:
            budget_ns = min(budget_ns, _REFERENCE_NS // 4)  # rotations are many
        self._journal.commit(self._reference, self._take(self._reference, budget_ns, minimum))
        self._suspects.clear()
        self._unchecked = 0

    @contextmanager
    def _running_it(self, item: Item) -> Iterator[None]:
        """Names the item that the worker executes; a worker that ends later may still have been ruined by it."""
        self._suspects[item.id] = self._running = item
        try:
            yield
        except BackendError:
            self._running = None  # refused, by a worker that goes on
            raise
        self._running = None

    def _take(self, item: Item, budget_ns: int, min_samples: int) -> Block:
        assert self._worker is not None  # noqa: S101
        cache = "cold" if self._cache == "cold" else "hot"  # a whole model is in its own state while it repeats
        request = Sample(item.id, budget_ns=budget_ns, min_samples=min_samples, cache=cache)
        with self._costs.spend("sample_s"):
            # The minimum of samples fits into the hard limit as far as ``run_ns`` is true; one run is warm-up.
            reply = self._worker.sample(request, timeout_s=(self._protocol.timeout_ns + 2 * item.run_ns) / 1e9)
        if not 0 < len(reply.samples) <= request.max_samples:
            raise WorkerError(f"the worker took {len(reply.samples)} samples")
        elapsed_ns = sum(elapsed for elapsed, _ in reply.samples)
        self._costs.timed_s += elapsed_ns / 1e9
        item.run_ns = elapsed_ns // max(1, sum(loops for _, loops in reply.samples))
        return Block(self._process, self._round, reply.samples, reply.warmups)

    def _settle(self, item: Item) -> None:
        with self._costs.spend("statistics_s"):
            stop = decide(item.blocks, item.unroll, self._protocol)
        if stop is not None:
            self._journal.finish(item, stop)

    def _lose(self, error: WorkerError | BackendError) -> None:
        """A worker ended: find out whose fault it was.

        Under an item, that one is suspected. In between (at the reference network, or a release), it was one of those
        executed since the reference network ran well: they are halved until the culprit is alone. An item that ends
        a worker which it had for itself has failed.

        Raises:
            WorkerError: The reference network fails in a fresh worker that holds nothing else.
        """
        suspects = [*self._suspects.values()]
        if self._running is not None:
            suspects = [self._running]
            self._end_worker()
        elif not suspects:
            raise error
        else:
            self._restart()
            self._begin_round()  # where the reference network itself fails, no item is to blame
        self._running = None
        suspects = [item for item in suspects if item.open]
        if len(suspects) == 1 and suspects[0].alone:
            self._fail(suspects[0], error)
            return
        half = len(suspects) // 2
        for party in (suspects[:half], suspects[half:]):
            self._parties += 1
            for item in party:
                item.party, item.alone = self._parties, len(party) == 1
                self._tell(Stage.RETRY, item)

    def _fail(self, item: Item, error: DlbricksError) -> None:
        self._journal.fail(item, error)
        self._count(item)

    def _end_worker(self) -> None:
        if self._worker is not None:
            with self._costs.spend("start_s"):
                self._worker.close()
            self._worker = None

    def _restart(self) -> None:
        """Replace the worker; the new one has the next process number and the reference network."""
        self._end_worker()
        with self._costs.spend("start_s"):
            self._suspects.clear()
            self._running = None
            self._worker = self._launch()
            self._process += 1
            self._round = -1
            self._reference.unroll = self._worker.prepare(self._reference.request(self._seed)).unroll

    def _passes_left(self) -> int:
        left = (self._protocol.blocks - len(item.blocks) for item in self._items if item.open)
        return max((math.ceil(max(1, blocks) / self._protocol.rounds) for blocks in left), default=0)

    def _count(self, item: Item) -> None:
        """Keep the number of sample requests left; summing anew for each request would be quadratic."""
        slots = slots_of(item, self._protocol)
        self._left += slots - self._slots.get(item.id, 0)
        self._slots[item.id] = slots

    def _tell(self, stage: Stage, item: Item) -> None:
        if self._progress is None:
            return
        per_slot_s = self._protocol.item_budget_ns / 1e9 / self._protocol.blocks
        if self._done:
            per_slot_s = self._costs.sample_s / self._done
        with self._costs.spend("progress_s"):
            self._progress(
                Progress(
                    stage,
                    done=self._done,
                    total=self._done + self._left,
                    label=item.label,
                    elapsed_s=self._pace.elapsed_s,
                    remaining_s=self._left * per_slot_s + self._pace.overhead_s,
                )
            )
