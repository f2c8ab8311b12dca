"""Tests of requests to and free-text questions from an agent of the Agent Client Protocol, and of failure reasons."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from helmsman import Helmsman, load_settings
from helmsman.base.structs import replace
from helmsman.errors import AnswerInvalid, EngineRefused, InvalidInput, InvalidSetting, SessionIdle
from helmsman.model.events import ItemUpdated, QuestionAsked
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.model.questions import Choice, read_answers
from helmsman.testing.fake_acp_agent import FakeAcpAgent, asks, asks_in_form, refuses, says, updates
from tests.agents.acp.test_acp_engine import Fake, begin, engine_of, fake, options

pytestmark = pytest.mark.anyio

__all__ = ["fake", "options"]  # fixtures


# --- what users write of it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agents = 3", r"agents in .* is no table\. Write \[agents\.NAME\]"),
        ("[agents]\nmine = 3", r"agents\.mine in .* is 3\. Make it a table"),
        ("[agents.mine]\ntitle = 'Mine'", r"agents\.mine in .* has no command\. Set it to a list of words"),
        ("[agents.mine]\ncommand = 'mine --acp'", r"agents\.mine\.command in .* Set it to a list of words"),
        ("[agents.mine]\ncommand = ['mine', '']", r"agents\.mine\.command in .* Set it to a list of words"),
        ("[agents.mine]\ncommand = ['mine']\ntitle = 3", r"agents\.mine\.title in .* Set it to a text"),
        ("[agents.mine]\ncommand = ['mine']\nmode = ''", r"agents\.mine\.mode in .* Set it to a text"),
        ("[agents.mine]\ncommand = ['mine']\nwritable = 'x'", r"agents\.mine\.writable in .* Set it to a list of dir"),
        (
            "[agents.mine]\ncommand = ['mine']\nwritable = ['x']",
            r"agents\.mine\.writable in .* Set it to a list of dir",
        ),
    ],
)
def test_invalid_definitions_of_an_agent_are_named_with_their_file(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "helmsman.toml"
    file.write_text(text, encoding="utf-8")
    env = {**os.environ, "HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    with pytest.raises(InvalidSetting, match=said) as told:
        Helmsman(load_settings({}, env, tmp_path, user_file=file), env=env, inside=True)
    assert str(file) in told.value.message


# --- questions in words ----------------------------------------------------------------------------------------------

_QUESTIONS = {
    "qwenQuestions": [
        {
            "question": "Which colour?",
            "options": [{"label": "red", "description": "as roses are"}, {"label": "blue"}, {"label": ""}],
        },
        {"header": "Why?"},
    ]
}


async def test_a_question_in_words_is_answered_in_words(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on("paint", asks("other", "ask", _meta=_QUESTIONS, allowed=[says("I see")]))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "paint it")
        question = await session.question()
        assert question.type == "user_input"
        first, second = question.prompts
        assert (first.text, first.options, first.descriptions) == (
            "Which colour?",
            ("red", "blue"),
            {"red": "as roses are"},
        )
        assert (second.text, second.options, second.free_text) == ("Why?", (), True)
        await engine.answer(question, (Choice("blue"), Choice("for the sea")))
        assert (await session.end()).outcome == "completed"
    (answer,) = [one["result"] for one in fake.received if one.get("id") == 0 and "result" in one]
    assert answer["answers"] == {"0": "blue", "1": "for the sea"}
    assert answer["outcome"] == {"outcome": "selected", "optionId": "yes"}


async def test_words_are_no_way_around_a_question_about_a_command(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on("run", asks("execute", "rm x", rawInput={"command": "rm x"}, _meta=_QUESTIONS))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "run it")
        question = await session.question()
        assert (question.type, question.details["command"]) == ("command_approval", "rm x")
        await engine.answer(question, (Choice("abort"),))
        assert (await session.end()).outcome == "interrupted"


async def test_a_question_in_words_stays_one_whatever_the_call_says(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    more = [{"toolCallId": "call-ask", "status": "in_progress", "_meta": {"toolName": "ask"}}]
    fake.on("paint", asks("other", "ask", _meta=_QUESTIONS, meanwhile=more, allowed=[says("I see")]))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "paint it")
        question = await session.question()
        await session.until(lambda event: isinstance(event, ItemUpdated))
        await engine.answer(question, (Choice("blue"), Choice("for the sea")))
        await session.end()
        assert len([event for event in session.events if isinstance(event, QuestionAsked)]) == 1


async def test_a_no_to_what_became_a_command_is_no_answer_in_words(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    now = {"toolCallId": "call-ask", "kind": "execute", "title": "rm x", "rawInput": {"command": "rm x"}}
    fake.on(
        "paint", asks("other", "ask", _meta=_QUESTIONS, meanwhile=[now], allowed=[says("gone")], refused=[says("kept")])
    )
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "paint it")
        assert (await session.question()).type == "user_input"
        question = await session.question(2)
        assert (question.type, question.details["command"]) == ("command_approval", "rm x")
        await engine.answer(question, (Choice("deny"),))
        await session.end()
    (answer,) = [one["result"] for one in fake.received if one.get("id") == 0 and "result" in one]
    assert answer == {"outcome": {"outcome": "selected", "optionId": "no"}}


async def test_a_call_that_was_said_to_be_a_command_is_not_asked_about_in_words(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    begun = {"sessionUpdate": "tool_call", "toolCallId": "call-rm x", "kind": "execute", "title": "rm x"}
    ask = asks("execute", "rm x", rawInput={"command": "rm x"}, _meta=_QUESTIONS, refused=[says("kept")])
    del ask["ask"]["toolCall"]["kind"]  # it was said before
    fake.on("run", updates(begun), ask)
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "run it")
        question = await session.question()
        assert (question.type, question.details["command"]) == ("command_approval", "rm x")
        await engine.answer(question, (Choice("deny"),))
        await session.end()
    (answer,) = [one["result"] for one in fake.received if one.get("id") == 0 and "result" in one]
    assert answer == {"outcome": {"outcome": "selected", "optionId": "no"}}


async def test_an_answer_that_does_not_fit_a_form_leaves_it_open(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    sizes = {"type": "array", "items": {"enum": ["small", "large, or more"]}}
    fake.on("ask", asks_in_form("How many?", "count", count={"type": "integer"}, ratio={"type": "number"}, sizes=sizes))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "ask me")
        question = await session.question()
        for answers in (["many", "1", "small"], ["5", "nan", "small"], ["5", "1", "small, none"]):
            with pytest.raises(AnswerInvalid):
                await engine.answer(question, read_answers(question, answers))
        await engine.answer(question, read_answers(question, ["5", "0.5", "small, large, or more"]))
        assert (await session.end()).outcome == "completed"
    content = {"count": 5, "ratio": 0.5, "sizes": ["small", "large, or more"]}
    assert [one["result"] for one in fake.received if one.get("id") == 0 and "result" in one] == [
        {"action": "accept", "content": content}
    ]


@pytest.mark.parametrize("word", ["decline", "abort"])
async def test_a_value_of_a_form_is_no_refusal_and_ends_no_turn(
    word: str, fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on("ask", asks_in_form("", "then", then={"enum": [word, "continue"]}), says("I see"))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "ask me")
        question = await session.question()
        await engine.answer(question, read_answers(question, [word]))
        assert (await session.end()).outcome == "completed"
    (answer,) = [one["result"] for one in fake.received if one.get("id") == 0 and "result" in one]
    assert answer == {"action": "accept", "content": {"then": word}}


async def test_a_form_without_fields_is_accepted_or_not(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on("ask", asks_in_form("Is it so?"), asks_in_form("Is it still so?"))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "ask me")
        for number, answer in enumerate(("accept", "decline"), 1):
            question = await session.question(number)
            await engine.answer(question, read_answers(question, [answer]))
        assert (await session.end()).outcome == "completed"
    answers = [
        one["result"]["action"]
        for one in fake.received
        if one.get("id") in (0, 1) and "action" in one.get("result", {})
    ]
    assert answers == ["accept", "cancel"]


async def test_a_form_that_is_not_filled_in_before_its_deadline_is_cancelled(
    fake: FakeAcpAgent, tmp_path: Path, git_repo: Path
) -> None:
    fake.on("ask", asks_in_form("Type the name to delete it.", "name", name={"type": "string"}))
    file = tmp_path / "helmsman.toml"
    file.write_text(f"[agents.mine]\ncommand = {fake.command}\nmode = 'ask'\nruns_repository_files = false\n")
    env = {**os.environ, "HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    settings = replace(load_settings({}, env, tmp_path / "fake", user_file=file), approval_timeout=0.1)
    async with Helmsman(settings, env=env, inside=True) as helm:
        session = await helm.start("ask me", cwd=git_repo, agent="mine", unenforced=True)
        assert await session.wait(until="end", timeout=20)
    assert {"action": "cancel"} in [one.get("result") for one in fake.received]


async def test_a_session_without_a_turn_cannot_be_steered(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.on("hello", says("Hi"))
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "hello")
        await session.end()
        for session_id in (session.session_id, "unknown"):
            with pytest.raises(SessionIdle, match="Send it as a new message"):
                await engine.steer(session_id, "faster")


# --- prompts ---------------------------------------------------------------------------------------------------------


async def test_a_picture_goes_with_the_prompt_and_one_that_cannot_be_read_is_named(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    fake.greets(agentCapabilities={"loadSession": True, "promptCapabilities": {"image": True}})
    fake.on("look", says("a dot"))
    picture, gone = tmp_path / "dot.jpeg", tmp_path / "gone.png"
    picture.write_bytes(b"not really a picture")
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "look")
        await session.end()
        await engine.run_turn(session.session_id, options, TurnInput(text="look here", images=(picture,)))
        await session.end(2)
        with pytest.raises(InvalidInput, match=r"gone\.png cannot be read.*Name one that can"):
            await engine.run_turn(session.session_id, options, TurnInput(text="look", images=(gone,)))
    _, shown = fake.asked_for("session/prompt")[-1]["prompt"]
    assert shown == {
        "type": "image",
        "mimeType": "image/jpeg",
        "data": base64.b64encode(b"not really a picture").decode(),
    }


class _WithModels(Fake):
    model_by = "set_model"


class _Reading(_WithModels):
    def __init__(self) -> None:
        super().__init__()
        self.trust = replace(self.trust, reading_mode="read")


async def test_a_mode_that_was_set_for_a_turn_that_was_refused_does_not_stay(
    options: SessionOptions, tmp_path: Path
) -> None:
    fake = FakeAcpAgent(tmp_path / "fake", modes=("ask", "read"))
    fake.on("hello", says("Hi"))
    async with engine_of(fake, tmp_path, _Reading()) as engine:
        session = await begin(engine, options, "hello")
        await session.end()
        with pytest.raises(EngineRefused, match="set_model"):
            await engine.run_turn(
                session.session_id, replace(options, writes="nothing", model="unknown"), TurnInput(text="hello")
            )
        await engine.run_turn(session.session_id, options, TurnInput(text="hello"))
        await session.end(2)
    assert [one["modeId"] for one in fake.asked_for("session/set_mode")] == ["ask", "read", "ask"]


async def test_a_session_does_not_begin_on_another_model_than_was_asked_for(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    async with engine_of(fake, tmp_path, _WithModels()) as engine:
        with pytest.raises(EngineRefused, match="set_model"):
            await engine.open(replace(options, model="large"))
    (asked,) = fake.asked_for("session/set_model")
    assert asked["modelId"] == "large"


# --- failures --------------------------------------------------------------------------------------------------------


async def test_why_a_turn_failed_is_a_stable_code_however_the_agent_says_it(
    fake: FakeAcpAgent, options: SessionOptions, tmp_path: Path
) -> None:
    said = [
        (refuses(-32000, "Authentication required"), ("unauthorized", False, None)),
        (refuses(429, "slow down"), ("rate_limit_exceeded", True, 429)),
        (refuses(-32603, "upstream said 503"), ("internal_server_error", True, 503)),
        (refuses(-32603, "it said", details="status 400"), ("bad_request", False, 400)),
        (refuses(-32603, "no idea", errorKind="rate_limit"), ("rate_limit", True, None)),
        (refuses(-32603, "no idea"), ("agent_error", False, None)),
    ]
    for number, (step, _) in enumerate(said):
        fake.on(f"fail {number}", step)
    async with engine_of(fake, tmp_path) as engine:
        session = await begin(engine, options, "fail 0")
        for number, (_, told) in enumerate(said):
            if number:
                await engine.run_turn(session.session_id, options, TurnInput(text=f"fail {number}"))
            end = await session.end(number + 1)
            assert end.outcome == "failed"
            assert end.failure is not None
            assert (end.failure.code, end.failure.retryable, end.failure.http_status) == told
