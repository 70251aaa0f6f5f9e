"""How the server is reached, and what is said where it is not."""

from __future__ import annotations

import pytest
from dlbricks.errors import DatabaseUnreachable, StoreError
from dlbricks.generator.fleet.planning import plan
from dlbricks.generator.fleet.server import bounded, connected


def test_an_address_keeps_what_it_says():
    url = bounded("postgresql://ann@/x?host=/tmp/a b&options=-c work_mem%3D5MB&connect_timeout=3")

    assert "+" not in url.partition("?")[2]
    assert "options=-c%20work_mem%3D5MB" in url
    assert "connect_timeout=3" in url
    assert "keepalives_idle=10" in url
    assert bounded(url) == url


def test_several_hosts_are_a_list():
    assert "host=a%2Cb&port=1%2C2" in bounded("postgresql://ann@/x?host=a:1&host=b:2")
    assert "host=a%2Cb" in (url := bounded("postgresql://ann@/x?host=a&host=b"))
    assert "port" not in url


def test_a_server_that_refuses_a_statement_was_reached(url):
    impatient = f"{url}&options=-c%20statement_timeout%3D10"
    with pytest.raises(StoreError, match="cannot be used") as error, connected(impatient) as connection:
        connection.execute("SELECT pg_sleep(5)")
    assert not isinstance(error.value, DatabaseUnreachable)


def test_a_worker_that_never_reached_its_server_ends(campaign, url, workers, server):
    """The database is not there: waiting does not help."""
    plan(campaign(), url)
    name = url.partition("@/")[2].partition("?")[0]
    workers.url = url.replace(name, "nowhere")

    assert "trying again" not in workers.drained(code=1)
