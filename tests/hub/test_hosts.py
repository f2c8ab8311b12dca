"""Another machine by SSH: its hub does the work, and a line that breaks or a hub that dies changes nothing of it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from starlette.applications import Starlette

from helmsman import Helmsman, run_step
from helmsman.approvals.deadline import TimeLeft
from helmsman.errors import HostUnreachable, InvalidInput
from helmsman.hub.hosts import HostFailed, SshConnector, checked_host, hosts_file, known_hosts
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.sessions.copies import SessionFacts
from helmsman.testing import ScriptedModel, run, say
from helmsman.testing.hubs import end_hub, hub_pid
from helmsman.web.api import api_routes
from helmsman.web.hosts import HostRoutes
from helmsman.web.live import Live
from helmsman.web.login import Logins
from helmsman.web.proof import Challenges
from mcp import Client
from tests.hub.commands import SECONDS, Done, begun, done, whole
from tests.hub.conftest import HeldAgent, Place
from tests.hub.other_machine import NAME, other_machine
from tests.hub_service import hub_of
from tests.mcp.caller import Caller
from tests.web.browser import Browser

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there are no hubs")]


@pytest.fixture
def here(place: Place, tmp_path: Path) -> Iterator[Place]:
    """This machine, which has no Codex. The other one, `place`, has."""
    with other_machine(tmp_path / "machines", place.env) as other:
        kept = {name: os.environ[name] for name in ("TMPDIR", "LANG", "HELMSMAN_TEST_ID") if name in os.environ}
        state = str(tmp_path / "machines" / "state")
        yield Place({**kept, **other.env, "HELMSMAN_STATE_DIR": state, "HELMSMAN_DETACH": "0"}, tmp_path / "machines")


@pytest.fixture
async def known(here: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The other machine is known here, to commands and to programs."""
    added = await done(whole("config", "hosts", "add", NAME, f"ssh://{NAME}", "--no-check"), here)
    assert added.code == 0, added.stderr
    for name, value in here.env.items():
        monkeypatch.setenv(name, value)
    return here


OWN_PROCESS = (sys.executable, "-m", "helmsman", "--host", NAME)
"""A command that runs in the process that is started: its children and ancestors count."""


def there(*arguments: str) -> list[str]:
    return whole("--host", NAME, *arguments)


def shown(result: Done) -> Any:
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(one) for children in lists for one in children.read_text(encoding="utf-8").split()]


def break_line(way: object) -> None:
    """Kill the `ssh` under a connection."""
    assert isinstance(way, SshConnector)
    assert way._child is not None
    way._child.kill()


async def test_a_machine_is_looked_at_when_it_is_added(here: Place, place: Place) -> None:
    report = shown(await done(whole("config", "hosts", "add", NAME, f"ssh://{NAME}", "--json"), here))["hosts"][0]
    assert report["ok"]
    assert [one["agent"] for one in report["agents"]][:1] == ["codex"]
    file = Path(hosts_file(here.env))
    assert file.read_text(encoding="utf-8") == f"{NAME}\tssh://{NAME}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert (await done(whole("config", "hosts"), here)).stdout.startswith(f"{NAME}\tssh://{NAME}")

    nobody = await done(
        whole("config", "hosts", "add", "other", f"ssh://{NAME}", "--command", "/nowhere/helmsman"), here
    )
    assert nobody.code == 1
    assert "There is no `/nowhere/helmsman` on other" in nobody.stdout
    assert set(known_hosts(here.env)) == {NAME}
    assert (await done(whole("config", "hosts", "remove", NAME), here)).code == 0
    missing = await done(whole(f"--host={NAME}", "list"), here)
    assert missing.code == 2
    assert "There is no host 'build'" in missing.stderr


@pytest.mark.rare
async def test_a_real_sshd_leads_there(bare_place: Place, tmp_path: Path) -> None:
    with other_machine(tmp_path / "machines", bare_place.env) as other:
        if not other.is_real:
            pytest.skip("There is no sshd that could run here: install Debian's `openssh-server`.")
        here = Place({**bare_place.env, **other.env, "HELMSMAN_STATE_DIR": str(tmp_path / "own")}, tmp_path)
        added = await done(whole("config", "hosts", "add", NAME, f"ssh://{NAME}", "--json"), here)
        assert shown(added)["hosts"][0]["ok"]
        assert shown(await done(there("list", "--json"), here))["sessions"] == []
        asked = await done(whole("config", "hosts", "add", "nobody", f"ssh://nobody@{NAME}"), here)
        assert asked.code == 1
        assert "Permission denied" in asked.stdout  # and nobody was asked for a password
        end_hub(Path(here.env["HELMSMAN_STATE_DIR"]))


@pytest.mark.long
async def test_commands_are_run_there_once(known: Place, place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "At last."))
    model.on("And then?", say("Nothing more."))
    started = whole("--host", NAME, "run", "--detach", "slow", "-C", str(place.directory), "--json")
    session_id = shown(await done(started, known))["sessionId"]
    assert session_id in (await done(there("list", "--json"), known)).stdout
    assert not (await done(whole("list", "--json"), known)).stdout.count(session_id)

    async with begun(whole("--host", NAME, "watch", session_id, "--json"), known) as watching:
        async with begun([*OWN_PROCESS, "say", "--queue", session_id, "And then?"], known) as process:
            with anyio.fail_after(SECONDS):
                while "And then?" not in (await done(there("tasks", "--status", "pending"), known)).stdout:
                    await anyio.sleep(0.05)
            (ssh,) = children(process.pid)
            os.kill(ssh, signal.SIGKILL)
            with anyio.fail_after(SECONDS):
                while children(process.pid) in ([], [ssh]):
                    await anyio.sleep(0.01)
            gate.release()
            with anyio.fail_after(SECONDS):
                assert await process.wait() == 0
        with anyio.fail_after(SECONDS):
            assert await watching.wait() == 0
    with anyio.fail_after(SECONDS):
        while shown(await done(there("status", session_id, "--json"), known))["status"] == "active":
            await anyio.sleep(0.05)
    asked = [request for request in model.requests if "And then?" in json.dumps(request.input[-1:])]
    assert len(asked) == 1
    below = f"exec -a helmsman bash -c {shlex.quote(shlex.join([*OWN_PROCESS, 'list']) + '; exit $?')}"
    of_agent = await done(["bash", "-c", below], known)
    assert of_agent.code == 1
    assert "agent" in of_agent.stderr
    refused = await done(whole("--host", NAME, "doctor"), known)
    assert refused.code == 2
    assert "Log in to build" in refused.stderr


async def test_a_program_continues_when_the_line_breaks_and_when_the_hub_there_dies(
    known: Place, place: Place, model: ScriptedModel
) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "At last."))
    async with Helmsman(host=NAME) as helm:
        session = await helm.start("slow", cwd=str(place.directory))
        assert session.turn_seconds is not None
        assert 0 <= session.turn_seconds < SECONDS
        break_line(hub_of(helm)._connector)
        assert [one.session_id for one in (await helm.list())[0]] == [session.id]
        await place.kill_hub()
        assert (await helm.session(session.id)).status == "active"
        break_line(hub_of(helm)._connector)
        gate.release()
        with anyio.fail_after(SECONDS):
            assert await session.wait(until="end")
        assert session.result == "At last."
        model.on("quick", say("Done."))
        step = await run_step("quick", helm=helm, cwd=str(place.directory), bound=False)
        assert step.text == "Done."


@pytest.mark.long
async def test_a_call_under_way_when_the_line_breaks_is_done_once(
    place: Place, held_codex: HeldAgent, tmp_path: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.on("once", say("Done."))
    env = {**place.env, "CODEX_CLI_PATH": str(held_codex.path)}
    with other_machine(tmp_path / "machines", env) as other:
        for name, value in other.env.items():
            monkeypatch.setenv(name, value)
        file = Path(hosts_file(os.environ))
        file.parent.mkdir(parents=True)
        file.write_text(f"{NAME}\tssh://{NAME}\n", encoding="utf-8")
        file.chmod(0o600)
        async with Helmsman(host=NAME) as helm, anyio.create_task_group() as tasks:

            async def start() -> None:
                session = await helm.start("once", cwd=str(place.directory))
                with anyio.fail_after(SECONDS):
                    assert await session.wait(until="end")

            tasks.start_soon(start)
            await held_codex.reached()
            lost, way = hub_of(helm)._peer, hub_of(helm)._connector
            break_line(way)
            with anyio.fail_after(SECONDS):
                while hub_of(helm)._peer in (None, lost):
                    await anyio.sleep(0.01)
            held_codex.let()
        async with Helmsman(host=NAME) as helm:
            assert len((await helm.list())[0]) == 1
    assert len(model.requests) == 1


async def test_settings_there_may_name_another_state_directory(
    bare_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = tmp_path / "machines"
    env = {name: value for name, value in bare_place.env.items() if name != "HELMSMAN_STATE_DIR"}
    usual, named = machines / "there" / ".local" / "state" / "helmsman", tmp_path / "named"
    with other_machine(machines, env) as other:
        own = machines / "there" / ".config" / "helmsman" / "helmsman.toml"
        own.parent.mkdir(parents=True)
        own.write_text(f'state_dir = "{named}"\n', encoding="utf-8")
        here = Place({**env, **other.env}, machines)
        assert (await done(whole("config", "hosts", "add", NAME, f"ssh://{NAME}", "--no-check"), here)).code == 0
        try:
            assert (await done(there("list"), here)).code == 0
            for name, value in here.env.items():
                monkeypatch.setenv(name, value)
            async with Helmsman(host=NAME) as helm:
                assert (await helm.list())[0] == []
                assert hub_pid(named) is not None
        finally:
            end_hub(usual)
            end_hub(named)


@pytest.mark.parametrize(
    ("name", "address", "command"),
    [
        ("-oProxyCommand=x", "ssh://build", ""),
        ("a b", "ssh://build", ""),
        ("build", "ssh://-oProxyCommand=x", ""),
        ("build", "ssh://-l@build", ""),
        ("build", "ssh://me@build:0", ""),
        ("build", "ssh://me@build:70000", ""),
        ("build", "ssh://build;id", ""),
        ("build", "ssh://build/path", ""),
        ("build", "build", ""),
        ("build", "ssh://build", "helmsman; id"),
        ("build", "ssh://build", "/opt/$(id)"),
        ("build", "ssh://build", "-x"),
    ],
)
def test_nothing_is_a_host_that_could_be_an_option_or_a_command(name: str, address: str, command: str) -> None:
    with pytest.raises(ValueError, match=r"is no (name|address|path)"):
        checked_host(name, address, command)


def test_the_address_comes_behind_all_options() -> None:
    command = checked_host("lab", "ssh://me@[::1]:2222", "~/bin/helmsman").ssh_command(os.environ, "/some where")
    assert command[-3:-1] == ["--", "::1"]
    assert command[-7:-3] == ["-l", "me", "-p", "2222"]
    assert command[-1].endswith(f"exec ~/bin/helmsman hub connect {b'/some where'.hex()}'")


def test_a_file_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    file = Path(hosts_file({"XDG_CONFIG_HOME": str(tmp_path)}))
    file.parent.mkdir()
    file.write_text("build\tssh://build\n", encoding="utf-8")
    file.chmod(0o622)
    with pytest.raises(HostFailed, match="chmod 600"):
        known_hosts({"XDG_CONFIG_HOME": str(tmp_path)})


def test_times_of_another_machine_are_reported_by_the_clock_of_this() -> None:
    now = time.monotonic()
    left = TimeLeft.new(60, now).shown("page", now)
    facts = SessionFacts(turn_began_at=now - 10, deadlines={"q": left}).shifted(5.0)
    assert facts.turn_began_at == now - 5
    assert facts.deadlines["q"].runs_out() == left.runs_out() + 5
    # Clocks are compared over a line that takes its time, and yet no turn begins in the future.
    began = SessionFacts(turn_began_at=now - 1).shifted(5.0).turn_began_at
    assert began is not None
    assert began <= time.monotonic()


async def test_options_for_this_machine_only_are_refused_for_another(known: Place) -> None:
    with pytest.raises(InvalidInput, match="that machine's own"):
        Helmsman(host=NAME, inside=True)
    with pytest.raises(InvalidInput, match="There is no host 'moon'"):
        Helmsman(host="moon")
    Path(hosts_file(os.environ)).write_text("moon\tssh://moon.invalid\n", encoding="utf-8")
    with pytest.raises(HostUnreachable, match="moon"):
        await Helmsman(host="moon").open()


@pytest.mark.long
async def test_tools_and_dashboard_work_there_and_ids_say_where(
    known: Place, place: Place, model: ScriptedModel
) -> None:
    """A question of a session on the other machine is answered from here; then the page shows what became of it."""
    model.on("slow", run("touch asked", escalate="please"), say("**Done.**"))
    async with HelmsmanService() as helm, Client(build_server(helm)) as client:
        caller = Caller(client)
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["codex_start"].input_schema["properties"]["host"]["enum"] == [NAME]
        arguments = {"workingDirectory": str(place.directory), "sandbox": "workspace-write"}
        started = await caller("codex_start", prompt="slow", host=NAME, approvalPolicy="on-request", **arguments)
        session_id = started["sessionId"]
        assert session_id.startswith(f"{NAME}:")
        asked = await caller.until_settled(session_id)
        assert asked["pendingQuestion"]["type"] == "command_approval"

        app = Starlette(routes=api_routes(helm, Logins(secure=False), Challenges("token")))
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here", timeout=SECONDS) as http:
            browser = Browser(http)
            (host,) = (await browser.get("/api/hosts"))["hosts"]
            assert (host["name"], host["status"]) == (NAME, "connected")
            (question,) = (await browser.get("/api/questions", host=NAME))["questions"]
            assert question["sessionId"] == session_id
            assert question["id"].startswith(f"{NAME}:")
            assert (await browser.get("/api/questions"))["questions"] == []
            told = await browser.post("/api/shown", page="p", questions=[question["id"]])
            assert told["questions"][0]["id"] == question["id"]
            await browser.post(f"/api/sessions/{session_id}/questions/{question['id']}", answers=["approve"])
            bare = session_id.removeprefix(f"{NAME}:")
            done_there = await caller.until_settled(bare)  # some models leave out the machine
            assert done_there["sessionId"] == session_id
            assert done_there["result"] == "**Done.**"
            (listed,) = (await caller("codex_list", host=NAME))["sessions"]
            assert (listed["sessionId"], listed["activeStatus"]) == (session_id, "done")
            entries = (await browser.get(f"/api/sessions/{session_id}/transcript"))["entries"]
            assert "<strong>Done.</strong>" in entries[-1]["item"]["html"]
            wrong = await caller.error("codex_status", sessionId=f"{NAME}:nobody")
            assert (wrong["code"], wrong["host"]) == ("session_not_found", NAME)
            assert (await caller.error("codex_list", host="moon"))["code"] == "invalid_input"


@pytest.mark.long
async def test_output_of_a_hostile_machine_does_no_harm(known: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It greets, then lies: every answer is an error that says so, at once, and what is here is answered as ever."""
    programs = Path(known.env["PATH"].partition(os.pathsep)[0])
    liar = f"#!{sys.executable} -IS\n{_LIAR}"
    (programs / "ssh").write_text(liar, encoding="utf-8")
    for event in ("[]", "{}", '{"epoch": "x", "clock": 1}', "garbage"):
        monkeypatch.setenv("LIE", f"event: welcome\ndata: {event}\n\n")
        async with HelmsmanService() as helm:
            with anyio.fail_after(SECONDS), pytest.raises(HostUnreachable):
                await (await helm.hosts.get(NAME)).list()
    monkeypatch.setenv("LIE", "\\x00" * 10)
    async with HelmsmanService() as helm:
        routes = HostRoutes(helm, Live(helm))
        told = {
            "entries": [{"item": {"type": "agent_message", "text": "a", "html": "<script>"}}],
            "url": "javascript:0",
        }
        shown = routes._told("liar", told | {"sessionId": "ours", "questions": [{"id": "ours"}]})
    assert shown["entries"][0]["item"]["html"].strip() == "<p>a</p>"
    assert (shown["sessionId"], shown["questions"][0]["id"]) == ("liar:ours", "liar:ours")
    assert "url" not in shown


_LIAR = r"""
import os, struct, sys
os.write(1, b"helmsman-host 1\t1.0\n")
os.read(0, 65536)
lie = os.environ["LIE"].encode()
said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(lie), lie)
os.write(1, struct.pack(">II", 1, len(said)) + said)
while os.read(0, 65536):
    pass
"""
