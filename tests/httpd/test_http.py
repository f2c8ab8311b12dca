"""Tests of `helmsman serve --transport http`: authentication, several clients, and its end."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest

from helmsman.httpd.listening import TOKEN_NAME, HttpOptions
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from mcp import Client
from tests.clients.server_process import SECONDS, HttpServer, Serving
from tests.mcp.caller import Caller

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to end a server by"),
]

ERAS: list[Any] = ["legacy", "2026-07-28"]
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
def serving(codex_home: CodexHome, codex_binary: Path, git_repo: Path) -> Serving:
    return Serving.on(codex_home, codex_binary, git_repo)


async def post(server: HttpServer, **headers: str) -> httpx2.Response:
    """Say hello, with these headers beside the usual ones."""
    async with httpx2.AsyncClient(timeout=SECONDS) as http:
        return await http.post(server.url, json=HELLO, headers=ACCEPT | headers)


# --- who is let in ---------------------------------------------------------------------------------------------------


async def test_only_the_right_token_host_and_origin_get_in(serving: Serving) -> None:
    async with serving.over_http() as server:
        token = server.headers["Authorization"]
        for wrong in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": server.token},
            {"Authorization": "Bearer"},
        ):
            refused = await post(server, **wrong)
            assert (refused.status_code, refused.json()["code"]) == (401, "wrong_token")
            assert refused.headers["www-authenticate"] == 'Bearer realm="helmsman"'
            assert server.token not in refused.text
        for host in ("evil.example", "127.0.0.1.evil.example:80", "", "[", "10.0.0.1"):
            refused = await post(server, Authorization=token, Host=host)
            assert (refused.status_code, refused.json()["code"]) == (421, "wrong_host")
        for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example", "http://["):
            refused = await post(server, Authorization=token, Origin=origin)
            assert (refused.status_code, refused.json()["code"]) == (403, "wrong_origin")
        for headers in ({}, {"Host": "localhost"}, {"Origin": "http://localhost:3000"}):
            welcome = await post(server, Authorization=token, **headers)
            assert welcome.status_code == 200, welcome.text
            assert welcome.headers["mcp-session-id"]


async def test_clients_that_look_for_oauth_find_none_with_or_without_the_token(serving: Serving) -> None:
    names = ("oauth-protected-resource", "oauth-authorization-server", "openid-configuration")
    paths = [f"/.well-known/{name}{tail}" for name in names for tail in ("", "/mcp", "/mcp/")]
    paths += ["/mcp/.well-known/openid-configuration", "/register", "/authorize", "/token"]
    async with serving.over_http() as server, httpx2.AsyncClient(timeout=SECONDS) as http:
        base = server.url.removesuffix("/mcp")
        for method, path, headers in itertools.product(("GET", "POST"), paths, ({}, server.headers)):
            answer = await http.request(method, base + path, headers=headers)
            assert answer.status_code == 404, (method, path, answer.text)
            assert "www-authenticate" not in answer.headers
            assert "bearer token" in answer.json()["error_description"]
        for other in ("/.well-known/", "/.well-known/oauth", "/.well-known/helmsman", "/register/x", "/mcp/oauth-x"):
            assert (await http.get(base + other)).status_code == 401, other
        assert (await http.get(base + paths[0], headers={"Host": "evil.example"})).status_code == 421


async def test_a_slash_behind_the_path_makes_no_difference(serving: Serving) -> None:
    async with serving.over_http() as server, httpx2.AsyncClient(timeout=SECONDS) as http:
        assert (await http.post(f"{server.url}/", json=HELLO, headers=ACCEPT)).status_code == 401
        assert (await http.post(f"{server.url}/x", json=HELLO, headers=ACCEPT | server.headers)).status_code == 405
        with_slash = replace(server, url=f"{server.url}/")
        async with Client(with_slash.transport(), mode="legacy") as client:
            assert (await client.list_tools()).tools


async def test_the_token_is_the_owners_alone_and_stays_the_same(serving: Serving) -> None:
    async with serving.over_http() as server:
        first = server.token
    file = serving.state_dir / TOKEN_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert len(first) >= 32
    async with serving.over_http() as server:
        assert server.token == first
        assert (await post(server, **server.headers)).status_code == 200
    assert not any(first in line for line in server.server.errors)


async def test_a_body_that_is_too_large_is_refused_and_the_server_continues(serving: Serving) -> None:
    async with serving.over_http() as server, httpx2.AsyncClient(timeout=SECONDS, headers=server.headers) as http:
        refused = await http.post(server.url, content=b"x" * (33 * 1024 * 1024), headers=ACCEPT)
        assert refused.status_code == 413
        assert (await post(server, **server.headers)).status_code == 200


async def test_another_name_is_answered_to_when_that_was_said(serving: Serving) -> None:
    async with serving.over_http("--allow-name", "Box.example") as server:
        assert (await post(server, **server.headers, Host="box.example")).status_code == 200
        assert (await post(server, **server.headers, Host="other.example")).status_code == 421


def test_on_every_interface_addresses_are_answered_to_and_names_are_not() -> None:
    everywhere = HttpOptions(host="0.0.0.0")
    assert everywhere.answers_to("192.0.2.7")
    assert everywhere.answers_to("::1")
    assert not everywhere.answers_to("evil.example")
    assert not HttpOptions().answers_to("192.0.2.7")


# --- refused starts --------------------------------------------------------------------------------------------------


async def refusal(serving: Serving, *arguments: str) -> str:
    async with serving.started("--transport", "http", *arguments) as server:
        assert await server.ended() == 2
    (error,) = server.errors
    return error


async def test_other_interfaces_need_tls_or_the_switch(serving: Serving) -> None:
    error = await refusal(serving, "--listen", "0.0.0.0")
    assert error == (
        "Error: On 0.0.0.0 others could read the token on its way. Listen on 127.0.0.1 and use an SSH tunnel, or "
        "give --tls-cert and --tls-key."
    )
    assert "give both" in (await refusal(serving, "--tls-cert", "cert.pem")).lower()
    HttpOptions(host="0.0.0.0", allow_plain_http=True).check()


async def test_a_certificate_that_cannot_be_used_is_refused(serving: Serving) -> None:
    error = await refusal(serving, "--listen", "0.0.0.0", "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    assert (
        f"The TLS certificate {serving.directory}/cert.pem and key {serving.directory}/key.pem cannot be used" in error
    )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")
async def test_with_a_certificate_it_speaks_https(serving: Serving) -> None:
    certificate, key = serving.directory / "cert.pem", serving.directory / "key.pem"
    files = ["-out", str(certificate), "-keyout", str(key)]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    await anyio.run_process([*make, *files, *names])
    async with serving.over_http("--tls-cert", str(certificate), "--tls-key", str(key)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=certificate)
        async with httpx2.AsyncClient(timeout=SECONDS, verify=trusting) as http:
            welcome = await http.post(server.url, json=HELLO, headers=ACCEPT | server.headers)
    assert welcome.status_code == 200


def test_commands_that_only_hold_the_port_import_no_server() -> None:
    """Twenty megabytes in place of seventy, for as long as it listens; the hub has what it takes to serve."""
    program = "import sys, helmsman.cli.dashboard, helmsman.cli.serve, helmsman.hub.control; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert not {"anyio", "asyncio", "mcp", "pydantic", "starlette", "uvicorn"} & {*done.stdout.split()}


async def test_a_port_in_use_is_said(serving: Serving) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = await refusal(serving, "--port", str(port))
    assert error == (
        f"Error: Cannot listen on 127.0.0.1 port {port}: Address already in use. Choose another --port, or 0 for any."
    )


async def test_a_token_file_without_a_token_is_refused(serving: Serving) -> None:
    serving.state_dir.mkdir(mode=0o700, exist_ok=True)
    (serving.state_dir / TOKEN_NAME).write_text("short", encoding="utf-8")
    assert "holds no usable token" in await refusal(serving)


# --- clients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_two_clients_at_once_see_the_same_sessions_and_answer_what_each_was_shown(
    serving: Serving, model: ScriptedModel, era: Any
) -> None:
    gate = model.gate()
    model.on("work", say("almost", gate, " done"))
    model.on("touch", run("touch made.txt", escalate="please"), say("touched"))
    async with (
        serving.over_http("--tools", "sessions,router") as server,
        Client(server.transport(), mode="legacy") as first,
        Client(server.transport(), mode=era) as second,
    ):
        one, other = Caller(first), Caller(second)
        session_id = (await one("codex_start", prompt="work"))["sessionId"]
        with anyio.fail_after(SECONDS):
            await gate.reached()
        assert (await other("codex_status", sessionId=session_id))["status"] == "active"
        (listed,) = (await other("codex_list"))["sessions"]
        assert (listed["sessionId"], listed["isActive"]) == (session_id, True)
        results: list[str] = []

        async def wait(codex: Caller) -> None:
            results.append((await codex.until_settled(session_id))["result"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, one)
            tasks.start_soon(wait, other)
            gate.release()
        assert results == ["almost done", "almost done"]

        task_id = (await other("codex", request="touch a file"))["task"]["id"]
        shown = await other("codex", request=f"wait for {task_id}")
        approve: dict[str, Any] = {"request": f"approve {task_id}"}
        assert not (await one("codex", **approve))["acknowledged"], "it was shown to the other"
        if era != "legacy":  # without a session the viewer is unknown
            asked = await other("codex", **approve)
            assert not asked["acknowledged"]
            approve["hints"] = {"questionId": shown["pendingQuestion"]["id"]}
            assert approve["hints"]["questionId"] in asked["userMessage"]
        assert (await other("codex", **approve))["answered"]["answers"] == ["approve"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_person_is_asked_inside_the_wait(
    serving: Serving, model: ScriptedModel, git_repo: Path, era: Any
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    asked: list[str] = []

    async def person(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"decision": "approve"})

    async with (
        serving.over_http() as server,
        Client(server.transport(), mode=era, elicitation_callback=person) as client,
    ):
        codex = Caller(client)
        options = {"sandbox": "workspace-write", "approvalPolicy": "on-request"}
        session_id = (await codex("codex_start", prompt="touch", **options))["sessionId"]
        assert (await codex.until_settled(session_id))["status"] == "done"
    assert (git_repo / "made.txt").exists()
    (message,) = asked
    assert "touch made.txt" in message


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_disconnects_in_mid_wait_leaves_the_server_and_the_turn_as_they_are(
    serving: Serving, model: ScriptedModel, era: Any
) -> None:
    gate = model.gate()
    model.on("work", say("almost", gate, " done"))
    async with serving.over_http() as server:
        heard = anyio.Event()

        async def listen(progress: float, total: float | None, message: str | None) -> None:
            heard.set()

        async with Client(server.transport(), mode=era) as leaving:
            session_id = (await Caller(leaving)("codex_start", prompt="work"))["sessionId"]
            async with anyio.create_task_group() as tasks:
                waiting = {"sessionId": session_id, "timeoutSec": 600}
                tasks.start_soon(lambda: leaving.call_tool("codex_wait", waiting, progress_callback=listen))
                with anyio.fail_after(SECONDS):
                    await heard.wait()
                tasks.cancel_scope.cancel()
        gate.release()
        async with Client(server.transport(), mode=era) as client:
            assert (await Caller(client).until_settled(session_id))["result"] == "almost done"


# --- its end ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("era", ERAS)
async def test_a_signal_ends_the_server_and_codex_quietly_while_clients_wait(
    serving: Serving, model: ScriptedModel, era: Any, number: signal.Signals, exit_code: int
) -> None:
    model.on("work", run("sleep 1000"), hang())
    async with serving.over_http() as server:
        heard = anyio.Event()

        async def listen(progress: float, total: float | None, message: str | None) -> None:
            heard.set()

        async with Client(server.transport(), mode=era) as client:
            session_id = (await Caller(client)("codex_start", prompt="work"))["sessionId"]

            async def wait() -> None:
                with contextlib.suppress(Exception):  # each era has its own way to say that the stream ended
                    await client.call_tool("codex_wait", {"sessionId": session_id}, progress_callback=listen)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                with anyio.fail_after(SECONDS):
                    await heard.wait()
                assert await server.server.end_by(number) == exit_code
                tasks.cancel_scope.cancel()
    assert len(server.server.errors) == 2, server.server.errors
    assert server.server.errors[-1].startswith("Listening on ")
