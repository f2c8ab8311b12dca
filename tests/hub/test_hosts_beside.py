"""Other machines beside this one: their questions reach who asks here, and what is shown can be used here as it is."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import anyio
import pytest

from helmsman import load_settings
from helmsman.cli import config
from helmsman.cli.host import OtherMachine
from helmsman.cli.thin import with_host
from helmsman.errors import HelmsmanError
from helmsman.hub.hosts import known_hosts
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, add, make_repository, patch, run, say
from helmsman.web.hosts import HostRoutes
from helmsman.web.live import Live
from mcp import Client
from tests.hub.commands import SECONDS, done, whole
from tests.hub.conftest import Place
from tests.hub.other_machine import NAME
from tests.hub.test_hosts import here, known, shown, there
from tests.mcp.caller import Caller

__all__ = ["here", "known"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there are no hubs")]


def ssh_is(known: Place, script: str) -> None:
    """Another `ssh` is found from now on."""
    program = Path(known.env["PATH"].partition(os.pathsep)[0]) / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


@pytest.mark.rare
async def test_questions_there_are_shown_and_answered_here_by_the_id_that_is_shown(
    known: Place, place: Place, model: ScriptedModel, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "shop")
    model.on("fix it", run("touch /tmp", escalate="please"), patch(add("fixed.txt", "fixed\n")), say("Done."))
    model.on("And then?", say("Nothing."))
    begin = ("run", "--detach", "fix it", "-C", str(repository), "--worktree", "--full-auto")
    started = await done(whole("--host", NAME, *begin), known)
    assert f"helmsman watch {NAME}:" in started.stderr
    with anyio.fail_after(SECONDS):
        while not (asking := json.loads((await done(whole("respond", "--json"), known)).stdout)["sessions"]):
            await anyio.sleep(0.1)
    (session,) = asking
    assert session["host"] == NAME
    assert session["sessionId"].startswith(f"{NAME}:")
    listed = await done(whole("respond"), known)
    assert listed.code == 5
    assert f"Answer it: helmsman respond {session['sessionId'][: len(NAME) + 1]}" in listed.stdout
    told = await done(there("respond", session["sessionId"].removeprefix(f"{NAME}:")), known)
    assert f"helmsman respond {NAME}:" in told.stdout  # by the hub there, too

    answer = ("respond", session["sessionId"], session["questions"][0]["id"], "approve")
    answered = await done(whole(*answer), known)
    assert answered.code == 0, answered.stderr
    assert (await done(whole("say", session["sessionId"], "And then?", "--queue"), known)).code == 0
    with anyio.fail_after(SECONDS):
        while shown(await done(whole("status", session["sessionId"], "--json"), known))["status"] != "done":
            await anyio.sleep(0.1)
    assert "There are no open questions" in (await done(whole("respond"), known)).stderr
    nobody = await done(there("status", "nobody00"), known)
    assert f"`helmsman --host {NAME} list`" in nobody.stderr

    applied = await done(whole("--host", NAME, "apply", "--yes", "--json", session["sessionId"]), known)
    assert applied.code == 0, applied.stderr
    assert (repository / "fixed.txt").read_text(encoding="utf-8") == "fixed\n"


async def test_unreachable_hosts_are_named(known: Place) -> None:
    ssh_is(known, "echo 'no route to host' >&2; exit 255")
    away = await done(whole("respond"), known)
    assert away.code == 0
    assert f"{NAME} is away" in away.stderr
    assert "no route to host" in away.stderr


@pytest.mark.rare
async def test_slow_hosts_are_awaited_for_a_few_seconds(known: Place) -> None:
    ssh_is(known, "exec sleep 60")
    began = time.monotonic()
    slow = await done(whole("respond"), known)
    assert slow.code == 0
    assert "does not answer within 5 seconds" in slow.stderr
    assert time.monotonic() - began < 30


@pytest.mark.rare
async def test_a_machine_with_another_version_is_distinguished(
    known: Place, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = known_hosts(known.env)[NAME]
    for version, advice in (("99.0", f"on {NAME}"), ("0.0.1", "here")):
        monkeypatch.setattr(config, "__version__", version)
        report = await anyio.to_thread.run_sync(config._checked, host)
        assert report["ok"], report
        assert f"Update it {advice}" in report["notes"][0]
    ssh_is(known, "echo 'helmsman: no such command: connect' >&2; exit 2")
    old = await anyio.to_thread.run_sync(config._checked, host)
    assert "it has to be as new as this one" in old["error"]["message"]
    ssh_is(known, "printf 'helmsman-host 2\\t99.0\\n'; exit 0")
    new = await anyio.to_thread.run_sync(config._checked, host)
    assert not new["ok"]


async def test_attach_runs_there_on_the_terminal_here(known: Place, capfd: pytest.CaptureFixture[str]) -> None:
    ssh_is(known, 'printf "%s|" "$@"; exit 7')
    assert OtherMachine(NAME).run_there("session", "attach", "3b2d5c8e") == 7
    words = capfd.readouterr().out.split("|")
    assert "-t" in words
    assert words[-2].endswith("exec helmsman session attach 3b2d5c8e'")
    with pytest.raises(HelmsmanError, match="no name of a session"):
        OtherMachine(NAME).run_there("attach", "x; id")


async def test_an_id_says_which_machine_a_command_is_for(known: Place) -> None:
    assert with_host(["status", "build:3b2d", "--json"]) == ["--host", "build", "status", "3b2d", "--json"]
    assert with_host(["--host", "build", "diff", "build:3b2d"]) == ["--host", "build", "diff", "3b2d"]
    for other in (["say", "3b2d", "build:broken"], ["status", "moon:3b2d"], ["run", "build:x"], ["status"], []):
        assert with_host(other) == other
    assert with_host(["--host", "moon", "diff", "build:3b2d"])[1] == "moon"


async def test_tools_that_work_on_this_machine_only_say_so(known: Place) -> None:
    settings = load_settings({"detach": False, "tools": ["capabilities"]}, known.env, known.directory)
    async with HelmsmanService(settings, env=known.env) as helm, Client(build_server(helm)) as client:
        tools = (await client.list_tools()).tools
        names = [tool.name for tool in tools if "host" not in tool.input_schema["properties"]]
        assert {"debug", "codex_submit_task"} & set(names), names
        for tool in names:
            refused = await Caller(client).error(tool, host=NAME)
            assert refused["code"] == "invalid_input", tool
            assert "on this machine only" in refused["message"], tool


async def test_a_flood_of_changes_from_a_machine_is_merged_into_one(known: Place) -> None:
    async with HelmsmanService() as helm:
        live = Live(helm)
        routes = HostRoutes(helm, live)
        many = [{"sessionId": str(number), "kinds": ["text"]} for number in range(5000)]
        routes._take_changes(NAME, {"changes": many})
        assert [change.get("host") for change in live._since(0)] == [NAME]
