"""How models are measured and composed here: open fields of a query settled, and what is stored under it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Unpack

from ..bricks.decomposition import Decomposition, Failed
from ..constructor.choice import Choice, Query
from ..constructor.evidence import Evidence
from ..db import Store
from ..db.values import NATIVE, Conditions, Runtime
from ..generator.backends.registry import get, require_available
from ..generator.decomposition.cut import Cut
from ..generator.decomposition.decompose import readable
from ..generator.machine.cores import physical_cores
from ..generator.machine.system import probe_system
from ..generator.measurement.recorder import closed_for_now
from ..generator.measurement.settings import MeasurementSettings, PaceFields
from .estimation.query import QueryFields
from .estimation.reading import evidence_under, read_evidence


@dataclass(frozen=True, slots=True)
class Setup(Query):
    """How models are measured and composed: a query, a graph and options of the backend.

    Before measuring, ``report`` sets open fields to defaults, as ``set_up`` does.

    Attributes:
        graph: Which graph is cut into bricks; None: the executed one, if nothing is measured.
        options: Options of the backend.
        picked: The fields with default values, as options of the command line.
    """

    graph: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    picked: tuple[str, ...] = ()

    @property
    def runtime(self) -> Runtime:
        """The backend, its device and options."""
        return Runtime.of(self.backend or "onnxruntime", self.device or "cpu", self.options)

    def settings(self, **pace: Unpack[PaceFields]) -> MeasurementSettings:
        """How to measure with it, so often or so long."""
        conditions = Conditions(self.threads or 1, self.cache or "model", self.dtype or NATIVE)
        return MeasurementSettings(self.runtime, conditions, **pace)


class SetupFields(QueryFields, total=False):
    """The fields of a ``Setup`` as keywords of a function."""

    graph: str | None
    options: Mapping[str, str]


def set_up(**fields: Unpack[SetupFields]) -> Setup:
    """Return a setup with defaults: ONNX Runtime, one thread, the executed graph, caches as in a model.

    Args:
        **fields: Fields of a ``Setup`` with other values.

    Raises:
        UsageError: There is no such backend, or it has no such option.
        BackendUnavailable: The backend cannot run here.
    """
    return settled(Setup(**fields))


def settled(how: Setup) -> Setup:
    """Return a setup with defaults for open fields, ready to measure."""
    runtime, asked = get(how.runtime.backend), asdict(how)
    backend, device, dtype = how.runtime.backend, how.runtime.device, how.dtype or NATIVE
    require_available(runtime, backend, device)
    effective = runtime.resolve(device, how.options)
    graph = how.graph or runtime.graph_at(device, dtype, effective)
    cache = how.cache or ("model" if device == "cpu" and runtime.in_turn(effective) else "hot")
    threads = 1 if how.threads is None else how.threads or len(physical_cores())
    chosen = {
        "graph": graph, "backend": backend, "device": device, "threads": threads, "cache": cache, "dtype": dtype,
    }  # fmt: skip
    picked = (f"--{option} {value}" for option, value in chosen.items() if asked[option] is None)
    settled = Setup(how.system, how.stack, backend, device, threads, cache, dtype, graph, how.options)
    return replace(settled, picked=(*how.picked, *picked))


def cut_of(how: Setup) -> Cut:
    """Return the cut along the graph of the setup's runtime."""
    return Cut(1, graph=how.graph or "runtime", runtime=how.runtime, threads=how.threads or 1)


def evidence_here(models: Sequence[Decomposition | Failed], store: Store, how: Setup) -> Evidence:
    """Return the measurements of models on this machine, with the installed runtime."""
    here = stored_here(store, how)
    if here is None:
        return evidence_under(None, readable(models), store, how, cut_of(how))
    return read_evidence(store, models, here, cut_of(how))


def choice_here(how: Setup) -> Choice:
    """Return the combination of a run on this machine with a complete setup."""
    stack, system = get(how.backend or "").stack(how.device or "", dict(how.options)), probe_system()
    conditions = Conditions(how.threads or len(physical_cores()), how.cache or "model", how.dtype or NATIVE)
    return Choice(system.key, stack.key, system, stack, conditions, 0)


def stored_here(store: Store, how: Setup) -> Setup | None:
    """Return a setup with this system and the installed stack; None if the database has neither."""
    system, stack = probe_system().key, get(how.backend or "").stack(how.device or "", dict(how.options)).key
    if system not in store.systems() or stack not in store.stacks():
        return None
    return replace(how, system=system, stack=stack)


@contextmanager
def interrupted_here(store: Store, how: Setup) -> Iterator[None]:
    """Count what an interrupted run on this machine left open as measured; undone at the end.

    The same command goes on with these visits: they are no result yet, and are all that is known.
    """
    here = stored_here(store, how)
    runs = [] if here is None else [run for run in store.runs() if (run.system, run.stack) == (here.system, here.stack)]
    if not runs or runs[-1].finished is not None:
        yield
        return
    with closed_for_now(store, runs[-1]):
        yield


def notes_of(how: Setup) -> list[str]:
    """Write the options with default values."""
    return [f"Options by default: {' '.join(how.picked)}."] if how.picked else []
