"""The hub's HTTP API on its Unix socket, as curl and other programs use it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from helmsman.httpd.operation_routes import openapi_document, operation_routes
from helmsman.hub.control import HUB_PATH, RESTART_PATH, request
from helmsman.hub.launch import SOCKET
from helmsman.testing import ScriptedModel, run, say
from tests.hub.conftest import Place
from tests.hub.test_start import ping

pytestmark = pytest.mark.anyio

SECONDS = 30


@pytest.mark.skipif(shutil.which("curl") is None, reason="There is no curl.")
async def test_curl_shows_the_hub(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)
        address = ["--unix-socket", str(bare_place.state_dir / SOCKET), f"http://hub{HUB_PATH}"]
        done = await anyio.run_process(["curl", "--silent", "--fail", "--max-time", str(SECONDS), *address])
        assert json.loads(done.stdout)["pid"] == bare_place.hub


PAGE = Path(__file__).parents[2] / "docs" / "api.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="There is no curl.")
async def test_the_examples_of_the_page_work(place: Place, model: ScriptedModel) -> None:
    model.on("Fix the failing test", run("touch made.txt", escalate="It is needed."), say("Made."))
    examples = PAGE.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0].splitlines()
    first, listing, start, status, events, answer = examples
    assert first.startswith("SOCKET=")
    known = {"$SOCKET": shlex.quote(str(place.state_dir / SOCKET)), "/home/you/project": str(place.directory)}

    async def shown(example: str) -> Any:
        done = await anyio.run_process(["bash", "-c", f"{filled(example, known)} --silent --fail --max-time {SECONDS}"])
        return json.loads(done.stdout)

    async with place.started() as server:
        await ping(server)
        assert await shown(listing) == {"sessions": []}
        known["SESSION"] = (await shown(start))["sessionId"]
        with anyio.fail_after(SECONDS):
            while (now := await shown(status))["status"] != "awaiting_approval":
                await anyio.sleep(0.05)
        known["QUESTION"] = now["pendingQuestion"]["id"]
        async with await anyio.open_process(["bash", "-c", f"exec {filled(events, known)} --silent"]) as following:
            assert following.stdout is not None
            seen = b""
            with anyio.fail_after(SECONDS):
                while b"data: " not in seen:
                    seen += await following.stdout.receive()
            following.terminate()
        assert (await shown(answer))["sessionId"] == known["SESSION"]
        with anyio.fail_after(SECONDS):
            while (await shown(status))["status"] != "done":
                await anyio.sleep(0.05)
    assert (place.directory / "made.txt").exists()


def filled(example: str, known: Mapping[str, str]) -> str:
    """Return an example with values for its placeholders."""
    for name, value in known.items():
        example = example.replace(name, value)
    return example


async def test_an_error_is_a_problem_with_a_code_and_the_next_step(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)
        answer = request(str(bare_place.state_dir), "GET", "/v1/nothing")
        assert answer is not None
        assert (answer[0], answer[1]["code"]) == (404, "not_found")
        assert "/v1/openapi.json" in answer[1]["detail"]


async def test_a_hub_stays_for_a_client_that_is_not_newer(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)
        hub = bare_place.hub
        answer = request(str(bare_place.state_dir), "POST", RESTART_PATH, {"version": "0.0.1"})
        assert answer is not None
        assert (answer[0], answer[1]["code"]) == (409, "not_newer")
        assert bare_place.hub == hub


async def test_a_request_that_comes_letter_by_letter_is_answered(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)

        head = f"GET {HUB_PATH} HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n"
        answer = await anyio.to_thread.run_sync(answer_to, bare_place, head)
        assert answer.startswith(b"HTTP/1.1 200")


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)
        head = f"POST {RESTART_PATH} HTTP/1.1\r\nHost: hub\r\nContent-Length: 5000000\r\n\r\n"
        assert (await anyio.to_thread.run_sync(answer_to, bare_place, head)).startswith(b"HTTP/1.1 413")


def answer_to(place: Place, head: str) -> bytes:
    """Send the head of a request letter by letter. Return the beginning of the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(str(place.state_dir / SOCKET))
        for letter in head:
            connection.sendall(letter.encode())
        return connection.recv(100)


# --- operations ------------------------------------------------------------------------------------------------------


def connected(place: Place) -> AbstractAsyncContextManager[httpx2.AsyncClient]:
    transport = httpx2.AsyncHTTPTransport(uds=str(place.state_dir / SOCKET))
    return httpx2.AsyncClient(transport=transport, base_url="http://hub", timeout=SECONDS)


async def events_of(
    http: httpx2.AsyncClient, session_id: str, *, after: int | None = None, until: int | None = None
) -> AsyncIterator[tuple[int, Any]]:
    """Yield the events of a session with their numbers, up to the one with the number `until`."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    async with http.stream("GET", f"/v1/sessions/{session_id}/events", headers=headers) as response:
        number = 0
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                number = int(value)
            elif name == "data":
                yield number, json.loads(value)
                if number == until:
                    return


async def test_a_session_is_started_followed_answered_and_listed(place: Place, model: ScriptedModel) -> None:
    model.on("make it", run("touch made.txt", escalate="It is needed."), say("Made."))
    async with place.started() as server, connected(place) as http:
        await ping(server)
        options = {"workingDirectory": str(place.directory), "approvalPolicy": "on-request", "agent": "codex"}
        started = await http.post("/v1/sessions", json={"prompt": "make it", **options})
        assert started.status_code == 200, started.text
        session_id = started.json()["sessionId"]
        seen: list[int] = []
        with anyio.fail_after(SECONDS):
            async for number, event in events_of(http, session_id):
                seen.append(number)
                if event["type"] == "question_asked":
                    answer = {"id": event["question"]["id"], "answers": ["approve"]}
                    assert (await http.post(f"/v1/sessions/{session_id}/respond", json=answer)).status_code == 200
                if event["type"] == "turn_ended":
                    break
            assert seen == sorted(set(seen))
            async for number, _ in events_of(http, session_id, after=seen[-2]):
                assert number == seen[-1]
                break
        status = (await http.get(f"/v1/sessions/{session_id}")).json()
        assert (status["status"], status["result"]) == ("done", "Made.")
        listed = (await http.get("/v1/sessions", params={"limit": 1})).json()
        assert [one["sessionId"] for one in listed["sessions"]] == [session_id]


async def test_a_call_with_a_key_is_carried_out_once_also_after_the_hub_was_killed(
    place: Place, model: ScriptedModel
) -> None:
    model.on("once", say("Done."))
    call = {"prompt": "once", "workingDirectory": str(place.directory)}
    async with place.started() as server:
        await ping(server)
        async with connected(place) as http:
            first = await http.post("/v1/sessions", json=call, headers={"Idempotency-Key": "a key"})
            again = await http.post("/v1/sessions", json=call, headers={"Idempotency-Key": "a key"})
            other = await http.post(
                "/v1/sessions", json=call | {"prompt": "other"}, headers={"Idempotency-Key": "a key"}
            )
            assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        os.kill(place.hub, signal.SIGKILL)
        await ping(server)
        async with connected(place) as http:
            other = await http.post(
                "/v1/sessions", json=call | {"model": "other"}, headers={"Idempotency-Key": "a key"}
            )
            assert other.status_code == 422
            after = await http.post("/v1/sessions", json=call, headers={"Idempotency-Key": "a key"})
            session_id = after.json()["sessionId"]
            assert {one.json()["sessionId"] for one in (first, again)} == {session_id}
            waited = await http.get("/v1/wait", params={"sessionIds": session_id, "timeoutSec": SECONDS})
            assert waited.json()["status"] == "done"
    assert len(model.requests) == 1


async def test_a_stream_of_events_continues_from_the_hub_after_a_killed_one(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("work", run("echo before"), say(gate, "Done."))
    async with place.started() as server, connected(place) as http:
        await ping(server)
        options = {"workingDirectory": str(place.directory), "sandbox": "read-only"}
        session_id = (await http.post("/v1/sessions", json={"prompt": "work", **options})).json()["sessionId"]
        await model.wait_for_request(2)
        seen: list[int] = []
        with anyio.fail_after(SECONDS), suppress(httpx2.HTTPError):
            async for number, _ in events_of(http, session_id):
                seen.append(number)
                if len(seen) == 1:
                    os.kill(place.hub, signal.SIGKILL)
        await ping(server)
        gate.release()
    async with place.started() as server, connected(place) as http:
        await ping(server)
        with anyio.fail_after(SECONDS):
            async for number, event in events_of(http, session_id, after=seen[-1]):
                seen.append(number)
                if event["type"] == "turn_ended":
                    break
            assert seen == [number async for number, _ in events_of(http, session_id, until=seen[-1])]


async def test_a_key_of_a_call_counts_for_its_own_session_only(place: Place, model: ScriptedModel) -> None:
    model.otherwise(say("Done."))
    async with place.started() as server:
        await ping(server)
        async with connected(place) as http:
            begun = [
                await http.post("/v1/sessions", json={"prompt": prompt, "workingDirectory": str(place.directory)})
                for prompt in ("first", "second")
            ]
            sessions = [one.json()["sessionId"] for one in begun]
            for session_id in sessions:
                waited = await http.get("/v1/wait", params={"sessionIds": session_id, "timeoutSec": SECONDS})
                assert waited.json()["status"] == "done"
                headers = {"Idempotency-Key": "a key"}
                stopped = await http.post(f"/v1/sessions/{session_id}/interrupt", json={}, headers=headers)
                assert stopped.json()["sessionId"] == session_id


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("GET", "/v1/sessions/00000000-0000-0000-0000-000000000000", None, 404, "session_not_found"),
        ("POST", "/v1/sessions", {"prompt": "x"}, 400, "invalid_input"),
        ("POST", "/v1/sessions", {"prompt": "x", "workingDirectory": "here"}, 400, "invalid_input"),
        ("POST", "/v1/sessions", {"promt": "x"}, 400, "invalid_input"),
        ("POST", "/v1/sessions", ["x"], 400, "invalid_input"),
        ("GET", "/v1/sessions/x/events?since=y", None, 400, "invalid_input"),
        ("DELETE", "/v1/sessions", None, 405, "bad_request"),
    ],
)
async def test_a_wrong_request_is_refused_with_a_reason(
    bare_place: Place, method: str, path: str, content: object, status: int, code: str
) -> None:
    async with bare_place.started() as server, connected(bare_place) as http:
        await ping(server)
        answer = await http.request(method, path, json=content)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]


def test_every_operation_has_its_own_route_and_is_described() -> None:
    routes = [(one.method, one.path) for one in operation_routes()]
    assert len(routes) == len(set(routes))
    document = openapi_document()
    assert all(method.lower() in document["paths"][path] for method, path in routes)
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(names) == len(set(names))
    OpenAPIV31SpecValidator(document).validate()


# --- a client made by a public generator -------------------------------------------------------------------------------

GENERATOR = "openapi-python-client==0.29.1"
PROGRAM = """
import sys, time
import httpx
from hub_client import Client
from hub_client.api.default import respond, start, status
from hub_client.models import RespondBody, StartBody, StartBodyApprovalPolicy

socket, directory = sys.argv[1:]
through = httpx.HTTPTransport(uds=socket)
client = Client(base_url="http://hub").set_httpx_client(httpx.Client(transport=through, base_url="http://hub", timeout=30))
asking = StartBodyApprovalPolicy.ON_REQUEST
body = StartBody(prompt="make it", working_directory=directory, approval_policy=asking)
session = start.sync(client=client, body=body, idempotency_key="once").session_id
assert start.sync(client=client, body=body, idempotency_key="once").session_id == session

def until(wanted):
    while (now := status.sync(session, client=client)).status != wanted:
        time.sleep(0.05)
    return now

question = until("awaiting_approval").pending_question
respond.sync(session, client=client, body=RespondBody(id=question.id, answers=["approve"]))
print(until("done").result)
print(status.sync("nothing", client=client).code)
"""


@pytest.mark.rare
async def test_a_generated_client_works_a_session(place: Place, model: ScriptedModel, tmp_path: Path) -> None:
    generator = tmp_path / "generator"
    await anyio.run_process([sys.executable, "-m", "venv", str(generator)])
    installed = await anyio.run_process([generator / "bin" / "pip", "install", "--quiet", GENERATOR], check=False)
    if installed.returncode:
        pytest.skip("The generator cannot be fetched.")
    (tmp_path / "openapi.json").write_text(json.dumps(openapi_document()), encoding="utf-8")
    made = await anyio.run_process(
        [
            *(generator / "bin" / "openapi-python-client", "generate", "--meta", "none"),
            *("--path", tmp_path / "openapi.json", "--output-path", tmp_path / "hub_client"),
        ],
        cwd=tmp_path,
    )
    assert b"Unsupported" not in made.stdout
    model.on("make it", run("touch made.txt", escalate="It is needed."), say("Made."))
    async with place.started() as server:
        await ping(server)
        arguments = [str(place.state_dir / SOCKET), str(place.directory)]
        with anyio.fail_after(2 * SECONDS):
            done = await anyio.run_process([generator / "bin" / "python", "-c", PROGRAM, *arguments], cwd=tmp_path)
    assert done.stdout.decode().splitlines() == ["Made.", "session_not_found"]
