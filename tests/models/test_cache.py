"""The cache folder: without it, and without a home, nothing is kept and nothing fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dlbricks.models.cache import cache_folder, keep, kept


def _write(folder: Path) -> None:
    (folder / "entry").write_text("x")


def test_an_entry_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path))

    keep("kind", "name", _write)

    folder = kept("kind", "name")
    assert folder is not None
    assert (folder / "entry").read_text() == "x"


@pytest.mark.parametrize("fault", ["a file", "no access", "no entry to read", "no home"])
def test_nothing_is_kept_where_nothing_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path))
    keep("kind", "name", _write)

    def refused(*_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    if fault == "a file":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path / "file"))
    elif fault == "no access":
        monkeypatch.setattr(Path, "is_dir", refused)
        monkeypatch.setattr(Path, "mkdir", refused)
    elif fault == "no entry to read":
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        monkeypatch.delenv("DLBRICKS_CACHE")
        monkeypatch.setattr(Path, "home", homeless)

    keep("kind", "name", _write)
    assert kept("kind", "name") is None
    assert isinstance(cache_folder(), Path)
