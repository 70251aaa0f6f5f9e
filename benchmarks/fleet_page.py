"""The page that ``benchmarks/fleet.py`` writes: each figure beside what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Figures = dict[str, Any]

_WITHOUT_NODES = {"planning", "rows"}


def page(found: Figures) -> str:
    """``fleet.md``: each figure beside what was asked for; what was not measured says so."""
    rows = [
        "# What a fleet costs, and what it survives",
        "",
        "Written by `python benchmarks/fleet.py` (what each part does stands there), from [fleet.json](fleet.json).",
        "",
        "| | measured | asked for |",
        "|---|---|---|",
    ]
    lines: list[tuple[str, str, Callable[[Figures], str], str]] = [
        (
            "beside", "with the worker beside it / without",
            lambda f: f"{f['median_ratio']:.4f}, 95 % {f['ci95'][0]:.4f} to {f['ci95'][1]:.4f}, "
            f"{f['subjects']} subjects in {f['rounds']} rounds; "
            f"the worker ran {f['wakeups_of_the_worker']} times in {f['watched']} jobs",
            "interval inside 0.98 to 1.02; no wake-up",
        ),
        (
            "overhead", "overhead of a job",
            lambda f: f"{f['10_bricks']['overhead_per_job_s']:.2f} s, {f['per_brick_ms']:.2f} ms more per brick; "
            f"{f['pushed_per_s']:.0f} measurements/s pushed",
            "2 s, 4 ms at 500 bricks, 500/s",
        ),
        (
            "scaling", "bricks/s, 8 sleeping nodes against 1",
            lambda f: f"{f['ratio']:.2f} times ({f['bricks_per_s']['1']:.2f} and {f['bricks_per_s']['8']:.2f}/s, "
            f"{f['jobs']} job(s) each, {f['sleep_ms']} ms per execution)",
            "7.6",
        ),
        (
            "kills", "random SIGKILLs",
            lambda f: f"{sum(f['kills'].values())} ({', '.join(f'{n} {k}' for k, n in f['kills'].items())}): "
            f"{f['blocks_lost']} of {f['blocks_seen_before_kills']} blocks lost, {f['bricks_doubled']} bricks doubled, "
            f"{f['bricks_stored']} of {f['bricks_expected']} stored, {f['failures']} failures, cells "
            f"{', '.join(f'{n} {s}' for s, n in f['states'].items())}",
            "100: nothing lost or doubled, every cell ends",
        ),
        (
            "outage", "server and link down",
            lambda f: "; ".join(
                f"{what} {one['down_s']:.0f} s: pushed {one['pushed_after_s']:.1f} s after, {one['blocks_lost']} of "
                f"{one['blocks']} blocks lost" for what, one in f.items() if what != "about"
            ),
            "600 s and 60 s: no sample lost, pushed within 30 s",
        ),
        (
            "recovery", "restart until bricks run again",
            lambda f: f"median {f['median_s']:.1f} s, worst {f['worst_s']:.1f} s of {f['restarts']}", "10 s",
        ),
        (
            "planning", "planning 1,000 cells twice",
            lambda f: f"{f['first']['new']} jobs in {f['first']['seconds']:.1f} s, then {f['again']['new']} in "
            f"{f['again']['seconds']:.1f} s; {f['jobs']} jobs of {f['cells']} cells",
            "no new job",
        ),
        (
            "rows", "made-up measurements: estimates of 1,000 models; history of one",
            _of_rows,
            "of 1e7: 10 s, 1 s",
        ),
    ]  # fmt: skip
    notes = []
    for part, what, said, asked in lines:
        rows.append(f"| {what} | {said(found[part]) if part in found else 'not measured'} | {asked} |")
        if part in found:
            about = found[part]["about"]
            notes.append(
                f"- `{part}`: {about['date']}, {about['took_s']:.0f} s on {about['cores']} core(s) at nice "
                f"{about['nice']}, load {about['load_1m']}, {about['server']}, Python {about['python']}"
                f"{_network(part, about)}"
            )
    return "\n".join([*rows, "", "Measured", "", *notes, ""])


def _of_rows(found: Figures) -> str:
    """Commands as a user sees them, and of that the queries."""
    size, made_s = f"{found['database_bytes'] / 1e9:.1f} GB", f"{found['filled_s']:.0f} s"
    said = [f"{found['measurements']:,} measurements, {size}, made in {made_s}"]
    for name, what in (
        ("estimate", f"estimates of {found['models']} models ({found['sequences']} sequences)"),
        ("history", "history of one on all systems"),
        ("history_of_one", "on one"),
    ):
        one = found[name]
        said.append(
            f"{what}: {one['seconds']:.1f} s, worst {one['worst_s']:.1f}{_processor(one)}, "
            f"of that {one['queries']:.0f} queries {one['queries_s']:.1f} s"
        )
    return "; ".join(said)


def _processor(one: Figures) -> str:
    """What a command itself took of the processor, where that was noted."""
    return f" ({one['processor_s']:.1f} s of the processor without the server's)" if "processor_s" in one else ""


def _network(part: str, about: Figures) -> str:
    """Whether nodes had networks of their own; nothing where there were no nodes."""
    if part in _WITHOUT_NODES:
        return ""
    if "one_network" not in about:
        return "; nodes on one network"
    return (
        f"; nodes on one network: {about['one_network']}" if about["one_network"] else "; nodes in network namespaces"
    )
