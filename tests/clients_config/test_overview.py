"""What the doctor says of the clients on a machine."""

from __future__ import annotations

import json

from helmsman.clients.configuration import ClientFinding, inspect_clients
from tests.clients_config.conftest import LAUNCH, Person


def look(person: Person, *, missing: str = "") -> dict[str, ClientFinding]:
    found = inspect_clients(person.around, {LAUNCH}, which=lambda name: None if name == missing else name)
    return {finding.client.key: finding for finding in found}


def test_the_overview_skips_clients_that_are_missing_or_have_other_servers(person: Person) -> None:
    person.write("cursor", '{"mcpServers": {"x": {"command": "y"}}}')
    assert look(person) == {}


def test_an_entry_that_points_here_is_well_and_its_limits_are_reported(person: Person) -> None:
    person.install("claude")
    finding = look(person)["claude"]
    assert finding.detail.startswith("helmsman (user scope) points here. Calls time out after")
    assert finding.fix == ""


def test_an_entry_of_another_helmsman_is_named(person: Person) -> None:
    person.install("codex", launch=("/other/helmsman",))
    assert look(person)["codex"].detail.startswith("helmsman (user scope) points to /other/helmsman.")


def test_an_entry_whose_program_is_gone_has_its_fix(person: Person) -> None:
    person.install("claude", "local")
    finding = look(person, missing=LAUNCH[0])["claude"]
    assert finding.detail == f"helmsman (local scope) runs {LAUNCH[0]}, which is not there."
    assert finding.fix == "Run `helmsman install claude --scope local`."


def test_the_old_server_has_its_fix(person: Person) -> None:
    person.write("vscode", json.dumps({"servers": {"c": {"command": "codex", "args": ["mcp-server"]}}}), "project")
    finding = look(person)["vscode"]
    assert finding.detail.startswith("c (project scope) runs the old `codex mcp-server`")
    assert finding.fix == "Run `helmsman install vscode --scope project`."


def test_a_file_that_cannot_be_read_is_reported(person: Person) -> None:
    person.write("cursor", "{")
    finding = look(person)["cursor"]
    assert "is not valid JSON, line 1, column 2" in finding.detail
    assert finding.fix


def test_a_home_that_is_the_project_is_looked_at_once(person: Person) -> None:
    person.install("cursor")
    around = type(person)(person.home, person.home, person.state).around
    (finding,) = inspect_clients(around, {LAUNCH}, which=lambda name: name)
    assert finding.detail.count("points here") == 1
