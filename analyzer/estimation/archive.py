"""Decompositions kept in the database, so that a model is decomposed once and not for every question about it.

What is kept is the outline of a model's own graph, of the graph that a runtime executes for it, and what either was cut
into. It is found by what decided it: the model's fingerprint, the cut, the stack and instruction set of a runtime, the
libraries of custom operators, and the versions of the code. Nothing of it ever leaves the database.

Keeping is a convenience: where a database cannot be written, models are decomposed every time.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from ...bricks.graph.graph import ModelGraph
from ...bricks.graph.outline import Outline, outline_of
from ...bricks.layer import LayerState
from ...constructor.decomposition import Decomposition, alone, distance_level
from ...db import Stack, Store
from ...db.decompositions import (
    Record,
    keep_file,
    keep_records,
    kept_data,
    kept_file,
    kept_files,
    kept_records,
    read_records,
)
from ...errors import DatabaseLocked, DatabaseReadOnly, DlbricksError, StoreError
from ...generator.backends.custom_ops import asked
from ...generator.backends.registry import get, optimiser_of
from ...generator.decomposition.cutter import Cut
from ...generator.decomposition.executed import instruction_set, runtime_salt
from ...models import ModelSource
from ...models.fingerprint import FileContent, FileState, fingerprint, read_content
from ...version import __version__
from .records import Parts, executed_record, parts_record, read_executed, read_parts

__all__ = ["Archive", "maker"]

_FORMAT = 8
"""Changes whenever a record is written otherwise, or the same model is decomposed otherwise."""

_SETTLED_NS = 2_000_000_000
"""A file that was written later than this before it was read may be written again within the same tick of its clock."""


def maker() -> str:
    """Versions of what makes records: those of others are dropped."""
    return f"{_FORMAT} {__version__} {metadata.version('onnx')}"


class Archive:
    """The decompositions of one cut that a database keeps.

    Args:
        store: The database.
        cut: How models are cut.
    """

    def __init__(self, store: Store, cut: Cut) -> None:
        self._store = store
        self._cut = cut
        self._maker = maker()
        self._stack: Stack | None = None
        self._salt = ""
        self._contents: dict[tuple[Path, FileState], FileContent] = {}
        self._fingerprints: dict[ModelSource, str] = {}
        self._ahead: dict[str, dict[str, bytes]] = {}
        self._writable = True
        if cut.graph != "source":
            try:
                self._stack = get(cut.backend).stack(cut.device, dict(cut.options))
            except DlbricksError:
                self._writable = False  # no model can be decomposed then, and the answer says why
                return
            self._salt = runtime_salt(self._stack, instruction_set())
        runtime = () if self._stack is None else (self._salt, cut.threads)
        libraries = (found,) if (found := asked()) else ()  # the oracle executes operators of theirs
        self._own, self._taken = _named("graph", *libraries), _named("graph", "as taken", *runtime, *libraries)
        self._executed = _named("executed", *runtime, *libraries)
        self._parts = _named("cut", cut.graph, cut.granularity, cut.overlap, cut.connected, *runtime, *libraries)

    def expect(self, sources: Sequence[ModelSource]) -> None:
        """Read what is kept of models that will be looked for, in a few queries for all of them."""
        if self._unknown:
            return
        states = {source.path: FileState.of(source.path) for source in sources if source.path and not source.problem}
        there = {path: (state.size, state.mtime_ns) for path, state in states.items() if state is not None}
        for path, kept in kept_files(self._store, there).items():
            self._contents[path, FileState(*there[path])] = FileContent(*kept)
        models = {model for source in sources if (model := fingerprint(source, self._content)) is not None}
        names = {self._own, self._taken, self._executed, self._parts}
        self._ahead = kept_data(self._store, models, names, self._maker)

    def find(self, source: ModelSource, own: ModelGraph | None = None) -> Decomposition | None:
        """The decomposition of a model, its graphs as outlines; None where it is not kept, or cannot be read.

        Args:
            source: The model.
            own: Its own graph, where that is at hand.
        """
        if self._unknown:
            return None
        model = fingerprint(source, self._content)
        if model is None:
            return None
        self._fingerprints[source] = model
        wanted = {self._executed, self._parts}
        wanted |= {self._own} if own is None else set()
        wanted |= {self._taken} if self._cut.graph != "source" else set()
        if (ahead := self._ahead.get(model)) is not None:
            found = read_records({part: data for part, data in ahead.items() if part in wanted})
        else:
            found = kept_records(self._store, model, wanted, self._maker)
        try:
            if self._taken in found:  # prepared as a runtime takes it, whatever its own graph is
                own = Outline(found[self._taken])
            return self._read(source, own or Outline(found[self._own]), found)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return None  # not kept, or damaged: then it is kept anew

    def keep(self, model: Decomposition) -> None:
        """Keep a decomposition, unless the model's file has changed since ``find`` did not find it.

        What is skipped may be so for a reason that passes, as when a worker ends: such models are decomposed again.
        """
        known = self._fingerprints.get(model.source)
        graphs = (model.own, model.graph)
        if known is None or any(one.state is LayerState.SKIPPED for graph in graphs for one in graph.layers):
            return
        executed = model.executed
        if executed is not None and executed.graph.salt != self._salt:
            return
        records = {self._taken if model.own.identity else self._own: outline_of(model.own, alone(model.own))}
        if executed is not None:
            records[self._executed] = executed_record(executed)
        if not self._is_plain:
            records[self._parts] = parts_record(model)
        if fingerprint(model.source, self._content) == known:
            self._write(lambda: keep_records(self._store, known, records, self._maker))

    @property
    def _unknown(self) -> bool:
        """Whether what such a cut finds is not kept, or not of a runtime that is here."""
        return (self._cut.graph != "source" and self._stack is None) or not self._cut.in_parts

    @property
    def _is_plain(self) -> bool:
        """Whether the sequences are the layers one by one, which an outline has beside it."""
        return self._cut.granularity == 1 and self._cut.graph != "fused"

    def _content(self, path: Path, state: FileState) -> FileContent | None:
        """What is in a file: from the database where its state is still the same, else from the file."""
        if (known := self._contents.get((path, state))) is not None:
            return known
        stated = (state.size, state.mtime_ns)
        kept = kept_file(self._store, path, stated)
        content = read_content(path) if kept is None else FileContent(*kept)
        if content is None or FileState.of(path) != state:
            return None
        self._contents[path, state] = content
        if kept is None and time.time_ns() - state.mtime_ns > _SETTLED_NS:
            self._write(lambda: keep_file(self._store, path, stated, content.sha256, content.external))
        return content

    def _write(self, write: Callable[[], None]) -> None:
        """Write to the database, once more after it worked: one that is locked is not waited for at every model."""
        if not self._writable:
            return
        try:
            write()
        except (DatabaseReadOnly, DatabaseLocked):
            self._writable = False  # it was opened for reading, or somebody else writes: neither is a fault
        except StoreError as error:
            self._writable = False
            warnings.warn(f"what models were decomposed into is not kept: {error}", RuntimeWarning, stacklevel=2)

    def _read(self, source: ModelSource, own: ModelGraph, found: dict[str, Record]) -> Decomposition:
        executed = None
        if self._stack is not None:
            executed = read_executed(found[self._executed], source.name, own, optimiser_of(self._cut.backend).layouts)
        graph = executed.graph if executed is not None and self._cut.graph == "runtime" else own
        parts = Parts(alone(graph), tuple((index,) for index in graph.live), ())
        if not self._is_plain:
            parts = read_parts(found[self._parts], graph)
        return Decomposition(source, own, graph, *parts, distance_level(graph), executed)


def _named(*words: object) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()
