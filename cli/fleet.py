"""Commands of a fleet: campaigns, workers, status."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from .console import answer, note
from .models import PLACE, seconds, share
from .options import database_option, format_options, quiet_option


@click.group()
def fleet() -> None:
    """Many machines that measure into one PostgreSQL database."""


@fleet.command("plan")
@click.argument("campaign", type=PLACE, metavar="CAMPAIGN.toml")
@click.option("--dry-run", is_flag=True, help="Only show the queue; change nothing.")
@database_option
@format_options
def fleet_plan(*, campaign: Path, dry_run: bool, database: str, form: str) -> None:
    """Queue the measurements of a campaign that are missing. A repeated call adds nothing.

    \b
    Example:
        dlbricks fleet plan november.toml
    """
    from ..analyzer.report.answers.fleet import plan_answer
    from ..generator.fleet.campaign import load_campaign
    from ..generator.fleet.planning import plan

    answer(plan_answer(plan(load_campaign(campaign), database, dry_run=dry_run)), form)


@fleet.command("work")
@click.option(
    "--node",
    envvar="DLBRICKS_NODE",
    metavar="NAME",
    show_default="$DLBRICKS_NODE",
    help="Name of this machine in the campaign's file.",
)
@click.option(
    "--state",
    type=PLACE,
    metavar="DIR",
    show_default="dlbricks/NODE in $STATE_DIRECTORY, $XDG_STATE_HOME or ~/.local/state",
    help="Local folder for results that are not pushed yet; for this node alone.",
)
@click.option("--once", is_flag=True, help="One job, then end.")
@click.option("--drain", is_flag=True, help="End when the queue is empty.")
@click.option(
    "--busy",
    type=share,
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="Largest share of the processors in use by other processes when measuring begins.",
)
@click.option(
    "--patience",
    "patience_s",
    type=seconds,
    default="30m",
    show_default=True,
    metavar="TIME",
    help="How long a job waits for a quiet machine before it fails.",
)
@click.option(
    "--poll",
    "poll_s",
    type=seconds,
    default="10s",
    show_default=True,
    metavar="TIME",
    help="Time between two looks at an empty queue.",
)
@click.option("--take-over", is_flag=True, help="Take the name over from a machine that is gone.")
@quiet_option
@database_option
@format_options
def fleet_work(
    *, node: str | None, state: Path | None, once: bool, drain: bool, quiet: bool, database: str, form: str, **how: Any
) -> None:
    """Measure the queued jobs of this machine until SIGTERM.

    \b
    Example:
        dlbricks fleet work --node alpha --drain
    """
    if not node:
        raise UsageError("a worker needs the name of its node", remedy="give --node, or set DLBRICKS_NODE")
    from ..analyzer.report.answers.fleet import work_answer
    from ..generator.fleet.worker import FleetNode, work

    here = FleetNode(name=node, url=database, state=state or _state() / node, **how)
    done = work(here, most=1 if once else None, drain=drain, note=(lambda _text: None) if quiet else note)
    answer(work_answer(done), form, complete=all(job.complete for job in done))


def _state() -> Path:
    """Return the state folder of a systemd service, or of the user."""
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    home = os.environ.get("XDG_STATE_HOME")
    return Path(service or home or Path.home() / ".local" / "state") / "dlbricks"


@fleet.command("status")
@click.option("--campaign", metavar="NAME", help="Only this campaign.")
@database_option
@format_options
def fleet_status(*, campaign: str | None, database: str, form: str) -> None:
    """Show the progress of campaigns, the nodes, the failures, and the expected end.

    \b
    Example:
        dlbricks fleet status
    """
    from ..analyzer.report.answers.fleet import status_answer
    from ..generator.fleet.status import fleet_status as status

    answer(status_answer(status(database, campaign=campaign)), form)
