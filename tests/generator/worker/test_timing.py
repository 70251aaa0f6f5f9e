"""What a visit needs."""

from __future__ import annotations

import gc

import pytest
from dlbricks.generator.device import host as timing
from dlbricks.generator.device.host import Evictor
from dlbricks.generator.worker.execution.timing import undisturbed


def test_garbage_collection_comes_back_even_when_a_run_fails():
    def fail() -> None:
        with undisturbed():
            assert not gc.isenabled()
            raise RuntimeError("no such thing")

    with pytest.raises(RuntimeError):
        fail()
    assert gc.isenabled()


def test_the_evictor_streams_through_more_than_the_private_cache():
    evictor = Evictor()

    evictor()

    assert evictor.nbytes >= 2 * timing.private_cache_bytes()
    assert int(evictor._buffer[0]) == 2
