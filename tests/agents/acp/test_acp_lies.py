"""Tests that a question shows everything that a yes grants, whatever its title says."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.acp.profile import OwnAgent
from helmsman.agents.acp.updates import Asking, read_question, refusing, write_answer
from helmsman.base.structs import replace
from helmsman.errors import EngineStartFailed, QuestionNotOpen, SessionIdle
from helmsman.model.events import EngineGone, Notice, QuestionAsked
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.question_text import describe
from helmsman.model.questions import Choice, Question
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, says, updates, waits
from tests.agents.acp.test_acp_engine import Fake, Followed, begin, engine_of, fake, options

__all__ = ["fake", "options"]

ASKING = Asking(title="Fake", session_id="s", turn_id="t", directory="/repo", request_id=0, sandbox="outside")
OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def asked(call: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> Question:
    params = {"toolCall": {"toolCallId": "1", "kind": "execute", **call}, "options": OPTIONS}
    return read_question(params, known or {}, ASKING)


def words(text: str) -> dict[str, Any]:
    return {"title": "make", "content": [{"type": "content", "content": {"type": "text", "text": text}}]}


@pytest.mark.parametrize(
    ("call", "directory", "more"),
    [
        ({"rawInput": {"command": "make"}}, "/repo", None),
        ({"rawInput": {"command": "make", "cwd": "/repo", "workdir": "/repo/sub"}}, "/repo/sub", None),  # OpenCode
        ({"rawInput": {"command": "make", "workdir": "sub", "timeout": 5}}, "/repo/sub", None),
        ({"rawInput": {"command": "make", "directory": "/x", "is_background": False}}, "/x", None),  # Qwen
        ({"rawInput": {"command": "make", "is_background": True}}, "/repo", {"is_background": True}),
        ({"rawInput": {"command": "make", "commands": ["make"], "mode": "sync"}}, "/repo", None),  # Copilot
        ({"rawInput": {"command": "make", "mode": "async"}}, "/repo", {"mode": "async"}),
        ({"rawInput": {"command": ["rm", "x"]}, "title": "make"}, "/repo", {"command": ["rm", "x"]}),
        (words("[current working directory /repo] (why)"), "/repo", None),  # Gemini
        (words("[in sub] (why)"), None, "[in sub] (why)"),
        (words("[current working directory /repo] [background]"), None, "[current working directory /repo] [background]"),
    ],
)  # fmt: skip
def test_a_command_says_where_it_runs_and_what_else_it_is_given(
    call: Mapping[str, Any], directory: str | None, more: object
) -> None:
    details = asked(call).details
    assert (details["command"], details.get("directory"), details.get("more")) == ("make", directory, more)


def test_a_change_names_every_file_and_a_file_that_is_there_is_not_new(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    diff = {"type": "diff", "path": str(tmp_path / "a.txt"), "oldText": None, "newText": "three\n"}
    given = {"file_path": "a.txt", "content": "three\n"}
    places = [{"path": str(tmp_path / "a.txt")}, {"path": "/etc/hosts"}]
    details = asked({"kind": "edit", "content": [diff], "rawInput": given, "locations": places}).details
    assert details["paths"] == [str(tmp_path / "a.txt"), "/etc/hosts"]
    assert details["changes"][0] == {"path": str(tmp_path / "a.txt"), "kind": "update", "added": 1, "removed": 2}
    assert details["sandbox"] == "outside"
    unseen = {"patchText": "*** Update File: b.txt"}
    details = asked({"kind": "edit", "rawInput": unseen, "locations": [{"path": "/repo/b.txt"}]}).details
    assert details["input"] == unseen  # what no diff shows


@pytest.mark.parametrize("content", [b"one one\r\n", "one one".encode("utf-16")])
@pytest.mark.parametrize(
    "given",
    [
        {"oldString": "one", "newString": "ONE", "replaceAll": True},  # OpenCode
        {"old_string": "one", "new_string": "ONE", "expected_replacements": 2},  # Gemini, Qwen
        {"old_string": "one", "new_string": "ONE", "allow_multiple": True},
    ],
)
@pytest.mark.parametrize("is_told", [False, True])
def test_a_piece_that_is_replaced_several_times_is_not_shown_as_one_change(
    tmp_path: Path, content: bytes, given: Mapping[str, Any], is_told: bool
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(content)
    piece = {"type": "diff", "path": str(file), "oldText": "one", "newText": "ONE"}
    request = {"file_path": str(file), **given}
    call = {"kind": "edit", "rawInput": request, "content": [piece] if is_told else []}
    question = asked(call)
    assert question.details["input"] == request
    assert question.details["changes"] == [{"path": str(file), "kind": "update"}]
    assert "diff" not in question.details
    assert "Not known" in {line.label for line in describe(question).lines}
    text = content.decode("utf-16" if content[:1] == b"\xff" else "utf-8")
    if content.startswith(b"one"):  # the whole file is shown as it will be
        whole = {**piece, "oldText": text, "newText": text.replace("one", "ONE")}
        assert "+ONE ONE" in asked({**call, "content": [whole]}).details["diff"]


def test_a_tool_says_what_it_is_beside_its_title() -> None:
    details = asked({"kind": "other", "toolCallId": "mcp_lab_wipe__1", **words('{"command": "make"}')}).details
    assert details["permissions"] == {"tool": "make", "kind": "other"}
    assert (details["call"], details["says"]) == ("mcp_lab_wipe__1", '{"command": "make"}')
    call = {"kind": "other", "toolCallId": "1", "title": "make"}
    params = {"toolCall": call, "options": OPTIONS}
    named = replace(ASKING, tool="mcp__lab__wipe", announced="ToolCall")
    details = read_question(params, {}, named).details
    assert details["permissions"] == {"tool": "mcp__lab__wipe", "kind": "other"}
    assert (details["title"], details["announced"]) == ("make", "ToolCall")


def test_no_answer_means_anything_but_what_it_says() -> None:
    call = {"toolCallId": "1", "kind": "execute", "title": "rm x", "_meta": {"qwenQuestions": [{"question": "Red?"}]}}
    params = {"toolCall": call, "options": OPTIONS}
    question = read_question(params, {}, ASKING)
    assert (question.type, question.details["command"]) == ("command_approval", "rm x")
    assert write_answer(params, question, (Choice("blue"),)) == refusing(params)
    both = [{**option, "optionId": "same"} for option in OPTIONS]
    assert refusing({"options": both}) == {"outcome": {"outcome": "cancelled"}}
    assert read_question({**params, "options": both}, {}, ASKING).prompts[0].options == ("deny", "abort")


@pytest.mark.anyio
async def test_a_call_under_a_name_that_was_used_is_shown_as_it_is_now(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    before = {"sessionUpdate": "tool_call", "toolCallId": "call-rm x", "kind": "execute", "status": "completed"}
    fake.on(
        "run",
        updates({**before, "title": "ls", "rawInput": {"command": "ls", "workdir": "sub"}}),
        asks("execute", "rm x", rawInput={"command": "rm x"}, refused=[says("kept")]),
    )
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "run it")
        question = await session.question()
        assert (question.details["command"], question.details["directory"]) == ("rm x", str(options.cwd))
        await engine.answer(question, (Choice("deny"),))
        await session.end()


@pytest.mark.anyio
async def test_two_questions_under_one_id_are_both_withdrawn(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on("run", asks("execute", "ls", again="rm x", allowed=[says("gone")], refused=[says("kept")]))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "run it")
        await session.end()
        with pytest.raises(QuestionNotOpen):
            await engine.answer(await session.question(), (Choice("approve"),))
    assert [one["result"] for one in fake.received if one.get("id") == 0 and "result" in one] == [
        {"outcome": {"outcome": "cancelled"}}
    ]


class Optional(Fake):
    """Agent whose sessions have other settings besides the mode that stop it from asking."""

    def __init__(self) -> None:
        super().__init__()
        self.trust = replace(self.trust, asking_options={"allow_all": "off"})


@pytest.mark.anyio
@pytest.mark.parametrize(
    "change",
    [
        {"sessionUpdate": "current_mode_update", "currentModeId": "wild"},
        {"sessionUpdate": "config_option_update", "configOptions": [{"id": "mode", "currentValue": "wild"}]},
        {"sessionUpdate": "config_option_update", "configOptions": [{"id": "allow_all", "currentValue": "on"}]},
    ],
)
async def test_an_agent_that_may_have_left_its_asking_mode_is_stopped_and_asks_again_afterwards(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path, change: Mapping[str, Any]
) -> None:
    ask = asks("execute", "rm x", allowed=[says("gone")], refused=[says("kept")])
    fake.has_options("allow_all")
    fake.on("change", updates(dict(change)), ask, waits())
    fake.on("then", says("here"))
    async with engine_of(fake, tmp_path, Optional()) as engine:
        session = await begin(engine, options, "change it")
        ended = await session.end()
        assert ended.failure is not None
        assert "might not ask any more" in ended.failure.message
        assert not [event for event in session.events if isinstance(event, QuestionAsked)]
        await engine.run_turn(session.session_id, options, TurnInput(text="then"))
        assert (await session.end(2)).outcome == "completed"
    assert [one["result"] for one in fake.received if one.get("id") == 0 and "result" in one] in (
        [],
        [{"outcome": {"outcome": "cancelled"}}],
    )
    asked_for = [one["method"] for one in fake.received if "method" in one]
    assert asked_for[-4:] == ["session/load", "session/set_mode", "session/set_config_option", "session/prompt"]


@pytest.mark.anyio
async def test_an_agent_that_may_have_left_its_asking_mode_gets_no_input_until_it_has_ended(
    options: SessionOptions, tmp_path: Path
) -> None:
    fake = FakeAcpAgent(tmp_path / "deaf", deaf=True)
    fake.on("change", updates({"sessionUpdate": "current_mode_update", "currentModeId": "wild"}), waits())
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "change it")
        await session.until(lambda event: isinstance(event, Notice))
        with pytest.raises(SessionIdle, match="as a new message"):
            await engine.steer(session.session_id, "faster")
        assert (await session.end()).outcome == "failed"
    assert len(fake.asked_for("session/prompt")) == 1


class Lingering(FakeAcpAgent):
    """Agent that ignores a cancelled turn, and acts after its input has ended."""

    @property
    def command(self) -> list[str]:
        return ["/bin/sh", "-c", f"{shlex.join(super().command)}; sleep 0.5; touch {shlex.quote(str(self.late))}"]

    @property
    def late(self) -> Path:
        return self._folder / "late"


@pytest.mark.anyio
@pytest.mark.skipif(os.name != "posix", reason="There is no such shell here.")
async def test_an_agent_that_may_have_left_its_asking_mode_and_works_is_killed(
    options: SessionOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.agents.acp.conversation.CANCEL_SECONDS", 0.1)
    fake = Lingering(tmp_path / "deaf", deaf=True)
    fake.on("change", updates({"sessionUpdate": "current_mode_update", "currentModeId": "wild"}), waits())
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "change it")
        assert (await session.end()).outcome == "failed"
        await engine._sessions[session.session_id].gone.wait()
        assert not [event for event in session.events if isinstance(event, EngineGone)]
    assert not fake.late.exists()


WILD = {"sessionUpdate": "current_mode_update", "currentModeId": "wild"}
ALL = {"sessionUpdate": "config_option_update", "configOptions": [{"id": "allow_all", "currentValue": "on"}]}


def options_said(*said: tuple[str, object]) -> list[dict[str, object]]:
    return [{"id": name, "currentValue": value} for name, value in said]


@pytest.mark.anyio
@pytest.mark.parametrize("before", [WILD, ALL], ids=["mode", "option"])
@pytest.mark.parametrize("method", ["session/new", "session/load", "session/set_mode"])
async def test_a_mode_report_before_the_mode_is_set_does_not_stop_the_agent(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path, method: str, before: dict[str, Any]
) -> None:
    fake.has_options("allow_all")
    fake.tells_before(method, before)
    if method != "session/set_mode":
        fake.tells_behind(method, before)
    fake.on("hello", says("Hi"))
    async with engine_of(fake, tmp_path, Optional()) as engine:
        session = await begin(engine, options, "hello")
        assert (await session.end()).outcome == "completed"
        assert not [event for event in session.events if isinstance(event, Notice)]
    async with engine_of(fake, tmp_path, Optional()) as engine:
        again = Followed(engine, session.session_id)
        await engine.run_turn(session.session_id, options, TurnInput(text="hello"))
        assert (await again.end()).outcome == "completed"
        assert not [event for event in again.events if isinstance(event, Notice)]


@pytest.mark.anyio
async def test_an_option_announced_while_a_session_loads_is_set(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.has_options("allow_all")
    fake.answers("session/new", configOptions=[])
    fake.tells_behind("session/new", ALL)
    async with engine_of(fake, tmp_path, Optional()) as engine:
        await engine.open(options)
    (asked,) = fake.asked_for("session/set_config_option")
    assert (asked["configId"], asked["value"]) == ("allow_all", "off")


LIES: dict[str, Callable[[FakeAcpAgent], None]] = {
    "behind the answer": lambda fake: fake.tells_behind("session/set_mode", WILD),
    "before another setting is answered": lambda fake: fake.tells_before("session/set_config_option", WILD),
    "behind all": lambda fake: fake.tells_behind("session/set_config_option", ALL),
    "no mode": lambda fake: fake.tells_behind("session/set_mode", {"sessionUpdate": "current_mode_update"}),
    "in the answer": lambda fake: fake.answers(
        "session/set_config_option", configOptions=options_said(("allow_all", "on"))
    ),
    "another in the answer": lambda fake: fake.answers(
        "session/set_config_option", configOptions=options_said(("mode", "wild"), ("allow_all", "off"))
    ),
    "both": lambda fake: fake.answers(
        "session/set_config_option", configOptions=options_said(("allow_all", "on"), ("allow_all", "off"))
    ),
    "another type": lambda fake: fake.answers(
        "session/set_config_option", configOptions=options_said(("allow_all", False))
    ),
    "among many": lambda fake: fake.tells_behind("session/set_mode", *[{"sessionUpdate": "x"}] * 40, WILD),
}


@pytest.mark.anyio
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_an_agent_that_leaves_its_asking_mode_during_setup_is_stopped_without_a_prompt(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path, lie: Callable[[FakeAcpAgent], None]
) -> None:
    fake.has_options("allow_all")
    fake.on("hello", says("Hi"))
    async with engine_of(fake, tmp_path, Optional()) as engine:
        session = await begin(engine, options, "hello")
        await session.end()
        lie(fake)
        told = replace(options, asks="never")  # so that the running process is set up anew
        with pytest.raises(EngineStartFailed, match="might not ask any more"):
            await engine.run_turn(session.session_id, told, TurnInput(text="hello"))
        with pytest.raises(EngineStartFailed, match="might not ask any more"):  # and when it is loaded again
            await engine.run_turn(session.session_id, options, TurnInput(text="hello"))
        with pytest.raises(EngineStartFailed, match="might not ask any more"):
            await engine.open(options)
        assert len(fake.asked_for("session/prompt")) == 1
        assert all(one.process is None for one in engine._sessions.values())


class Reading(Fake):
    """Agent with a read-only mode."""

    def __init__(self) -> None:
        super().__init__()
        self.trust = replace(self.trust, reading_mode="read")


@pytest.mark.anyio
async def test_a_mode_that_is_reported_before_it_is_said_to_be_set_is_not_set_back(
    options: SessionOptions, tmp_path: Path
) -> None:
    fake = FakeAcpAgent(tmp_path / "fake", modes=("ask", "read"))
    fake.on("hello", says("Hi"))
    async with engine_of(fake, tmp_path, Reading()) as engine:
        session = await begin(engine, options, "hello")
        await session.end()
        fake.tells_before("session/set_mode", {"sessionUpdate": "current_mode_update", "currentModeId": "read"})
        await engine.run_turn(session.session_id, replace(options, writes="nothing"), TurnInput(text="hello"))
        await session.end(2)
        assert not [event for event in session.events if isinstance(event, Notice)]
    assert [one["modeId"] for one in fake.asked_for("session/set_mode")] == ["ask", "read"]


@pytest.mark.anyio
async def test_a_call_that_changes_after_it_was_shown_is_asked_about_anew(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    told: list[dict[str, Any]] = [
        {"toolCallId": "call-make", "status": "in_progress"},
        {"toolCallId": "call-make", "rawInput": {"command": "rm x"}},
    ]
    fake.on("run", asks("execute", "make", rawInput={"command": "make"}, meanwhile=told, refused=[says("kept")]))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "run it")
        first, second = await session.question(), await session.question(2)
        assert (first.details["command"], second.details["command"]) == ("make", "rm x")
        with pytest.raises(QuestionNotOpen):
            await engine.answer(first, (Choice("approve"),))
        await engine.answer(second, (Choice("deny"),))
        await session.end()
        assert len([event for event in session.events if isinstance(event, QuestionAsked)]) == 2
    assert [one["result"] for one in fake.received if one.get("id") == 0 and "result" in one] == [
        {"outcome": {"outcome": "selected", "optionId": "no"}}
    ]


class Later(Fake):
    """Agent that asks before it reports a tool's input."""

    tells_later = True


@pytest.mark.anyio
async def test_a_tool_question_waits_for_the_arguments_of_the_tool(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.agents.acp.conversation.UNTOLD_SECONDS", 1.0)
    told = {"toolCallId": "call-lab_note", "status": "in_progress", "rawInput": {"text": "all of it"}}
    fake.on("told", asks("other", "lab_note", meanwhile=[told], allowed=[says("noted")]))
    fake.on("silent", asks("other", "lab_wipe", allowed=[says("gone")], refused=[says("kept")]))
    async with engine_of(fake, tmp_path, Later()) as engine:
        session = await begin(engine, options, "told")
        question = await session.question()
        assert question.details["input"] == {"text": "all of it"}
        await engine.answer(question, (Choice("approve"),))
        await session.end()
        await engine.run_turn(session.session_id, options, TurnInput(text="silent"))
        await session.end(2)
        assert len([event for event in session.events if isinstance(event, QuestionAsked)]) == 1
    answers = [one["result"]["outcome"]["optionId"] for one in fake.received if "outcome" in one.get("result", {})]
    assert answers == ["yes", "no"]


def test_no_count_makes_up_for_others() -> None:
    told = {"inputTokens": -1_000_000, "outputTokens": 5, "cachedReadTokens": 10**30, "thoughtTokens": True}
    used = OwnAgent("fake", "Fake", mode=None, runs_repository_files=False).read_usage(told)
    assert used is not None
    assert used.counts == (0, 10**12, 5, 0)
