"""Who answered a question, in which front end, and how to display it.

`str()` is the value of `QuestionClosed.by` and of the audit log: `person`, `agent: claude-code 2.1`, `rule: allow git
status`, `deadline`, …; the front end is a separate field (`via`). A client chooses its own name, so names are bounded,
on one line, and always behind a label of Helmsman.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from helmsman.base.structs import Value
from helmsman.model.questions import (
    ABORT,
    ACCEPT,
    APPROVE,
    APPROVE_ALWAYS,
    APPROVE_SESSION,
    CANCEL,
    DECLINE,
    DENY,
    STOP,
    UNANSWERED,
    WAIT,
)

Who = Literal["person", "agent", "command line", "program", "handler", "rule", "deadline", "turn ended", "trouble"]
FrontEnd = Literal["dashboard", "api", "terminal", "form", "tool", "ntfy"]

_NAME_CHARS: Final = 200
_RULE_CHARS: Final = 4000
_VERDICTS: Final = {
    APPROVE: "approved",
    APPROVE_SESSION: "approved for the session",
    APPROVE_ALWAYS: "approved for good",
    ACCEPT: "accepted",
    DENY: "denied",
    ABORT: "denied, and the turn stopped",
    DECLINE: "declined",
    CANCEL: "cancelled",
    STOP: "stopped",
    WAIT: "told to wait",
    UNANSWERED: "not answered",
}
_BY: Final = {
    "command line": "at the command line",
    "turn ended": "since its turn ended",
    "trouble": "since no person could be asked",
}
_PLACES: Final[dict[str, str]] = {
    "dashboard": " in the dashboard",
    "api": " through the dashboard's API",
    "terminal": " at the terminal",
    "form": " in a form",
    "tool": " with a tool",
    "ntfy": " by a button of ntfy",
}


class AnsweredBy(Value, frozen=True):
    """`name` is that of the client (of an agent, of a form), or the rule in one line."""

    who: Who
    name: str | None = None
    via: FrontEnd | None = None

    def __str__(self) -> str:
        if self.who not in ("agent", "rule"):
            return self.who
        most = _RULE_CHARS if self.who == "rule" else _NAME_CHARS
        return f"{self.who}: {_one_line(self.name, most) or 'unnamed'}"

    @property
    def through(self) -> str | None:
        """Front end, with the client that showed a form."""
        return f"{self.via} of {_one_line(self.name)}" if self.via == "form" and self.name else self.via


class Answered(Value, frozen=True):
    """Answers and who gave them, from a handler that knows: a terminal prompt, a form."""

    answers: Sequence[str]
    by: AnsweredBy


PERSON_AT_TERMINAL: Final = AnsweredBy("person", via="terminal")
PERSON_IN_DASHBOARD: Final = AnsweredBy("person", via="dashboard")
PERSON_BY_NTFY: Final = AnsweredBy("person", via="ntfy")
COMMAND_LINE: Final = AnsweredBy("command line")
"""A user, or an agent with a shell: they cannot be told apart."""
PROGRAM: Final = AnsweredBy("program")
HANDLER: Final = AnsweredBy("handler")
DEADLINE: Final = AnsweredBy("deadline")
TURN_ENDED: Final = AnsweredBy("turn ended")
TROUBLE: Final = AnsweredBy("trouble")


def in_words(answer: str | None, by: str, via: str | None, reason: str | None) -> str:
    """Return the outcome of a question in words: `approved by you in the dashboard`, `denied: no answer in 5 minutes`."""
    if answer is None:
        return "withdrawn: its turn ended" if by == str(TURN_ENDED) else "answered elsewhere, or no longer needed"
    verdict = _VERDICTS.get(answer, f"answered “{_one_line(answer)}”")
    if by == str(DEADLINE):
        return f"{verdict}: {reason or 'no answer in time'}"
    because = f": {_one_line(reason)}" if reason and not by.startswith("rule") else ""
    return f"{verdict} {_by(by, via)}{because}"


def _by(by: str, via: str | None) -> str:
    kind, _, client = (via or "").partition(" of ")
    where = _PLACES.get(kind, "") + (f" of {client}" if client else "")
    if by in ("program", "handler"):
        return f"by a {by}{where}"
    return _BY.get(by) or (f"by you{where}" if by == "person" else f"by {by}")


def _one_line(text: str | None, most: int = _NAME_CHARS) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= most else line[:most] + "…"
