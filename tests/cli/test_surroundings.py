"""Closed streams, signals, and temporary files of processes that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dlbricks.cli.surroundings import Ended

_COMMANDS = sys.modules["dlbricks.cli.commands"]
_PREPARED = "import os, signal, tempfile; from dlbricks.cli.surroundings import prepare; prepare(); "


def _python(program: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.run([sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True)  # noqa: PLW1510


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&-"])
def test_a_closed_stream_is_no_reason_to_fail(closed):
    command = ["sh", "-c", f'exec "$0" -P -m dlbricks models list {closed}', sys.executable]

    done = subprocess.run(command, capture_output=True, text=True)  # noqa: PLW1510

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_a_command_in_order(number, tmp_path, monkeypatch, capsys):
    usual = f"import signal; signal.signal({int(number)}, signal.SIG_DFL); "  # a test may run where it is ignored
    done = _python(f"{usual}{_PREPARED} os.kill(os.getpid(), {int(number)})", tmp_path)
    assert "Ended" in done.stderr
    assert not list(tmp_path.iterdir())

    def ended(**_: object) -> None:
        raise Ended(number)

    monkeypatch.setattr(_COMMANDS, "prepare", lambda: None)
    monkeypatch.setattr(_COMMANDS.commands, "main", ended)
    with pytest.raises(SystemExit) as exit_info:
        _COMMANDS.main()
    assert exit_info.value.code == 128 + number
    assert f"interrupted by {number.name}" in capsys.readouterr().err


def test_folders_of_killed_processes_are_removed_and_others_stay(tmp_path):
    _python(f"{_PREPARED} tempfile.mkdtemp(); os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    (left,) = tmp_path.iterdir()
    living = subprocess.Popen(
        [sys.executable, "-P", "-c", f"{_PREPARED} print(tempfile.gettempdir(), flush=True); input()"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert living.stdout is not None
    used = Path(living.stdout.readline().strip())
    for folder in (left, used):
        os.utime(folder, (0, 0))

    done = _python(f"{_PREPARED} print(tempfile.gettempdir())", tmp_path)

    assert not left.exists()
    assert used.exists()
    assert not Path(done.stdout.strip()).exists()
    living.communicate("\n")
    assert not list(tmp_path.iterdir())
