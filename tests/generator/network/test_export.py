"""Files appear whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from dlbricks.generator.network.export import write_file


def test_the_file_behind_a_link_is_written_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("page")

    for text in (b"one", b"another"):
        assert write_file(tmp_path / "link", text) == len(text)
        assert (tmp_path / "page").read_bytes() == text

    assert (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"link", "page"}


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read = list[bytes]()
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()

    (tmp_path / "link").symlink_to("pipe")

    write_file(tmp_path / "link", b"text")

    reader.join()
    assert read == [b"text"]
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
