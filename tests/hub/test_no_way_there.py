"""Another machine that cannot be reached: each reason is told apart, with what to do about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helmsman.hub.bridge import run_bridge
from helmsman.hub.hosts import HostFailed, OtherHost, SshConnector, checked_host, hosts_file, known_hosts, named_host

BUILD = OtherHost("build", "ssh://me@build.example")


def why(directory: Path, program: str | None, host: OtherHost = BUILD) -> str:
    """Why there is no connection, where this is what `ssh` does."""
    directory.mkdir(exist_ok=True)
    if program is not None:
        (directory / "ssh").write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
        (directory / "ssh").chmod(0o755)
    way = SshConnector(host, {"PATH": str(directory)}, is_for_client_of_hub=True)
    try:
        with pytest.raises(HostFailed) as told:
            way.connection().close()
    finally:
        way.close()
    return str(told.value)


@pytest.fixture(autouse=True)
def only_this_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Programs are looked for where this process looks."""
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_ssh_the_error_says_to_install_it(tmp_path: Path) -> None:
    assert why(tmp_path, None) == "`ssh` cannot be started: there is none on PATH. Install OpenSSH's client."


def test_a_machine_that_ssh_does_not_reach_is_to_be_tried_by_hand(tmp_path: Path) -> None:
    told = why(tmp_path, "echo 'Permission denied (publickey).' >&2; exit 255")
    assert told.startswith("build (ssh://me@build.example) cannot be reached: Permission denied (publickey).")
    assert told.endswith("ssh ssh://me@build.example")


def test_where_there_is_no_helmsman_it_is_said_how_to_get_it(tmp_path: Path) -> None:
    told = why(tmp_path, "exit 127")
    assert told.startswith("There is no `helmsman` on build. Install it there")
    other = why(tmp_path, "exit 126", OtherHost("build", "ssh://build", "/opt/helmsman"))
    assert other.startswith("There is no `/opt/helmsman` on build.")


def test_output_of_another_program_is_quoted_without_control_characters(tmp_path: Path) -> None:
    told = why(tmp_path, r"printf 'welcome\n'; printf '\033[2Jodd \n' >&2; exit 1")
    assert told.startswith("Helmsman on build does not answer: ?[2Jodd Look there with `helmsman doctor`")


def test_a_way_that_was_closed_leads_nowhere(tmp_path: Path) -> None:
    way = SshConnector(BUILD, {"PATH": str(tmp_path)}, is_for_client_of_hub=True)
    way.close()
    with pytest.raises(HostFailed, match="closed"):
        way.connection()


@pytest.mark.parametrize("argument", ["-oProxyCommand=x", "a b", "$(x)", ""])
def test_a_host_name_with_shell_syntax_is_refused(argument: str) -> None:
    with pytest.raises(HostFailed, match="is no name of a session"):
        BUILD.terminal_command(["session", "attach", argument], os.environ)
    with pytest.raises(HostFailed, match="is no address"):
        OtherHost("build", f"ssh://{argument}$").ssh_command(os.environ)


# --- the file of hosts ------------------------------------------------------------------------------------------------


def test_a_line_of_the_file_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "relative"}
    file = tmp_path / ".config" / "helmsman" / "hosts"
    assert hosts_file(env) == str(file)
    assert known_hosts(env) == {}
    with pytest.raises(HostFailed, match="There is none yet"):
        named_host("build", env)
    file.parent.mkdir(parents=True)
    file.write_text("build\tssh://me@build.example\t\nlab\tssh://lab:99999\n", encoding="utf-8")
    file.chmod(0o600)
    with pytest.raises(HostFailed, match=r"Line 2 of .* is not valid"):
        known_hosts(env)
    file.write_text("build\tssh://me@build.example\nlab\n", encoding="utf-8")
    with pytest.raises(HostFailed, match=r"Line 2 of .* is not valid"):
        known_hosts(env)
    file.write_text("build\tssh://me@build.example\n", encoding="utf-8")
    assert named_host("build", env) == checked_host("build", "ssh://me@build.example")
    with pytest.raises(HostFailed, match=r"There are: build\."):
        named_host("lab", env)
    file.unlink()
    file.mkdir()
    with pytest.raises(HostFailed, match="cannot be read: Is a directory"):
        known_hosts(env)


# --- the end of the way there ------------------------------------------------------------------------------------------


def test_the_other_end_says_why_there_is_no_hub(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HELMSMAN_STATE_DIR", str(tmp_path / "state"))
    assert run_bridge(["nothex"]) == 1
    assert "not in hex" in capfd.readouterr().err
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(0o777)
    assert run_bridge([os.fsencode(everybodys).hex()]) == 1
    assert "There can be no hub here" in capfd.readouterr().err
    monkeypatch.setenv("HELMSMAN_DETACH", "0")
    assert run_bridge([]) == 1
    assert "HELMSMAN_DETACH is off" in capfd.readouterr().err
