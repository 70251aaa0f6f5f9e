"""How the server is reached, and what is said where it is not."""

from __future__ import annotations

import pytest
from dlbricks.errors import DatabaseUnreachable, StoreError
from dlbricks.generator.fleet.planning import plan
from dlbricks.generator.fleet.server import bounded, connected
from servers import serving


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


def test_options_of_the_address_hold(url):
    with connected(f"{url}&options=-c%20work_mem%3D5MB") as connection:
        assert connection.execute("SHOW work_mem").fetchone() == {"work_mem": "5MB"}
        assert connection.execute("SHOW search_path").fetchone() == {"search_path": "dlbricks_fleet"}


def test_a_server_that_refuses_a_statement_was_reached(url):
    impatient = f"{url}&options=-c%20statement_timeout%3D10"
    with pytest.raises(StoreError, match="cannot be used") as error, connected(impatient) as connection:
        connection.execute("SELECT pg_sleep(5)")
    assert not isinstance(error.value, DatabaseUnreachable)


def test_a_worker_that_never_reached_its_server_ends(campaign, url, workers, server):
    """Whether the database, the account or the password is wrong: waiting does not help."""
    plan(campaign(), url)
    name = url.partition("@/")[2].partition("?")[0]
    for wrong in (url.replace(name, "nowhere"), url.replace("//ann@", "//nobody@"), url.replace("//", "//ann:x@h/")):
        workers.url = wrong
        worker = workers.start()
        _, err = worker.communicate(timeout=60)

        assert worker.returncode == 1, err
        assert "trying again" not in err


def test_a_wrong_password_is_named_and_not_told(campaign, workers):
    with serving("listen_addresses = '127.0.0.1'", access="host all all all scram-sha-256", port=54329) as server:
        workers.url = "postgresql+psycopg://ann:secret@127.0.0.1:54329/postgres"
        assert server.port == 54329
        worker = workers.start()
        _, err = worker.communicate(timeout=60)

    assert worker.returncode == 1
    assert "password authentication failed" in err
    assert "secret" not in err
    assert "trying again" not in err
