"""The option for huge pages: what it asks of a process, and that a runtime's weights come to lie on them."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dlbricks.errors import BackendUnavailable
from dlbricks.generator.backends import huge_pages, registry
from dlbricks.generator.machine import memory
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.requests import Prepare

ON = {"huge_pages": "on"}


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what the kernel and the C library say."""

    def set_to(modes: str | None, libc: tuple[str, str] = ("glibc", "2.36")) -> None:
        file = tmp_path / "enabled"
        if modes is not None:
            file.write_text(modes)
        monkeypatch.setattr(memory, "_HUGE_PAGES", file)
        monkeypatch.setattr(platform, "libc_ver", lambda: libc)

    return set_to


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
def test_a_stack_names_it_only_where_it_is_on(backend: str) -> None:
    runtime = registry.get(backend)

    assert runtime.resolve("cpu", {"huge_pages": "off"}) == runtime.resolve("cpu", {})
    assert runtime.resolve("cpu", ON) == runtime.resolve("cpu", {}) | ON


@pytest.mark.parametrize(
    ("modes", "libc", "reason"),
    [
        ("always [madvise] never", ("glibc", "2.36"), ""),
        ("always [madvise] never", ("glibc", "2.35"), ""),
        ("always [madvise] never", ("glibc", "2.34"), "2.34"),
        ("always [madvise] never", ("", ""), "not glibc"),
        ("always madvise [never]", ("glibc", "2.36"), "never"),
        ("[always] madvise never", ("glibc", "2.36"), "always"),
        (None, ("glibc", "2.36"), "no transparent huge pages"),
    ],
)
def test_where_it_would_change_nothing_it_is_refused(
    system: Callable[..., None], modes: str | None, libc: tuple[str, str], reason: str
) -> None:
    system(modes, libc)

    assert reason in huge_pages.why_no_huge_pages()
    assert bool(reason) == bool(huge_pages.why_no_huge_pages())
    assert huge_pages.huge_page_variables({}) == {}
    if reason:
        with pytest.raises(BackendUnavailable, match=reason):
            Worker.start("onnxruntime", options=ON)
    else:
        assert huge_pages.huge_page_variables(ON) == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
def test_weights_lie_on_huge_pages(
    backend: str, tmp_path: Path, skeleton_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := huge_pages.why_no_huge_pages():
        pytest.skip(reason)
    if not registry.get(backend).probe().ok:
        pytest.skip(f"{backend} is not installed")
    model = skeleton_of("(float[1,2048] x0, float[2048,4096] w0) => (float[1,4096] v0) {v0 = MatMul(x0, w0)}")
    file = tmp_path / "product.onnx"
    file.write_bytes(model.SerializeToString())

    plain, huge = (_huge_mib(backend, options, file) for options in ({}, ON))

    assert plain < 16 <= huge  # the product reads 32 MiB


def _huge_mib(backend: str, options: dict[str, str], file: Path) -> float:
    """What of a worker lies on huge pages, once it holds a network."""
    with Worker.start(backend, options=options) as worker:
        worker.prepare(Prepare(id="product", path=str(file), synthetic=True, seed=0, unroll=1))
        for line in Path(f"/proc/{worker.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("AnonHugePages:"):
                return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not say what lies on huge pages")
