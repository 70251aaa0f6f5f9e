"""Commands of a fleet: campaigns, workers, status."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from . import options as shared
from .console import answer, is_quiet, note
from .models import PLACE, flag, option, seconds, share


@click.group()
def fleet() -> None:
    """Many machines that measure into one PostgreSQL database."""


@fleet.command("plan")
@click.argument("campaign", type=PLACE, metavar="CAMPAIGN.toml")
@flag("--dry-run", "Only show the queue; change nothing.")
@shared.stored_options
def fleet_plan(*, campaign: Path, dry_run: bool, database: str) -> None:
    """Queue the measurements of a campaign that are missing. A repeated call adds nothing.

    \b
    Example:
        dlbricks fleet plan november.toml
    """
    from ..analyzer.report.answers.runs import plan_answer
    from ..generator.fleet.campaign import load_campaign
    from ..generator.fleet.planning import plan

    answer(plan_answer(plan(load_campaign(campaign), database, dry_run=dry_run)))


@fleet.command("work")
@option(
    "--node",
    "Name of this machine in the campaign's file.",
    envvar="DLBRICKS_NODE",
    show_default="$DLBRICKS_NODE",
)
@option(
    "--state",
    "Local folder for results that are not pushed yet; for this node alone.",
    PLACE,
    metavar="DIR",
    show_default="dlbricks/NODE in $STATE_DIRECTORY, $XDG_STATE_HOME or ~/.local/state",
)
@flag("--once", "One job, then end.")
@flag("--drain", "End when the queue is empty.")
@option(
    "--busy", "Largest share of the processors in use by other processes when measuring begins.", share, default="5%"
)
@option("--patience patience_s", "How long a job waits for a quiet machine before it fails.", seconds, default="30m")
@option("--poll poll_s", "Time between two looks at an empty queue.", seconds, default="10s")
@flag("--take-over", "Take the name over from a machine that is gone.")
@shared.quiet_option
@shared.stored_options
def fleet_work(*, node: str | None, state: Path | None, once: bool, drain: bool, database: str, **how: Any) -> None:
    """Measure the queued jobs of this machine until SIGTERM.

    \b
    Example:
        dlbricks fleet work --node alpha --drain
    """
    if not node:
        raise UsageError("a worker needs the name of its node", remedy="give --node, or set DLBRICKS_NODE")
    from ..analyzer.report.answers.runs import work_answer
    from ..generator.fleet.job_worker import FleetNode, work

    here = FleetNode(name=node, url=database, state=state or _state() / node, **how)
    done = work(here, most=1 if once else None, drain=drain, note=(lambda _text: None) if is_quiet() else note)
    answer(work_answer(done), complete=all(job.complete for job in done))


def _state() -> Path:
    """Return the state folder of a systemd service, or of the user."""
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    home = os.environ.get("XDG_STATE_HOME")
    return Path(service or home or Path.home() / ".local" / "state") / "dlbricks"


@fleet.command("status")
@option("--campaign", "Only this campaign.")
@shared.stored_options
def fleet_status(*, campaign: str | None, database: str) -> None:
    """Show the progress of campaigns, the nodes, the failures, and the expected end.

    \b
    Example:
        dlbricks fleet status
    """
    from ..analyzer.report.answers.runs import status_answer
    from ..generator.fleet.status import fleet_status as status

    answer(status_answer(status(database, campaign=campaign)))
