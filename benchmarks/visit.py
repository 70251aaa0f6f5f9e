"""Check and measure everything on a machine in visits of a few minutes, for example on a GPU for rent.

    python benchmarks/visit.py --device cuda --out DIR --minutes 9 [--models NAME ...] [--stage NAME ...]
    python benchmarks/visit.py --rehearse --out DIR
    python benchmarks/visit.py --report DIR... --out FOLDER

A visit executes the stages of ``visit_plan.py``, the most valuable first. Each stage has its time; unused time goes to
unfinished stages. Nothing is measured twice: with the same folder the next visit resumes, on this machine or an equal
one, also after a kill; failures are tried again. ``visit_state.py`` describes the folder's files; ``dlbricks db
merge`` reads its database. Guide: docs/how-to/gpu.md.

``--rehearse`` executes every stage on the CPU, with small models and stand-ins for the GPU's libraries. ``--report``
makes the tables without measuring. Exit code 0: all stages are done; 3: some are left; 1: nothing could be done; 2:
wrong usage.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlbricks.errors import BackendUnavailable, DlbricksError, MachineBusy, UsageError
from dlbricks.generator.backends.registry import get
from dlbricks.generator.measurement.settings import MeasurementSettings
from dlbricks.models import find_models
from dlbricks.models.zoo import names
from figures import setting, write
from visit_plan import Stage, stages
from visit_rehearsal import plug_in, rehearsed, usual_backend, write_models
from visit_stages import do
from visit_state import OVER_S, Clock, Folder, Record, Terminated, TimeUp, Visit
from visit_tables import markdown, results

_DEFAULTS: dict[str, Any] = {
    "models": [entry.name for entry in names() if entry.extra is None],
    "backend": "torch",
    "device": "cuda",
    "options": {},
    "threads": 1,
    "batch": [16, 64],
    "processes": 2,
    "sessions": 2,
    "visits": 24,
    "rehearse": False,
}
_REHEARSED = {"device": "cpu", "batch": [2], "processes": 1, "sessions": 2, "visits": 12, "rehearse": True}


def main(arguments: Sequence[str] | None = None) -> int:
    """One visit, or the tables of several.

    Returns:
        The exit code.
    """
    began = time.monotonic()
    options = _options(arguments)
    try:
        if options.report:
            folders = [Folder.begun(path) for path in options.report]
            for folder in folders:
                if folder.settings.get("rehearse"):
                    plug_in(_stand_ins(folder.path))
            _report(folders, options.out)
            return 0
        if not (math.isfinite(options.minutes) and options.minutes > 0):
            raise UsageError(f"--minutes cannot be {options.minutes:g}", remedy="use a positive number")
        folder = Folder(options.out)
        asked = {name: getattr(options, name) for name in _DEFAULTS}
        if options.rehearse:
            models = write_models(_stand_ins(options.out))
            plug_in(_stand_ins(options.out))
            backend = asked["backend"] or usual_backend()
            asked = {**asked, **_REHEARSED, "models": asked["models"] or models, "backend": backend}
        folder.settle(asked, _DEFAULTS)
        _check(folder.settings)
        planned = stages(folder.settings["batch"])
        chosen = _chosen(
            options.stage, [rehearsed(one, asked["backend"]) for one in planned] if options.rehearse else planned
        )
        return _visit(folder, chosen, Clock(options.minutes * 60, began=began))
    except DlbricksError as error:
        print(f"visit: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the visits, or of the tables")
    parser.add_argument("--report", type=Path, nargs="+", metavar="DIR", help="only make the tables of these folders")
    parser.add_argument("--minutes", type=float, default=9.0, help="time of this visit")
    parser.add_argument("--rehearse", action="store_true", default=None, help="every stage on the CPU, with stand-ins")
    parser.add_argument("--stage", nargs="+", metavar="NAME", help="only these stages")
    group = parser.add_argument_group("settings of the first visit, which all later ones keep")
    group.add_argument("--models", nargs="+", metavar="NAME", help="default: the zoo without its exports")
    group.add_argument("--backend", help="default: torch")
    group.add_argument("--device", help="cpu or cuda, the default")
    group.add_argument("--option", dest="options", type=setting, nargs="+", metavar="NAME=VALUE")
    group.add_argument("--threads", type=int, help="default: 1")
    group.add_argument("--batch", type=int, nargs="+", help="larger batches; default: 16 64")
    group.add_argument("--processes", type=int, help="per stage; default: 2")
    group.add_argument("--sessions", type=int, help="per process; default: 2")
    group.add_argument("--visits", type=int, help="of each brick and model, in all; default: 24")
    found = parser.parse_args(arguments)
    found.options = dict(found.options) if found.options else None
    return found


def _stand_ins(visits: Path) -> Path:
    """Return the folder of models and backends of a rehearsal."""
    return visits.with_name(f"{visits.name}-models")


def _check(settings: Mapping[str, Any]) -> None:
    """Make sure that the settings make sense here, before they are kept."""
    names = ("backend", "device", "options", "threads", "processes", "sessions", "visits")
    MeasurementSettings.of({name: settings[name] for name in names}).check()
    get(settings["backend"]).stack(settings["device"], settings["options"])
    for source in find_models(settings["models"], batches=settings["batch"]):
        if source.problem is not None:
            raise UsageError(f"{source.name}: {source.problem}", remedy="give other --models")


def _chosen(asked: Sequence[str] | None, known: Sequence[Stage]) -> list[Stage]:
    unknown = set(asked or ()) - {stage.name for stage in known}
    if unknown:
        listed = ", ".join(stage.name for stage in known)
        raise UsageError(f"there is no stage {', '.join(sorted(unknown))}", remedy=f"there are {listed}")
    return [stage for stage in known if asked is None or stage.name in asked]


def _visit(folder: Folder, chosen: Sequence[Stage], clock: Clock) -> int:
    """Execute the stages twice: with their own time each, then with the remaining time."""
    noted = folder.begin(clock.total_s / 60)
    with tempfile.TemporaryDirectory(prefix="dlbricks-visit-") as work:
        visit = Visit(folder, clock, Path(work))
        records: dict[str, Record] = {}
        try:
            for last in (False, True):
                for stage in chosen:
                    records[stage.name] = _go_on(visit, stage, noted, last=last)
            over = sum(record.ended for record in records.values())
            noted["ended"] = "done" if over == len(chosen) else "no time for another stage"
            with clock.alarm(clock.total_s - clock.spent_s):
                _report([folder], None)
        except TimeUp as end:
            noted["ended"] = str(end)
        except DlbricksError as error:
            noted["ended"] = str(error)
            raise
        finally:
            noted["seconds"] = round(clock.spent_s, 1)
            folder.save()
    over = sum(record.ended for record in records.values())
    _say(f"{noted['seconds']} s, {noted['ended']}; {over} of {len(chosen)} stages are over")
    tried = [record for name, record in records.items() if name != "stack"]
    if tried and all(record.status == "failed" for record in tried):
        return 1
    return 0 if over == len(chosen) else 3


def _go_on(visit: Visit, stage: Stage, noted: dict[str, Any], *, last: bool) -> Record:
    """Give a stage its time, if enough is left; return the outcome.

    Raises:
        Terminated: The process was asked to end.
    """
    allowed_s = visit.clock.left_s if last else min(visit.clock.left_s, stage.seconds)
    record = visit.record(stage)
    tried = last and stage.name in noted["stages"] and record.status != "open"
    if tried or record.status == "done" or (stage.kind != "stack" and not record.stack):
        return record  # or refused already: there is no such stack
    if stage.kind != "stack" and allowed_s < visit.clock.least_s:
        return record
    began = time.monotonic()
    record.status, record.reason = "open", ""
    _say(f"{stage.name}: at most {allowed_s:.0f} s")
    try:
        with visit.clock.alarm(allowed_s + OVER_S):
            do(visit, stage, record, allowed_s)
    except Terminated:
        raise
    except TimeUp:
        record.reason = "stopped: its time was up"
    except DlbricksError as error:
        record.status, record.reason = "refused" if isinstance(error, UsageError) else "failed", str(error)
        if isinstance(error, MachineBusy) or (
            isinstance(error, BackendUnavailable) and not stage.options and stage.backend is None
        ):
            raise  # no other stage will fare better
    except Exception as error:  # noqa: BLE001  # a fault costs its stage, not a visit that is seldom to be had
        record.status, record.reason = "failed", f"unexpected {type(error).__name__}: {error}"
        traceback.print_exc()
    finally:
        seconds = time.monotonic() - began
        record.seconds = round(record.seconds + seconds, 1)
        noted["stages"][stage.name] = round(noted["stages"].get(stage.name, 0) + seconds, 1)
        visit.folder.save()
    _say(f"{stage.name}: {record.status}, {seconds:.1f} s {record.reason}")
    return record


def _report(folders: Sequence[Folder], out: Path | None) -> None:
    """Write the tables of some folders; of one, into itself."""
    found = results(folders)
    if out is None:
        (folder,) = folders
        folder.results = found
        (folder.path / "results.md").write_text(markdown(found))
        return
    write(out / "results.json", {"schema": 1, **found}, f"{out} has the tables")
    (out / "results.md").write_text(markdown(found))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
