from __future__ import annotations

import io
import re
import time
from typing import cast

import pytest
from rich.console import Console

from helmsman.approvals.deadline import Deadline, TimeLeft
from helmsman.cli.screen import StatusLine, duration
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    FileChange,
    Item,
    ItemEnded,
    ItemStarted,
    McpToolCall,
    Notice,
    QuestionAsked,
    Reasoning,
    TurnRequested,
    WebSearch,
)
from helmsman.model.questions import Prompt, Question
from helmsman.sessions.feed import Feed
from helmsman.sessions.session import Session, Verbs
from helmsman.sessions.state import SessionState


def _session(*items: Item) -> Session:
    session = Session(SessionState("s"), Feed(10), cast("Verbs", None))
    session.apply(TurnRequested(session_id="s", text="go"))
    for item in items:
        kind = ItemEnded if item.status == "completed" else ItemStarted
        session.apply(kind(session_id="s", item=item))
    return session


def _line(session: Session | None, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    line = StatusLine(console).text(session)
    assert line.cell_len <= width
    clock = re.match(r". 0:00  ", line.plain)
    assert clock is not None
    return line.plain[clock.end() :]


def test_before_there_is_a_session_codex_is_starting() -> None:
    assert _line(None) == "starting the agent"


@pytest.mark.parametrize(
    ("item", "activity"),
    [
        (CommandExecution(id="1", status="in_progress", command="bash -lc 'make test'"), "running make test"),
        (FileChange(id="1", status="in_progress"), "changing files"),
        (McpToolCall(id="1", status="in_progress", server="lab", tool="write"), "calling lab/write"),
        (AgentMessage(id="1", status="in_progress"), "writing"),
        (Reasoning(id="1", status="in_progress"), "thinking"),
        (WebSearch(id="1", status="in_progress", query="x"), "working"),
    ],
)
def test_it_says_what_is_going_on(item: Item, activity: str) -> None:
    assert _line(_session(item)) == f"nothing finished yet  {activity}"


def test_it_counts_what_is_done() -> None:
    done = CommandExecution(id="1", command="ls", exit_code=0)
    assert _line(_session(done)) == "1 command  working"


def test_the_reason_of_a_wait_comes_first() -> None:
    session = _session(Reasoning(id="1", status="in_progress"))
    session.apply(Notice(session_id="s", kind="retry", message="Reconnecting… 2/5"))
    assert _line(session).endswith("Reconnecting… 2/5")


def test_an_open_question_and_its_deadline_are_one_sentence() -> None:
    session = _session()
    question = Question(
        asker="Codex", id="q", type="user_input", session_id="s", turn_id=None, prompts=(Prompt(text="Which?"),)
    )
    session.apply(QuestionAsked(session_id="s", question=question))
    session.set_deadline("q", Deadline(TimeLeft.new(300, time.monotonic())))
    assert _line(session, width=120).endswith("waits for an answer: denied in 5 min unless answered.")


def test_a_narrow_terminal_cuts_it() -> None:
    command = CommandExecution(id="1", status="in_progress", command="x" * 200)
    assert _line(_session(command), width=40).endswith("x…")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (9.99, "10.0 s"), (59, "59 s"), (120, "2 min"), (7200, "2 h")]
)
def test_durations_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
