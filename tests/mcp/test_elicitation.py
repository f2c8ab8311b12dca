"""A question reaches a person through the client, in both eras, and the first answer wins."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import mcp_types as types
import pytest

from helmsman.approvals.deadline import LEASE_SECONDS
from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, add, ask_user, call_tool, patch, question, run, say
from mcp import Client
from tests.mcp.caller import Caller
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.anyio, on_shared_engine]


class Person:
    """Answers forms as told, and remembers them."""

    def __init__(self, action: str = "accept", **content: Any) -> None:
        self.forms: list[types.ElicitRequestFormParams] = []
        self.closed = anyio.Event()
        self._action = action
        self._content = content

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.forms.append(params)
        if self._action == "thinks":
            try:
                await anyio.sleep_forever()
            finally:
                self.closed.set()
        return types.ElicitResult(action=self._action, content=self._content or None)


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def touches(model: ScriptedModel) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))


@pytest.mark.usefixtures("touches")
@pytest.mark.parametrize(
    ("person", "made"),
    [
        (Person(decision="approve"), True),
        (Person(decision="deny", reason="not today"), False),
        (Person("decline"), False),
    ],
    ids=["approves", "denies", "declines"],
)
async def test_a_person_decides_in_a_form(
    helm: HelmsmanService, asks: dict[str, Any], folder: Path, mode: Any, person: Person, made: bool
) -> None:
    person.forms.clear()
    async with Client(build_server(helm), mode=mode, elicitation_callback=person) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        done = await codex.until_settled(session_id)
        if done["status"] == "awaiting_approval":  # the form was still open when the wait returned
            done = await settled_for_good(codex, session_id)
    assert done["status"] == "done"
    assert (folder / "made.txt").exists() is made
    (form,) = person.forms
    assert "touch made.txt" in form.message
    choices = form.requested_schema["properties"]["decision"]["enum"]
    assert choices[0] == "deny", "what a client selects by itself lets nothing happen"
    assert "approve" in choices


async def settled_for_good(codex: Caller, session_id: str) -> dict[str, Any]:
    with anyio.fail_after(30):
        while True:
            status = await codex("codex_wait", sessionId=session_id, until="change", timeoutSec=1)
            if status["status"] in ("done", "error", "interrupted"):
                return status


@pytest.mark.usefixtures("touches")
async def test_a_dismissed_form_leaves_the_question_open_and_is_not_shown_again(
    helm: HelmsmanService, asks: dict[str, Any], folder: Path, mode: Any
) -> None:
    person = Person("cancel")
    async with Client(build_server(helm), mode=mode, elicitation_callback=person) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        waiting = await codex.until_settled(session_id)
        assert waiting["status"] == "awaiting_approval"
        waiting = await codex("codex_wait", sessionId=session_id)
        assert len(person.forms) == 1
        await codex("codex_respond", sessionId=session_id, id=waiting["pendingQuestion"]["id"], answers=["approve"])
        assert (await codex.until_settled(session_id))["status"] == "done"
    assert (folder / "made.txt").exists()


@pytest.mark.usefixtures("touches")
async def test_an_answer_through_another_client_wins_and_closes_the_form(
    helm: HelmsmanService, asks: dict[str, Any], folder: Path
) -> None:
    person = Person("thinks")
    async with Client(build_server(helm), mode="legacy", elicitation_callback=person) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        waiting = await codex("codex_wait", sessionId=session_id, timeoutSec=2)
        await helm.respond(session_id, waiting["pendingQuestion"]["id"], ["deny"])
        assert (await codex.until_settled(session_id))["status"] == "done"
        with anyio.fail_after(30):
            await person.closed.wait()
    assert not (folder / "made.txt").exists()


@pytest.mark.usefixtures("touches")
async def test_a_client_without_forms_has_the_question_in_the_status(
    helm: HelmsmanService, asks: dict[str, Any], mode: Any
) -> None:
    async with Client(build_server(helm), mode=mode) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        assert (await codex.until_settled(session_id))["pendingQuestion"]["type"] == "command_approval"


@pytest.mark.usefixtures("touches")
async def test_a_client_that_vanishes_leaves_the_question_open(
    helm: HelmsmanService, asks: dict[str, Any], mode: Any, folder: Path
) -> None:
    async with Client(build_server(helm), mode=mode, elicitation_callback=Person("thinks")) as client:
        session_id = (await Caller(client)("codex_start", prompt="touch", **asks))["sessionId"]
        session = await helm.session(session_id)
        assert await session.wait(timeout=30)
    async with Client(build_server(helm), mode=mode) as client:
        codex = Caller(client)
        status = await codex("codex_status", sessionId=session_id)
        assert status["status"] == "awaiting_approval"
        await codex("codex_respond", sessionId=session_id, id=status["pendingQuestion"]["id"], answers=["approve"])
        assert (await codex.until_settled(session_id))["status"] == "done"
    assert (folder / "made.txt").exists()


@on_its_own_engine
async def test_a_question_of_the_model_is_a_form_with_its_options(
    helm: HelmsmanService, model: ScriptedModel, asks: dict[str, Any], mode: Any, codex_home: CodexHome
) -> None:
    model.on("choose", ask_user(question("Which one?", "A", "B")), say("thanks"))
    person = Person(q1="B")
    async with Client(build_server(helm), mode=mode, elicitation_callback=person) as client:
        codex = Caller(client)
        config = {"features": {"default_mode_request_user_input": True}}
        session_id = (await codex("codex_start", prompt="choose", config=config, **asks))["sessionId"]
        done = await settled_for_good(codex, session_id)
    assert done["result"] == "thanks"
    assert "B" in model.requests[-1].tool_output
    assert [form.message for form in person.forms] == ["Codex asks you\nQuestion: Which one?"]


@on_its_own_engine
async def test_the_form_of_an_mcp_server_is_passed_on_and_its_answer_back(
    codex_home: CodexHome,
    helm: HelmsmanService,
    model: ScriptedModel,
    asks: dict[str, Any],
    mode: Any,
    mcp_server_config: dict[str, Any],
) -> None:
    codex_home.configure(mcp_servers=mcp_server_config)
    model.on("ask", call_tool("lab", "ask", {}), say("thanks"))
    person = Person(name="bob")
    async with Client(build_server(helm), mode=mode, elicitation_callback=person) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="ask", **asks))["sessionId"]
        done = await settled_for_good(codex, session_id)
    assert done["result"] == "thanks"
    assert "bob" in model.requests[-1].tool_output


# --- the clock, and who answered -------------------------------------------------------------------------------------


def last_in_audit(helm: HelmsmanService) -> tuple[str, str | None]:
    lines = (helm.settings.state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    entry = json.loads(lines[-1])
    return entry["by"], entry.get("via")


@pytest.mark.usefixtures("touches")
async def test_the_audit_log_names_the_agent_that_answered_with_a_tool(
    helm: HelmsmanService, asks: dict[str, Any], mode: Any
) -> None:
    named = types.Implementation(name="some-agent", version="1.2")
    async with Client(build_server(helm), mode=mode, client_info=named) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        waiting = await codex.until_settled(session_id)
        assert waiting["pendingQuestion"]["deadline"]["secondsLeft"] > 200
        await codex("codex_respond", sessionId=session_id, id=waiting["pendingQuestion"]["id"], answers=["deny"])
        await codex.until_settled(session_id)
    assert last_in_audit(helm) == ("agent: some-agent 1.2", "tool")


@pytest.mark.usefixtures("touches")
async def test_the_audit_log_names_the_person_and_the_client_whose_form_it_was(
    helm: HelmsmanService, asks: dict[str, Any], mode: Any
) -> None:
    named = types.Implementation(name="some-agent", version="1.2")
    person = Person(decision="deny")
    async with Client(build_server(helm), mode=mode, elicitation_callback=person, client_info=named) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        if (await codex.until_settled(session_id))["status"] == "awaiting_approval":
            await settled_for_good(codex, session_id)
    assert last_in_audit(helm) == ("person", "form of some-agent 1.2")


@pytest.mark.usefixtures("touches")
async def test_the_clock_stands_still_while_a_form_is_open_and_runs_when_it_is_dismissed(
    helm: HelmsmanService, asks: dict[str, Any]
) -> None:
    dismiss = anyio.Event()

    async def person(context: Any, params: Any) -> types.ElicitResult:
        await dismiss.wait()
        return types.ElicitResult(action="cancel")

    async with Client(build_server(helm), mode="legacy", elicitation_callback=person) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        await until_paused(codex, session_id, True)
        dismiss.set()
        await until_paused(codex, session_id, False)
        assert (await codex("codex_status", sessionId=session_id))["status"] == "awaiting_approval"


@pytest.mark.usefixtures("touches")
async def test_a_form_that_was_handed_out_stops_the_clock_for_one_lease(
    helm: HelmsmanService, asks: dict[str, Any]
) -> None:
    """Nobody can tell whether a client of 2026-07-28 still shows it: fetching it again gains nothing."""
    async with Client(build_server(helm), elicitation_callback=Person("cancel")) as client:
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        waiting = await codex.until_settled(session_id)
        assert waiting["pendingQuestion"]["deadline"]["paused"]
        session = await helm.session(session_id)
        (deadline,) = session.deadlines.values()
        deadline.clock = lambda: time.monotonic() + LEASE_SECONDS
        for _ in range(3):
            waiting = await codex("codex_wait", sessionId=session_id, timeoutSec=1)
            assert not waiting["pendingQuestion"]["deadline"]["paused"]


async def until_paused(codex: Caller, session_id: str, wanted: bool) -> None:
    with anyio.fail_after(30):
        while True:
            status = await codex("codex_status", sessionId=session_id)
            if "pendingQuestion" in status and status["pendingQuestion"]["deadline"]["paused"] is wanted:
                return
            await anyio.sleep(0.02)


@on_its_own_engine
async def test_the_status_names_unanswered_questions(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, asks: dict[str, Any], mode: Any
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with (
        HelmsmanService(replace(settings, approval_timeout=0.2), env=codex_home.env) as helm,
        Client(build_server(helm), mode=mode) as client,
    ):
        codex = Caller(client)
        session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
        done = await settled_for_good(codex, session_id)
        assert done["status"] == "done"
        assert done["note"].startswith("A question timed out and was denied: ")
        assert len(done["timedOut"]) == 1
        (content,) = (await client.read_resource(f"codex://sessions/{session_id}")).contents
        assert isinstance(content, types.TextResourceContents)
        assert "denied: no answer in" in content.text


async def test_a_question_that_is_too_long_for_a_form_is_opened_in_the_dashboard(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, mode: Any
) -> None:
    long = "".join(f"line {number}\n" for number in range(2_000))
    model.on("write", patch(add("new.txt", long)), say("done"))
    pages: list[types.ElicitRequestURLParams] = []
    completed = anyio.Event()

    async def person(context: Any, params: Any) -> types.ElicitResult:
        pages.append(params)
        return types.ElicitResult(action="accept")

    async def hear(message: Any) -> None:
        if isinstance(message, types.ElicitCompleteNotification):
            assert message.params.elicitation_id == pages[0].elicitation_id
            completed.set()

    client = Client(build_server(helm), mode=mode, elicitation_callback=person, message_handler=hear)
    with helm.serves_dashboard("http://127.0.0.1:1234"):
        async with client, anyio.create_task_group() as tasks:
            codex = Caller(client)
            options = {"sandbox": "read-only", "approvalPolicy": "on-request", "workingDirectory": str(git_repo)}
            session_id = (await codex("codex_start", prompt="write", **options))["sessionId"]
            waited = anyio.Event()

            async def wait() -> None:
                await codex("codex_wait", sessionId=session_id, timeoutSec=1)
                waited.set()

            tasks.start_soon(wait)
            session = await helm.session(session_id)
            with anyio.fail_after(30):
                await session.wait()
                while not pages:
                    await anyio.sleep(0.01)
            (question,) = session.questions
            (page,) = pages
            assert page.url == f"http://127.0.0.1:1234/#/s/{session_id}/question/{quote(question.id, safe='')}"
            with anyio.fail_after(30):
                await waited.wait()  # only then does the server know that the page was opened
            waiting = await codex("codex_wait", sessionId=session_id, timeoutSec=1)
            assert waiting["status"] == "awaiting_approval", "opening a page approves nothing"
            await helm.respond(session_id, question.id, ["approve"])
            if mode == "legacy":
                with anyio.fail_after(30):
                    await completed.wait()
            assert (await settled_for_good(codex, session_id))["status"] == "done"
    assert (git_repo / "new.txt").read_text() == long
    assert len(pages) == 1
