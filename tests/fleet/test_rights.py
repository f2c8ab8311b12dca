"""What the roles of a fleet may do, and who can read what goes to its database."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from helmsman.base.caller_context import FLEET_URL
from helmsman.errors import FleetNotReady, FleetUnavailable
from helmsman.fleet.client import FleetClient
from helmsman.store.address import checked_address
from helmsman.testing import ScriptedModel, run, say
from tests.fleet.conftest import SECONDS, Fleet, a_postgres, drop
from tests.fleet.test_clients import client_env, helmsman
from tests.postgres import Postgres

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]


def init(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "helmsman", "fleet", "init", url]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """With TLS, and to be reached as from another machine."""
    with a_postgres(tls=True, everywhere=True) as server:
        yield server


@pytest.fixture
def fleet_url(own_postgres: Postgres) -> Iterator[str]:
    """Set up by its owner; used, with a certificate that is checked, by one who has the rights of the documentation."""
    name, owner = f"fleet_{uuid.uuid4().hex[:8]}", "fleet_owner"
    page = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")
    (grants,) = re.findall(r"```sql\n(create role fleet_runner.*?)```", page, re.DOTALL)
    with psycopg.connect(own_postgres.url(), autocommit=True) as connection:
        connection.execute(f"create role {owner} login createrole")
        connection.execute(f"create database {name} owner {owner} template template0")
    secured = f"?sslmode=verify-full&sslrootcert={own_postgres.certificate}"
    assert (made := init(own_postgres.url(name, user=owner, host="localhost") + secured)).returncode == 0, made.stderr
    assert "the connection is encrypted" in made.stdout
    with psycopg.connect(own_postgres.url(name, user=owner), autocommit=True) as connection:
        connection.execute(grants)
        connection.execute("create table helmsman.of_a_later_version (id int)")
    yield own_postgres.url(name, user="fleet_runner", host="localhost") + secured
    with psycopg.connect(own_postgres.url(), autocommit=True) as connection:
        drop(connection, name)


@pytest.mark.rare
async def test_workers_and_clients_need_no_more_than_the_documented_rights_and_a_certificate_that_they_check(
    own_postgres: Postgres, fleet: Fleet, model: ScriptedModel
) -> None:
    model.on("work", run("true"), say("done"))
    await fleet.worker("one")
    env = client_env(fleet)
    await helmsman(env, "run", "work", "--cd", str(fleet.directory), "--full-auto")
    await helmsman(env, "fleet", "doctor")
    await helmsman(env, "fleet", "drain", "one")
    assert await fleet.workers["one"].ended() == 0, fleet.logs()
    refused = await fleet.client.database.all("select has_schema_privilege('helmsman', 'create') as may")
    assert refused == [{"may": False}]
    assert await fleet.client.database.all("select * from helmsman.of_a_later_version") == []
    plain = (
        "select usename from pg_stat_ssl join pg_stat_activity using (pid) where not ssl and usename = 'fleet_runner'"
    )
    assert await fleet.client.database.all(plain) == []
    assert "owner" in init(fleet.url).stderr
    with pytest.raises(FleetUnavailable, match="certificate"):
        async with FleetClient(fleet.url.replace("localhost", socket.gethostname())):
            pass


@pytest.mark.rare
async def test_nothing_goes_to_another_machine_in_plain_text_unless_that_is_wanted(
    own_postgres: Postgres, fleet_url: str
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("This machine has no address but its own.")
        there = probe.getsockname()[0]
    with psycopg.connect(own_postgres.url(), autocommit=True) as connection:
        connection.execute("alter system set ssl = off")
    own_postgres.stop()
    own_postgres.start()
    url = own_postgres.url(urlsplit(fleet_url).path[1:], user="fleet_runner", host=there)
    for asked in (url, f"{url}?sslmode=prefer"):
        with pytest.raises(FleetNotReady, match="no encrypted connections"):
            async with FleetClient(asked):
                pass
    async with FleetClient(f"{url}?sslmode=disable") as client:
        assert await client.machines() == []


def test_a_remote_address_requires_tls_by_default() -> None:
    away = "postgresql://me@db.example/fleet"
    assert checked_address(away, FLEET_URL) == f"{away}?sslmode=require"
    assert (
        checked_address(f"{away}?sslmode=allow&connect_timeout=3", FLEET_URL)
        == f"{away}?connect_timeout=3&sslmode=require"
    )
    for kept in (f"{away}?sslmode=verify-full", f"{away}?sslmode=disable", "postgresql://me@localhost/fleet"):
        assert checked_address(kept, FLEET_URL) == kept
