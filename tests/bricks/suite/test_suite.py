"""The suite on disk: reproducible, private, verified, all or nothing."""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.boundary import BOUNDARY, Caches
from dlbricks.bricks.graph.footprint import REUSE_LEVELS
from dlbricks.bricks.graph.model_graph import ModelGraph
from dlbricks.bricks.suite import writing
from dlbricks.bricks.suite.brick import Brick, build_brick
from dlbricks.bricks.suite.suite import MANIFEST, Suite, read_bounded
from dlbricks.bricks.suite.writing import refuse_foreign
from dlbricks.errors import MissingBrick, SuiteError, TamperedBrick
from hypothesis import example, given
from hypothesis import strategies as st

SECRET = "secret_name"
CACHES = Caches(1 << 20, 16 << 20)


def write_suite(path: Path, bricks: dict[str, Brick], **how: Any) -> Suite:
    """A suite that was written, as another process finds it."""
    return Suite.open(writing.write_suite(path, bricks, **how).path)


@pytest.fixture(scope="module")
def bricks(parse_graph: Callable[[str], ModelGraph]) -> dict[str, Brick]:
    graph = parse_graph(
        f"{SECRET} (float[4] {SECRET}_in) => (float[4] {SECRET}_out) {{ [{SECRET}_node] t = Relu({SECRET}_in) "
        f"u = Tanh(t) {SECRET}_out = Add(u, u) }}"
    )
    return {sequence.key: build_brick(graph, sequence) for sequence in sequences(graph, 1)}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_what_was_written_is_read(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    written = write_suite(tmp_path / "suite", bricks, granularity=1)
    suite = Suite.open(tmp_path / "suite")
    assert suite == written
    assert suite.keys == tuple(sorted(bricks))
    assert (suite.granularity, suite.overlap, suite.connected, suite.annotations) == (1, False, False, None)
    assert {key: suite.brick(key) for key in suite.keys} == bricks
    assert suite.brick_path(suite.keys[0]).is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["suite"]


def test_the_same_bricks_give_the_same_bytes(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    one = write_suite(tmp_path / "one", bricks, granularity=1)
    other = write_suite(tmp_path / "other", dict(reversed(bricks.items())), granularity=1)
    assert tree(one.path) == tree(other.path)
    assert one.hash == other.hash
    assert write_suite(tmp_path / "third", bricks, granularity=2).hash != one.hash


def test_it_shows_nothing_of_its_models(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    suite = write_suite(tmp_path / "suite", bricks, granularity=1)
    for name, data in tree(suite.path).items():
        assert SECRET.encode() not in data, name


def test_annotations_only_where_asked_for(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    key = min(bricks)
    suite = write_suite(tmp_path / "suite", bricks, granularity=1, annotations={"b": {key: 2}, "a": {key: 1}})
    assert suite.annotations == {"a": {key: 1}, "b": {key: 2}}


def test_variants_for_typical_caches_are_those_of_the_nearest(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    first, second = sorted(bricks)[:2]
    typical = {first: {64 << 20: {"kept"}, 24 << 20: {"kept", "given"}}}
    suite = write_suite(tmp_path / "suite", bricks, granularity=1, graph="fused", typical=typical)

    assert suite.by_caches
    assert suite.caches is None
    sizes = (0, 24 << 20, 32 << 20, 48 << 20, 128 << 20)
    assert [len(suite.boundary(first, size)) for size in sizes] == [2, 2, 2, 1, 1]
    assert suite.boundary(second, 24 << 20) == ()


def test_bricks_at_the_boundary_are_noted_and_a_suite_without_them_stays_as_it_was(
    tmp_path: Path, bricks: dict[str, Brick]
) -> None:
    key = min(bricks)
    plain = write_suite(tmp_path / "plain", bricks, granularity=1)
    variants = {key: {"kept", "given-kept"}}
    suite = write_suite(tmp_path / "suite", bricks, granularity=1, boundary=variants, caches=CACHES)

    assert suite.caches == CACHES
    assert [suite.boundary(one) for one in sorted(bricks)[:2]] == [("given-kept", "kept"), ()]
    assert (plain.boundary(key), plain.caches) == ((), None)
    assert b"boundary" not in (plain.path / MANIFEST).read_bytes()
    assert write_suite(tmp_path / "none", bricks, granularity=1, boundary={}, caches=CACHES).hash == plain.hash


def test_each_brick_has_the_footprint_classes_of_its_models(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    one, *others = sorted(bricks)
    classes = {one: [REUSE_LEVELS[2], REUSE_LEVELS[0]]}
    suite = write_suite(tmp_path / "suite", bricks, granularity=1, distances=classes)
    assert suite.footprints(one) == (REUSE_LEVELS[0], REUSE_LEVELS[2])
    assert {suite.footprints(key) for key in others} == {REUSE_LEVELS}
    assert Suite.open(suite.path).footprints(one) == suite.footprints(one)


@pytest.mark.parametrize(
    ("noted", "classes"),
    [([4, 8, 32, 64, 128, 256], [8, 32, 64, 128]), ([], [size >> 20 for size in REUSE_LEVELS])],
    ids=str,
)
def test_distances_that_earlier_versions_noted_are_mapped_to_classes(
    tmp_path: Path, bricks: dict[str, Brick], noted: list[int], classes: list[int]
) -> None:
    folder = write_suite(tmp_path / "suite", bricks, granularity=1).path
    manifest = json.loads((folder / MANIFEST).read_text())
    for entry in manifest["bricks"]:
        entry["distances"] = [size << 20 for size in noted]
    (folder / MANIFEST).write_text(json.dumps(manifest))

    suite = Suite.open(folder)

    assert {suite.footprints(key) for key in suite.keys} == {tuple(size << 20 for size in classes)}


def test_an_empty_folder_becomes_a_suite_and_is_replaced_as_a_whole(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    target = tmp_path / "suite"
    target.mkdir()
    write_suite(target, bricks, granularity=1)
    one = dict([next(iter(bricks.items()))])
    assert write_suite(target, one, granularity=1).keys == tuple(one)
    assert [path.name for path in tmp_path.iterdir()] == ["suite"]
    assert tree(target) == tree(write_suite(tmp_path / "fresh", one, granularity=1).path)


@pytest.mark.parametrize("kind", ["folder", "file", "foreign manifest"])
def test_what_is_no_suite_is_left_alone(tmp_path: Path, bricks: dict[str, Brick], kind: str) -> None:
    target = tmp_path / "suite"
    if kind == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / ("thesis.txt" if kind == "folder" else MANIFEST)).write_text('{"mine": 1}')
    before = target.read_bytes() if kind == "file" else tree(target)
    with pytest.raises(SuiteError, match="is not a suite"):
        write_suite(target, bricks, granularity=1)
    assert (target.read_bytes() if kind == "file" else tree(target)) == before
    assert [path.name for path in tmp_path.iterdir()] == ["suite"]


def other_file(brick: Brick) -> Brick:
    """The same brick as another version might have written it."""
    model = onnx.load_from_string(brick.model)
    model.producer_version = "other"
    return replace(brick, model=model.SerializeToString())


def test_what_else_lies_in_the_folder_stays(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    target = tmp_path / "suite"
    one = dict([next(iter(bricks.items()))])
    write_suite(target, bricks, granularity=1)
    with closing(sqlite3.connect(target / "mine.db")) as database:
        database.execute("create table t (x)")
        database.commit()
        (target / "notes").mkdir()
        (target / "notes" / "a.txt").write_text("mine")
        (target / "bricks" / "mine.txt").write_text("mine")
        for granularity, some in ((2, one), (1, bricks)):
            suite = write_suite(target, some, granularity=granularity)
            assert suite.granularity == granularity
            assert {key: suite.brick(key) for key in suite.keys} == some
        database.execute("insert into t values (1)")
        database.commit()
        assert database.execute("select count(*) from t").fetchone() == (1,)
    assert (target / "notes" / "a.txt").read_text() == (target / "bricks" / "mine.txt").read_text() == "mine"
    assert {path.name for path in target.iterdir()} == {MANIFEST, "bricks", "mine.db", "notes"}


@pytest.mark.parametrize("kind", ["folder", "link", "file", "other brick", "linked bricks"])
def test_a_name_that_is_taken_by_something_else_is_refused(tmp_path: Path, bricks: dict[str, Brick], kind: str) -> None:
    target, elsewhere = tmp_path / "suite", tmp_path / "elsewhere"
    first, *_, last = sorted(bricks)
    old = write_suite(target, {first: bricks[first]}, granularity=1)
    place = target / "bricks" / f"{last}.onnx"
    if kind == "folder":
        place.mkdir()
    elif kind == "link":
        elsewhere.write_text("mine")
        place.symlink_to(elsewhere)
    elif kind == "file":
        place.write_text("mine")
    elif kind == "other brick":
        place.write_bytes(other_file(bricks[last]).model)
    else:
        (target / "bricks").rename(elsewhere)
        (target / "bricks").symlink_to(elsewhere)
    before = tree(tmp_path)

    with pytest.raises(SuiteError, match=r"not (belong to the suite|the folder)"):
        write_suite(target, bricks, granularity=1)

    assert tree(tmp_path) == before
    assert Suite.open(target) == old
    assert [path for path in target.iterdir() if path.name.endswith(".partial")] == []


@pytest.mark.parametrize("step", range(4))
def test_a_failing_rename_puts_the_old_suite_back(
    tmp_path: Path, bricks: dict[str, Brick], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    target = tmp_path / "suite"
    first, second, third = sorted(bricks)[:3]
    write_suite(target, {first: bricks[first], second: bricks[second]}, granularity=1)
    before = tree(target)
    to_come = {first: other_file(bricks[first]), third: bricks[third]}
    rename, done = Path.replace, []

    def fail(path: Path, to: Path) -> Path:
        done.append(to)
        if len(done) == step + 1:  # putting back works
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, to)

    monkeypatch.setattr(Path, "replace", fail)
    if step == 3:  # two bricks and the manifest
        assert write_suite(target, to_come, granularity=2).keys == (first, third)
        return
    with pytest.raises(SuiteError, match="cannot be written"):
        write_suite(target, to_come, granularity=2)
    assert tree(target) == before


_KILLED = """
import os, sys
from pathlib import Path
from typing import Any
from dlbricks.bricks.suite.suite import Suite
from dlbricks.bricks.suite.writing import write_suite
target, source, step = Path(sys.argv[1]), Suite.open(sys.argv[2]), int(sys.argv[3])
done, rename = [], Path.replace
def replace(path, to):
    if len(done) == step:
        os.kill(os.getpid(), 9)
    done.append(to)
    return rename(path, to)
Path.replace = replace
write_suite(target, {key: source.brick(key) for key in source.keys}, granularity=1)
"""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_kill_leaves_the_old_suite_until_a_brick_is_exchanged_and_then_says_so(
    tmp_path: Path, bricks: dict[str, Brick], step: int
) -> None:
    """What is new comes first, then what is exchanged, then the manifest."""
    target = tmp_path / "suite"
    first, second = sorted(bricks)[:2]
    old = write_suite(target, {first: other_file(bricks[first])}, granularity=1)
    to_come = {key: bricks[key] for key in (first, second)}
    source = write_suite(tmp_path / "source", to_come, granularity=1)

    done = subprocess.run([sys.executable, "-c", _KILLED, target, source.path, str(step)], check=False)

    assert done.returncode == -9
    assert Suite.open(target) == old
    if step < 2:
        assert old.brick(first).key == first
    else:
        with pytest.raises(TamperedBrick):
            old.brick(first)
    assert tree(write_suite(target, to_come, granularity=1).path) == tree(source.path)


_WRITER = """
import sys
from pathlib import Path
from typing import Any
from dlbricks.bricks.suite.suite import Suite
from dlbricks.bricks.suite.writing import write_suite
source = Suite.open(sys.argv[2])
for turn in range(20):
    some = source.keys[: 1 + (turn + int(sys.argv[3])) % len(source.keys)]
    write_suite(Path(sys.argv[1]), {key: source.brick(key) for key in some}, granularity=1)
"""


def test_writers_at_the_same_time_leave_a_whole_suite(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    source = write_suite(tmp_path / "source", bricks, granularity=1)
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, tmp_path / "target", source.path, str(number)])
        for number in range(3)
    ]

    assert [writer.wait() for writer in writers] == [0, 0, 0]

    suite = Suite.open(tmp_path / "target")
    assert {key: suite.brick(key) for key in suite.keys} == {key: bricks[key] for key in suite.keys}
    assert sorted(path.stem for path in (suite.path / "bricks").iterdir()) == list(suite.keys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    assert sorted(path.name for path in suite.path.iterdir()) == ["bricks", MANIFEST]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write read-only files")
def test_a_suite_that_cannot_be_written_is_refused_before_anything_is_done(
    tmp_path: Path, bricks: dict[str, Brick]
) -> None:
    target = write_suite(tmp_path / "parent" / "suite", bricks, granularity=1).path
    target.parent.chmod(0o555)
    refuse_foreign(target)
    assert write_suite(target, bricks, granularity=2).granularity == 2
    target.chmod(0o555)
    with pytest.raises(SuiteError, match="is not a writable folder"):
        refuse_foreign(target)


def test_a_file_that_is_missing_or_another_is_no_brick_and_the_others_are(
    tmp_path: Path, bricks: dict[str, Brick]
) -> None:
    suite = write_suite(tmp_path / "suite", bricks, granularity=1)
    one, other = suite.keys[:2]
    shutil.copy(suite.brick_path(other), suite.brick_path(one))
    with pytest.raises(TamperedBrick, match="manifest"):
        suite.brick(one)
    suite.brick_path(one).unlink()
    with pytest.raises(MissingBrick, match=one):
        suite.brick(one)
    with pytest.raises(MissingBrick, match="no brick"):
        suite.brick("0" * 64)
    assert suite.brick(other).key == other
    swapped = write_suite(tmp_path / "swapped", {one: bricks[other]}, granularity=1)
    with pytest.raises(TamperedBrick, match="another network"):  # though the manifest fits
        swapped.brick(one)


def refused(folder: Path, match: str = "is damaged|is not a suite|is not JSON|newer dlbricks") -> None:
    with pytest.raises(SuiteError, match=match) as caught:
        Suite.open(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
@example("[" * 100_000)
@example('{"schema": 99}')
@example('{"schema": 1, "bricks": []}')
def test_what_is_no_manifest_is_one_clear_error(tmp_path_factory: pytest.TempPathFactory, said: bytes | str) -> None:
    folder = tmp_path_factory.getbasetemp() / "foreign"
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).write_bytes(said if isinstance(said, bytes) else said.encode())
    refused(folder)


ODD = (None, True, 0, -1, 1.5, "x", "../../etc/passwd", [], [1], {}, {"model": 1}, {"m": "8MiB"}, ["inner"], 10**400)
"""What may stand where something else belongs."""


def places(said: Any, *way: str | int) -> Iterator[tuple[str | int, ...]]:
    for step, inner in said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else ():
        yield (*way, step)
        yield from places(inner, *way, step)


def test_a_manifest_with_anything_else_in_any_place_is_damaged_or_of_the_right_types(
    tmp_path: Path, bricks: dict[str, Brick]
) -> None:
    key = min(bricks)
    folder = write_suite(
        tmp_path / "suite", {key: bricks[key]}, granularity=1, annotations={"m": {key: 2}}, levels={"m": 8 << 20},
        distances={key: [8 << 20]}, boundary={key: ["kept"]}, caches=CACHES, graph="runtime",
        bound_to="a stack",
    ).path  # fmt: skip
    text, opened = (folder / MANIFEST).read_text(), 0
    for way, odd in itertools.product(places(json.loads(text)), (*ODD, "gone")):
        said = inner = json.loads(text)
        for step in way[:-1]:
            inner = inner[step]
        inner[way[-1]] = odd
        if odd == "gone":
            del inner[way[-1]]
        (folder / MANIFEST).write_text(json.dumps(said))
        try:
            suite = Suite.open(folder)
        except SuiteError:
            refused(folder)
            continue
        opened += 1
        counts = [*(suite.annotations or {}).values(), suite.levels]
        sizes = [suite.granularity, *(size for one in suite.keys for size in suite.footprints(one))]
        kinds = {*map(type, sizes), *(type(number) for one in counts for number in one.values())}
        assert (kinds, min(sizes) > 0) == ({int}, True), (way, odd)
        assert {type(suite.overlap), type(suite.connected)} == {bool}, (way, odd)
        assert ({*suite.keys} <= {key}, suite.graph in {"source", "runtime"}) == (True, True), (way, odd)
        assert isinstance(suite.bound_to, str | None), (way, odd)
        assert {*suite.boundary(key)} <= {*BOUNDARY}, (way, odd)
        assert {*map(type, suite.caches or CACHES)} == {int}, (way, odd)
    assert 0 < opened < 60  # what may be left out, and sizes that may be any
    (folder / MANIFEST).write_text(json.dumps(json.loads(text) | {"bricks": 2 * json.loads(text)["bricks"]}))
    refused(folder)


def test_a_folder_without_manifest_is_no_suite(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        refused(folder, MANIFEST)
    (tmp_path / MANIFEST).mkdir()
    refused(tmp_path, "regular file")


def test_bricks_that_were_just_written_are_not_read_back(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    suite = writing.write_suite(tmp_path / "suite", bricks, granularity=1)
    shutil.rmtree(suite.path)

    assert {key: suite.brick(key) for key in suite.keys} == bricks


@contextmanager
def full_disk() -> Iterator[None]:
    """Every write beyond 200 bytes of a file fails, as it does where no space is left; pytest's own too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # Python would keep half a compiled file
    try:
        yield
    finally:
        sys.dont_write_bytecode = kept
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    target = tmp_path / "suite"
    old = write_suite(target, dict([next(iter(bricks.items()))]), granularity=1)
    before = tree(target)
    with full_disk(), pytest.raises(SuiteError, match="cannot be written") as caught:
        write_suite(target, bricks, granularity=1)
    assert "\n" not in str(caught.value)
    assert tree(target) == before
    assert Suite.open(target) == old
    assert [path.name for path in tmp_path.iterdir()] == ["suite"]


def test_an_old_brick_that_cannot_be_removed_does_no_harm(tmp_path: Path, bricks: dict[str, Brick]) -> None:
    target = tmp_path / "suite"
    first, second = sorted(bricks)[:2]
    write_suite(target, {first: bricks[first]}, granularity=1)
    (target / "bricks" / f"{first}.onnx").unlink()
    (target / "bricks" / f"{first}.onnx").mkdir()
    assert write_suite(target, {second: bricks[second]}, granularity=1).brick(second) == bricks[second]


def test_reading_a_small_file_takes_little_memory_whatever_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(b"{}")

    tracemalloc.start()
    try:
        assert read_bounded(path, 1 << 30) == b"{}"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20
    with pytest.raises(SuiteError, match="larger than 1 bytes"):
        read_bounded(path, 1)
