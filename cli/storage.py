"""Commands about databases and manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..analyzer.report.tables import Answer
from . import options as shared
from .console import answer, most_rows, watched
from .models import NEW_FILE, PLACE, binding_options, custom_ops_option, flag, option, take_models


@click.group()
def db() -> None:
    """Show, export, merge or upgrade a database of measurements."""


@db.command("info")
@shared.stored_options
def db_info(*, database: str) -> None:
    """Show the contents of a database.

    \b
    Example:
        dlbricks db info
    """
    from ..analyzer.report.answers.resources import database_answer
    from ..db import Store

    with Store.open(database, create=False, read_only=True) as store:
        answer(database_answer(store))


@db.command("export")
@click.argument("file", type=NEW_FILE)
@option("--to kind", "Format; else by the file's ending.", click.Choice(['csv', 'parquet', 'sqlite']))  # fmt: skip
@flag("--measurements-only", "Nothing that names a model, a host or a path.")
@option("--node", "Only measurements of this node.")
@shared.suite_option
@option("--with models", "Name this model and its bricks; repeatable.", multiple=True, metavar="MODEL")
@binding_options
@shared.stored_options
def db_export(*, file: Path, kind: str | None, suite: Path | None, database: str, **options: Any) -> None:
    """Export measurements to a new file: a table (.csv, .parquet) or a database (.db).

    \b
    Example:
        dlbricks db export latencies.db --measurements-only
    """
    from ..analyzer.report.answers.generation import names_of
    from ..db import Store, export

    models = take_models(options)
    named = names_of(suite, models) if suite is not None or models else None
    with Store.open(database, create=False, read_only=True) as store:
        count = export(store, file, format=kind, named=named, **options)
    answer(Answer([{"file": str(file), "measurements": count}], summary=[f"{file}: {count} measurements"]))


@db.command("merge")
@click.argument("other", metavar="FILE|URL")
@option("--node", "Only measurements of this node.")
@shared.stored_options
def db_merge(*, other: str, node: str | None, database: str) -> None:
    """Merge another database into this one. A repeated call adds nothing.

    \b
    Example:
        dlbricks db merge latencies.db
    """
    from ..analyzer.report.answers.resources import merge_answer
    from ..db import merge
    from ..db.merging import open_for_results

    with open_for_results(database) as store:
        answer(merge_answer(merge(store, other, node=node)))


@db.command("upgrade")
@shared.stored_options
def db_upgrade(*, database: str) -> None:
    """Bring a database of an older dlbricks up to date.

    \b
    Example:
        dlbricks db upgrade
    """
    from ..db import upgrade

    done = upgrade(database)
    text = "up to date already" if done.before == done.after else f"upgraded to {done.after}"
    answer(Answer([{"before": done.before, "after": done.after}], summary=[f"{database}: {text}"]))


@click.command()
@shared.suite_argument
@option("-o --out", "The manifest; an existing file is replaced.", NEW_FILE, required=True)
@option("--run", "The run (an id or its beginning); else the newest finished one.", metavar="ID")
@flag("--hashes", "Ask pip for missing hashes of wheels.")
@shared.measured_options
@shared.stored_options
def manifest(*, suite: Path, out: Path, database: str, **options: Any) -> None:
    """Write a run, its suite and its environment to one file, for others to reproduce.

    \b
    Example:
        dlbricks manifest suite -o results.zip --hashes
    """
    from ..analyzer.manifests.manifest import manifest as make
    from ..analyzer.report.answers.reproduction import manifest_answer
    from ..db import Store

    with Store.open(database, create=False, read_only=True) as store:
        written = make(suite, out, store=store, **options)
    answer(manifest_answer(written, out), complete=written.complete)


@click.command()
@click.argument("file", type=PLACE, metavar="FILE")
@option("--suite", "Measure this copy of the suite, which must be the same.", PLACE, metavar="SUITE")
@flag("--here", "Measure in this environment, instead of one made from the lock file.")
@option("--lock", "Make the environment from this pylock.toml instead.", PLACE, metavar="FILE")
@custom_ops_option
@flag("--dry-run", "Only name differences; install and measure nothing.")
@option("-o --out", "Also write a manifest of the new measurements.", NEW_FILE)
@shared.effect_option
@option(
    "--fail-on",
    "End with exit code 4 if a brick has this verdict; repeatable.",
    click.Choice(["slower", "faster", "unclear"]),
    multiple=True,
)
@shared.all_option
@shared.quiet_option
@shared.wait_option
@shared.format_options
def reproduce(*, file: Path, fail_on: tuple[str, ...], **options: Any) -> None:
    """Repeat the measurements of a manifest in its environment, and compare; name all differences.

    \b
    Example:
        dlbricks reproduce results.zip
    """
    from ..analyzer.manifests.reproduce import reproduce as again
    from ..analyzer.report.answers.reproduction import reproduction_answer
    from ..errors import UsageError

    if options["here"] and options["lock"] is not None:
        raise UsageError("--here takes this environment, --lock another one", remedy="leave out one")
    with watched() as progress:
        reproduction = again(file, progress=progress, **options)
    crossed = any(str(verdict).lower() in fail_on for verdict in reproduction.verdicts)
    answer(reproduction_answer(reproduction, most=most_rows()), complete=reproduction.complete, crossed=crossed)
