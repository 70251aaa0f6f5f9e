"""``python -m dlbricks.generator.worker``: the isolated worker."""

from __future__ import annotations

from .worker import main

main()
