"""Huge pages under what a runtime allocates: asked for when its process starts, of the C library's allocator.

A processor finds memory by pages, and keeps where a few thousand of them lie. Of weights that are read once for each
execution, pages of 2 MiB in place of 4 KiB spare most of that search (docs/measuring.md).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping

from ...errors import BackendUnavailable
from ..machine.memory import huge_pages
from .base import Option

__all__ = ["HUGE_PAGES", "VARIABLE", "huge_page_variables", "why_no_huge_pages"]

HUGE_PAGES = Option(
    "huge_pages", "off", ("on", "off"), "memory is taken in pages of 2 MiB where the kernel grants them", later=True
)
"""Of backends on the CPU whose runtimes take memory from the C library."""

VARIABLE = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
"""The allocator asks for huge pages by ``madvise`` (glibc manual, 'Memory Allocation Tunables')."""

_SINCE = (2, 35)


def why_no_huge_pages() -> str:
    """Why the option would change nothing here, in one line; empty where it may."""
    match huge_pages():
        case None:
            return "the kernel has no transparent huge pages"
        case "never":
            return "the kernel is set to give huge pages never"
        case "always":
            return "the kernel is set to give huge pages always: memory lies on them as it is"
    name, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if name != "glibc" or numbers < _SINCE:
        return f"the C library is {name or 'unknown'} {version}".rstrip() + ", not glibc 2.35 or later"
    return ""


def huge_page_variables(options: Mapping[str, str]) -> dict[str, str]:
    """What the environment of a process needs for the option.

    Raises:
        BackendUnavailable: It is on, and the system cannot do it.
    """
    if options.get(HUGE_PAGES.name, HUGE_PAGES.default) == HUGE_PAGES.default:
        return {}
    reason = why_no_huge_pages()
    if reason:
        raise BackendUnavailable(f"huge_pages=on has no effect here: {reason}", remedy="leave the option out")
    return dict([VARIABLE])
