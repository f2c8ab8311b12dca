"""ntfy: what is told there, and answers by its buttons, which are good for one answer to one question."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.model.answered_by import in_words
from helmsman.model.questions import Prompt, Question
from helmsman.notices.notifications import question_notification
from helmsman.notices.ntfy import Ntfy
from helmsman.sessions.session import Session
from tests.notices.conftest import by_ntfy, opened
from tests.notices.receivers import SECONDS, NtfyServer, press

pytestmark = pytest.mark.anyio


async def answered(session: Session) -> None:
    with anyio.fail_after(SECONDS):
        while session.questions:
            await session.feed.changed()


def audit(state_dir: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (state_dir / "audit.jsonl").read_text("utf-8").splitlines()]


async def test_a_button_answers_its_question_once_and_the_audit_log_says_so(
    state_dir: Path, project: Path, ntfy: NtfyServer
) -> None:
    async with opened(state_dir, by_ntfy(ntfy)) as house:
        session = await house.ask(project)
        await house.pass_time(20)
        (told,) = await ntfy.until_published(1)
        assert (told["topic"], told["title"]) == ("mine", "site: Codex asks to run a command outside the sandbox")
        assert "Command: ls" in told["message"]
        approve, deny, abort = told["actions"]
        assert [one["label"] for one in (approve, deny, abort)] == ["Approve", "Deny", "Abort"]
        assert {(one["action"], one["method"], one["clear"]) for one in told["actions"]} == {("http", "POST", True)}
        assert all(len(one["body"]) == 32 and "headers" not in one for one in told["actions"])
        assert ntfy.token not in json.dumps(told)
        await ntfy.until_read()
        ntfy.publish("mine-replies", "0" * 32)
        ntfy.publish("mine-replies", "approve")
        ntfy.publish("mine-replies", "\ud83d".encode("utf-8", "replace").decode())
        await press(approve)
        await answered(session)
        with anyio.fail_after(SECONDS):
            while not (state_dir / "audit.jsonl").exists() or not audit(state_dir):
                await anyio.sleep(0.01)
        (line,) = audit(state_dir)
        assert (line["decision"], line["by"], line["via"]) == ("approve", "person", "ntfy")
        assert in_words("approve", "person", "ntfy", None) == "approved by you by a button of ntfy"

        await ntfy.until_read(0)  # nothing can be answered any more, so nobody listens
        house.engine.ask()
        await house.pass_time(20)
        await ntfy.until_published(2)
        await ntfy.until_read()
        await press(approve)
        await press(deny)
        await press(ntfy.published[1]["actions"][1])
        await answered(session)
        with anyio.fail_after(SECONDS):
            while len(audit(state_dir)) < 2:
                await anyio.sleep(0.01)
        assert [line["decision"] for line in audit(state_dir)] == ["approve", "deny"], "old codes are good for nothing"


async def test_a_code_is_kept_as_its_digest_and_good_in_the_next_hub_while_the_question_is_open(
    state_dir: Path, project: Path, ntfy: NtfyServer
) -> None:
    async with opened(state_dir, by_ntfy(ntfy)) as house:
        session = await house.ask(project)
        await house.pass_time(20)
        (told,) = await ntfy.until_published(1)
        await house.delivered("sent")
        with sqlite3.connect(state_dir / "registry.sqlite3") as connection:
            kept = connection.execute("SELECT digest, choice FROM notice_codes").fetchall()
            everything = "\n".join(connection.iterdump())
        assert sorted(choice for _, choice in kept) == ["abort", "approve", "deny"]
        assert not any(one["body"] in everything for one in told["actions"])
        assert ntfy.token not in everything
        ntfy.cut()
        await ntfy.until_read(0)
        await press(told["actions"][1])  # while nobody listens
        await house.pass_time(2)
        await answered(session)


async def test_answers_are_read_again_when_reading_or_taking_one_has_failed_for_no_known_reason(
    state_dir: Path, project: Path, ntfy: NtfyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    def lines(*_: object) -> AsyncIterator[bytes]:
        failed.append("reading")
        raise RuntimeError("nobody has thought of this")

    async def code(digest: str) -> None:
        failed.append(digest)
        raise RuntimeError("nor of that")

    async def until_failed(times: int) -> None:
        with anyio.fail_after(SECONDS):
            while len(failed) < times:
                await anyio.sleep(0.01)

    async with opened(state_dir, by_ntfy(ntfy)) as house:
        session = await house.ask(project)
        with monkeypatch.context() as patched:
            patched.setattr(Ntfy, "_lines", lines)
            await house.pass_time(20)
            (told,) = await ntfy.until_published(1)
            await until_failed(1)
        await house.pass_time(1)
        await ntfy.until_read()
        with monkeypatch.context() as patched:
            patched.setattr(house.shared.notices, "code", code)
            ntfy.publish("mine-replies", "0" * 32)
            await until_failed(2)
        await press(told["actions"][0])
        await answered(session)


async def test_there_are_no_buttons_where_strangers_can_read_the_topic(
    state_dir: Path, project: Path, ntfy: NtfyServer
) -> None:
    ntfy.is_protected = False
    async with opened(state_dir, by_ntfy(ntfy)) as house:
        await house.ask(project)
        await house.pass_time(20)
        (told,) = await ntfy.until_published(1)
        assert told["actions"] == []
        (delivery,) = await house.delivered("sent")
        assert delivery.note == (
            "Sent without buttons: anyone can read this topic. Let the server require a login for it."
        )


async def test_without_full_detail_there_is_neither_content_nor_a_button(
    state_dir: Path, project: Path, ntfy: NtfyServer
) -> None:
    async with opened(state_dir, by_ntfy(ntfy, is_full=False, answers=False)) as house:
        await house.ask(project)
        await house.pass_time(20)
        (told,) = await ntfy.until_published(1)
        assert told == {
            "topic": "mine",
            "title": "site: Codex asks to run a command outside the sandbox",
            "message": "Codex asks to run a command outside the sandbox",
            "priority": 4,
        }


def question(**changes: object) -> Question:
    given = {
        "id": "q",
        "type": "command_approval",
        "session_id": "s",
        "turn_id": "t",
        "prompts": (Prompt(text="?", options=("approve", "approve_session", "approve_always", "deny", "abort")),),
        "details": {"command": "ls"},
        "asker": "Codex",
    }
    return Question(**{**given, **changes})  # type: ignore[arg-type]


def test_always_is_never_among_the_choices_nor_are_some_of_many() -> None:
    def choices(asked: Question) -> tuple[str, ...]:
        return question_notification(asked, directory=None, agent="codex").choices

    assert choices(question()) == ("approve", "deny", "abort")
    several = question(type="user_input", prompts=(Prompt(text="a", options=("x",)), Prompt(text="b", options=("y",))))
    assert choices(several) == ()
    assert choices(question(type="user_input", prompts=(Prompt(text="?", options=tuple("abcd")),))) == ()
    assert choices(question(type="user_input", prompts=(Prompt(text="?", options=("a",), secret=True),))) == ()


@pytest.mark.parametrize(
    "details",
    [
        {"command": "echo " + "x" * 5000},
        {"command": f"curl -H 'Authorization: Bearer {'a1B2' * 12}' https://example.org"},
    ],
)
async def test_a_button_that_was_not_shown_whole_grants_nothing(
    state_dir: Path, project: Path, ntfy: NtfyServer, details: dict[str, str]
) -> None:
    async with opened(state_dir, by_ntfy(ntfy)) as house:
        session = await house.start(project)
        asked = replace(question(details=details), session_id=session.id)
        house.notifier.notify(question_notification(asked, directory=str(project), agent="played"))
        await house.settled()
        (delivery,) = await house.delivered("dropped")  # it is not open in this session
        notification = question_notification(asked, directory=str(project), agent="played")
        assert not notification.is_whole
        await Ntfy(by_ntfy(ntfy), house.shared.notices).send(replace(delivery, notification=notification))
        (told,) = ntfy.published
        assert told["message"].endswith("(Not all of it is shown here, so there is no button for yes.)")
        assert [one["label"] for one in told["actions"]] == ["Deny", "Abort"]
        assert len(told["message"].encode()) < 4096
