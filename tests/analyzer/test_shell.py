"""Tasks as commands: what is printed is what the command line takes."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import click
import pytest
from dlbricks.analyzer.shell import shell_command, shell_steps
from dlbricks.cli import commands
from dlbricks.constructor.remedies import Task, TaskKind
from dlbricks.models import ModelSource

MODEL = ModelSource("a b", Path("my models/a b.onnx"), None, batch=4, dims=(("length", 128),))
WHOLE = Task(
    TaskKind.BRICKS, MODEL, "my home.db", 3, connected=True, graph="runtime",
    backend="onnxruntime", device="cpu", options=(("optimization", "basic"),), threads=2, cache="model", dtype="int8",
    algorithms=("unfused", "extended"), again="failed", kernels=True,
)  # fmt: skip


def test_bricks_are_generated_and_run() -> None:
    generate, run = shell_steps(WHOLE)

    suite = re.search(r"-o (suite-g3-[0-9a-f]{8})$", generate)
    assert suite is not None
    assert generate == (
        "dlbricks generate 'my models/a b.onnx' --batch 4 --dim length=128 -g 3 --connected --graph runtime "
        f"--option optimization=basic -o {suite[1]}"
    )
    assert run == (
        f"dlbricks run {suite[1]} --backend onnxruntime --device cpu --option optimization=basic --threads 2 "
        "--cache model --dtype int8 --algorithm unfused --algorithm extended --db 'my home.db' --again failed --kernels"
    )
    assert shell_command(WHOLE) == f"{generate} && {run}"


def test_a_suite_has_a_name_for_how_it_is_cut() -> None:
    zoo = ModelSource("m", None, "m")
    names = {
        shlex.split(shell_steps(Task(TaskKind.BRICKS, zoo, **more))[0])[-1]
        for more in (
            {},
            {"overlap": True},
            {"graph": "fused"},
            {"granularity": 2},
            {"graph": "fused", "device": "cuda"},
        )
    }

    assert len(names) == 5


def test_models_and_proofs_are_commands_of_their_own() -> None:
    zoo = ModelSource("m", None, "m")

    assert [shell_command(Task(kind, zoo)) for kind in (TaskKind.MODEL, TaskKind.PROOFS)] == [
        "dlbricks measure m",
        "dlbricks analyze m --prove --write improved",
    ]


@pytest.mark.parametrize("kind", TaskKind)
def test_every_command_and_option_is_one_that_the_command_line_has(kind: TaskKind) -> None:
    task = {
        TaskKind.BRICKS: WHOLE,
        TaskKind.CEILINGS: Task(kind, database="my home.db", threads=2, dtype="int8"),
        TaskKind.PROOFS: Task(kind, MODEL),
    }.get(kind, replace(WHOLE, kind=kind, algorithms=(), again=None))

    for step in shell_steps(task):
        program, name, *words = shlex.split(step)
        command = commands.commands[name]
        known = {option for one in command.params if isinstance(one, click.Option) for option in one.opts}

        assert program == "dlbricks"
        assert {word for word in words if word.startswith("-")} <= known
