"""Commands about the database: what it holds, its export, its merge, its upgrade."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..analyzer.report.tables import Answer
from .console import answer
from .models import PLACE, binding_options, take_models
from .options import database_option, format_options, suite_option

__all__ = ["db"]


@click.group()
def db() -> None:
    """The database of measurements."""


@db.command("info")
@database_option
@format_options
def db_info(*, database: str, form: str) -> None:
    """What a database holds.

    \b
    Example:
        dlbricks db info
    """
    from ..analyzer.report.answers.resources import database_answer
    from ..db import Store

    with Store.open(database, create=False, read_only=True) as store:
        answer(database_answer(store), form)


@db.command("export")
@click.argument("file", type=PLACE)
@click.option(
    "--to", "kind", type=click.Choice(["csv", "parquet", "sqlite"]),
    help="What to write; where not given, by the file's ending.",
)  # fmt: skip
@click.option("--measurements-only", is_flag=True, help="Nothing that names a model, a host or a path.")
@click.option("--node", metavar="NAME", help="Only what was measured on this node.")
@suite_option
@click.option("--with", "models", multiple=True, metavar="MODEL", help="Name this model and its bricks; repeatable.")
@binding_options
@database_option
@format_options
def db_export(
    *,
    file: Path,
    kind: str | None,
    measurements_only: bool,
    node: str | None,
    suite: Path | None,
    database: str,
    form: str,
    **options: Any,
) -> None:
    """Write the measurements to a new file: a table (.csv, .parquet) or a database (.db) to hand on.

    \b
    Example:
        dlbricks db export latencies.db --measurements-only
    """
    from ..analyzer.report.naming import names_of
    from ..db import Store, export

    models = take_models(options)
    named = names_of(suite, models) if suite is not None or models else None
    with Store.open(database, create=False, read_only=True) as store:
        count = export(store, file, format=kind, measurements_only=measurements_only, named=named, node=node)
    answer(Answer([{"file": str(file), "measurements": count}], summary=[f"{file}: {count} measurements"]), form)


@db.command("merge")
@click.argument("other", metavar="FILE|URL")
@click.option("--node", metavar="NAME", help="Only what was measured on this node.")
@database_option
@format_options
def db_merge(*, other: str, node: str | None, database: str, form: str) -> None:
    """Add what another database holds; doing it twice adds nothing.

    \b
    Example:
        dlbricks db merge latencies.db
    """
    from ..analyzer.report.answers.resources import merge_answer
    from ..db import merge
    from ..db.provisional import open_for_results

    with open_for_results(database) as store:
        answer(merge_answer(merge(store, other, node=node)), form)


@db.command("upgrade")
@database_option
@format_options
def db_upgrade(*, database: str, form: str) -> None:
    """Bring a database of an older dlbricks up to date.

    \b
    Example:
        dlbricks db upgrade
    """
    from ..db import upgrade

    done = upgrade(database)
    text = "up to date already" if done.before == done.after else f"upgraded to {done.after}"
    answer(Answer([{"before": done.before, "after": done.after}], summary=[f"{database}: {text}"]), form)
