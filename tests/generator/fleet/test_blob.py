"""Suites and lock files on their way: what arrives is what its hash says, or nothing is kept."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest
from dlbricks.bricks.suite.suite import Suite
from dlbricks.errors import SuiteError
from dlbricks.generator.fleet.blob import fetched_lock, fetched_suite, keep_lock, keep_suite, pack_lock, pack_suite


def test_a_suite_arrives_as_it_was(small_suite, tmp_path):
    data = pack_suite(small_suite)

    assert fetched_suite(tmp_path, small_suite.hash) is None
    place = keep_suite(tmp_path, small_suite.hash, data)

    assert fetched_suite(tmp_path, small_suite.hash) == place
    arrived = Suite.open(place)
    assert (arrived.hash, arrived.keys) == (small_suite.hash, small_suite.keys)
    assert [arrived.brick_path(key).read_bytes() for key in arrived.keys] == [
        small_suite.brick_path(key).read_bytes() for key in small_suite.keys
    ]
    assert data == pack_suite(small_suite)
    assert [path.name for path in tmp_path.iterdir()] == [small_suite.hash]


def archive(*entries: tuple[str, bytes], link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for name, data in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            if link:
                entry.type, entry.linkname, entry.size = tarfile.SYMTYPE, link, 0
            packed.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def test_a_damaged_copy_is_fetched_again_and_not_sent(small_suite, tmp_path):
    place = keep_suite(tmp_path, small_suite.hash, pack_suite(small_suite))
    brick = Suite.open(place).brick_path(small_suite.keys[0])
    whole = brick.read_bytes()
    for damaged in (brick, place / "manifest.json"):
        damaged.write_bytes(whole[:-1])
        assert fetched_suite(tmp_path, small_suite.hash) is None
        if damaged is brick:
            with pytest.raises(SuiteError, match="not the file that the suite's manifest names"):
                pack_suite(Suite.open(place))
            brick.write_bytes(whole)
            assert fetched_suite(tmp_path, small_suite.hash) == place

    keep_suite(tmp_path, small_suite.hash, pack_suite(small_suite))

    assert fetched_suite(tmp_path, small_suite.hash) == place


@pytest.mark.parametrize(
    ("name", "link"),
    [("../evil", ""), ("/tmp/evil", ""), ("bricks/../../evil.onnx", ""), ("evil.py", ""), ("bricks/a/b.onnx", ""),
     ("manifest.json", "/etc/passwd")],
)  # fmt: skip
def test_nothing_in_an_archive_chooses_where_it_goes(tmp_path, name, link):
    with pytest.raises(SuiteError, match="no part of a suite"):
        keep_suite(tmp_path / "suites", "0" * 64, archive((name, b"x"), link=link))

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_another_suite_and_altered_bricks_are_refused(small_suite, tmp_path):
    data = pack_suite(small_suite)
    with pytest.raises(SuiteError, match="is another one"):
        keep_suite(tmp_path, "0" * 64, data)
    manifest = ("manifest.json", (small_suite.path / "manifest.json").read_bytes())
    bricks = [(f"bricks/{key}.onnx", small_suite.brick_path(key).read_bytes()) for key in small_suite.keys]
    altered = [(bricks[0][0], bricks[0][1] + b"x"), *bricks[1:]]
    for entries in ([manifest, *altered], [manifest, *bricks[1:]]):
        with pytest.raises(SuiteError, match="cannot be unpacked"):
            keep_suite(tmp_path, small_suite.hash, archive(*entries))
    with pytest.raises(SuiteError, match="cannot be unpacked"):
        keep_suite(tmp_path, small_suite.hash, data[: len(data) // 2])

    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_arrives_as_it_was(tmp_path):
    lock = tmp_path / "pylock.toml"
    lock.write_text('lock-version = "1.0"\n')
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    folder = tmp_path / "locks"

    assert fetched_lock(folder, digest) is None
    place = keep_lock(folder, digest, pack_lock(lock, digest))

    assert fetched_lock(folder, digest) == place
    assert place.read_bytes() == lock.read_bytes()
    assert place.name.startswith("pylock.")
    place.write_text("altered")
    assert fetched_lock(folder, digest) is None
    with pytest.raises(SuiteError, match="is another one"):
        keep_lock(folder, digest, b"altered")
    lock.write_text("changed")
    with pytest.raises(SuiteError, match="changed while it was read"):
        pack_lock(lock, digest)
