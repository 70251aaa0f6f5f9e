"""Commands about databases and manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..analyzer.report.tables import MOST, Answer
from .console import Reporter, answer
from .models import NEW_FILE, PLACE, binding_options, custom_ops_option, share, take_models
from .options import (
    all_option,
    database_option,
    format_options,
    measured_options,
    quiet_option,
    suite_argument,
    suite_option,
    wait_option,
)


@click.group()
def db() -> None:
    """Show, export, merge or upgrade a database of measurements."""


@db.command("info")
@database_option
@format_options
def db_info(*, database: str, form: str) -> None:
    """Show the contents of a database.

    \b
    Example:
        dlbricks db info
    """
    from ..analyzer.report.answers.resources import database_answer
    from ..db import Store

    with Store.open(database, create=False, read_only=True) as store:
        answer(database_answer(store), form)


@db.command("export")
@click.argument("file", type=NEW_FILE)
@click.option(
    "--to", "kind", type=click.Choice(["csv", "parquet", "sqlite"]),
    help="Format; else by the file's ending.",
)  # fmt: skip
@click.option("--measurements-only", is_flag=True, help="Nothing that names a model, a host or a path.")
@click.option("--node", metavar="NAME", help="Only measurements of this node.")
@suite_option
@click.option("--with", "models", multiple=True, metavar="MODEL", help="Name this model and its bricks; repeatable.")
@binding_options
@database_option
@format_options
def db_export(*, file: Path, kind: str | None, suite: Path | None, database: str, form: str, **options: Any) -> None:
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
    answer(Answer([{"file": str(file), "measurements": count}], summary=[f"{file}: {count} measurements"]), form)


@db.command("merge")
@click.argument("other", metavar="FILE|URL")
@click.option("--node", metavar="NAME", help="Only measurements of this node.")
@database_option
@format_options
def db_merge(*, other: str, node: str | None, database: str, form: str) -> None:
    """Merge another database into this one. A repeated call adds nothing.

    \b
    Example:
        dlbricks db merge latencies.db
    """
    from ..analyzer.report.answers.resources import merge_answer
    from ..db import merge
    from ..db.merging import open_for_results

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


@click.command()
@suite_argument
@click.option(
    "-o",
    "--out",
    type=NEW_FILE,
    required=True,
    metavar="FILE",
    help="The manifest; an existing file is replaced.",
)
@click.option("--run", metavar="ID", help="The run (an id or its beginning); else the newest finished one.")
@click.option("--hashes", is_flag=True, help="Ask pip for missing hashes of wheels.")
@measured_options
@database_option
@format_options
def manifest(*, suite: Path, out: Path, database: str, form: str, **options: Any) -> None:
    """Write a manifest of a measured suite, for others to reproduce.

    \b
    Example:
        dlbricks manifest suite -o results.json --hashes
    """
    from ..analyzer.manifests.manifest import manifest as make
    from ..analyzer.report.answers.reproduction import manifest_answer
    from ..db import Store

    with Store.open(database, create=False, read_only=True) as store:
        made = make(suite, store=store, **options)
    made.write(out)
    answer(manifest_answer(made, out), form, complete=made.complete)


@click.command()
@click.argument("file", type=PLACE, metavar="FILE")
@click.option("--suite", type=PLACE, required=True, metavar="SUITE", help="The suite that the manifest is about.")
@click.option("--here", is_flag=True, help="Measure in this environment, instead of one made from the lock file.")
@click.option("--lock", type=PLACE, metavar="FILE", help="Make the environment from this pylock.toml instead.")
@custom_ops_option
@click.option("--dry-run", is_flag=True, help="Only name differences; install and measure nothing.")
@click.option(
    "-o",
    "--out",
    type=NEW_FILE,
    metavar="FILE",
    help="Also write a manifest of the new measurements.",
)
@click.option(
    "--minimum-effect",
    type=share,
    default="15%",
    show_default=True,
    metavar="SHARE",
    help="Difference that matters, for example 3% or 0.03; anything less is SAME.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["slower", "faster", "unclear"]),
    multiple=True,
    help="End with exit code 4 if a brick has this verdict; repeatable.",
)
@all_option
@quiet_option
@wait_option
@format_options
def reproduce(
    *, file: Path, out: Path | None, fail_on: tuple[str, ...], every: bool, quiet: bool, form: str, **options: Any
) -> None:
    """Repeat the measurements of a manifest in its environment, and compare; name all differences.

    \b
    Example:
        dlbricks reproduce results.json --suite suite
    """
    from ..analyzer.manifests.reproduce import reproduce as again
    from ..analyzer.report.answers.reproduction import reproduction_answer
    from ..errors import UsageError

    if options["here"] and options["lock"] is not None:
        raise UsageError("--here takes this environment, --lock another one", remedy="leave out one")
    with Reporter(quiet=quiet) as progress:
        found = again(file, progress=progress, **options)
    result = reproduction_answer(found, most=None if every else MOST)
    if out is not None and found.manifest is not None:
        try:
            found.manifest.write(out)
        except OSError:
            answer(result, form)  # what took so long to measure does not end with the file
            raise
    crossed = any(str(verdict).lower() in fail_on for verdict in found.verdicts)
    answer(result, form, complete=found.complete, crossed=crossed)
