"""Content of notifications, in a short and a full version.

The short version contains only fixed words and the name of a directory: no command, no path, no text of a model. The
full version contains what every front end shows, without secrets. The recipient's settings choose between them
(`helmsman.notices.config`).
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from helmsman.base.redaction import redact
from helmsman.base.sanitize import named, visible
from helmsman.base.structs import Value
from helmsman.model.options import sandbox_word
from helmsman.model.question_text import describe
from helmsman.model.questions import APPROVE_ALWAYS, APPROVE_SESSION
from helmsman.model.request import TurnRequest
from helmsman.store.database import microseconds

if TYPE_CHECKING:
    from helmsman.approvals.rule_book import ListedRule
    from helmsman.model.questions import Question
    from helmsman.schedules.store import Schedule, ScheduleStore
    from helmsman.tasks.model import Task

NotificationKind = Literal["question", "done", "failed", "limit", "schedule", "hub"]
KINDS: Final[tuple[NotificationKind, ...]] = get_args(NotificationKind)
"""Kinds of notifications."""

TEXT_CHARS: Final = 3000
"""Limit on the length of a notification. Longer text is truncated with a mark."""
_PROJECT_CHARS: Final = 80
_MOST_BUTTONS: Final = 3
_INSTRUCTION_CHARS: Final = 300
_RUNS_LOOKED_AT: Final = 20


class Notification(Value, frozen=True, kw_only=True):
    """Notification.

    Attributes:
        kind: Kind; recipients cannot select `test`.
        about: Key of the subject. The same subject is sent once.
        title: What has happened, in fixed words only.
        text: Full text, safe to show and without secrets.
        directory: Project directory, if it concerns one.
        is_whole: True if `text` shows everything that a yes would grant.
        choices: One-word answers to a question.
    """

    kind: NotificationKind | Literal["test"]
    about: str
    title: str
    text: str = ""
    directory: str | None = None
    agent: str | None = None
    session_id: str | None = None
    task_id: str | None = None
    question_id: str | None = None
    is_whole: bool = False
    choices: tuple[str, ...] = ()

    @property
    def project(self) -> str | None:
        """Name of the project directory."""
        if self.directory is None:
            return None
        name = named(PurePath(self.directory).name or "/")
        return name if len(name) <= _PROJECT_CHARS else name[: _PROJECT_CHARS - 1] + "…"

    @property
    def headline(self) -> str:
        """Project and title in one line."""
        return self.title if self.project is None else f"{self.project}: {self.title}"

    def for_programs(self, *, is_full: bool) -> dict[str, Any]:
        """Return the notification as JSON for the user's command or a webhook."""
        told = {
            "kind": self.kind,
            "title": self.headline,
            "project": self.project,
            "agent": self.agent,
            "sessionId": self.session_id,
            "taskId": self.task_id,
            "questionId": self.question_id,
        }
        if is_full:
            told |= {"text": self.text or None, "directory": self.directory}
        return {key: value for key, value in told.items() if value is not None}


def question_notification(question: Question, *, directory: str | None, agent: str) -> Notification:
    """Return the notification of an open question."""
    words = describe(question)
    whole = words.text(diff_chars=TEXT_CHARS)
    text = shortened(whole)
    # `describe` has cut a longer diff already, so the texts alone do not show it.
    was_cut = text != whole or len(words.diff or "") > TEXT_CHARS
    prompts = question.prompts
    # One press is one answer, and a secret does not belong on a lock screen.
    offered = prompts[0].options if len(prompts) == 1 and not prompts[0].secret else ()
    # A button decides this question only. Wider approvals need a look at what they cover.
    choices = tuple(option for option in offered if option not in (APPROVE_SESSION, APPROVE_ALWAYS))
    choices = choices if len(choices) <= _MOST_BUTTONS else ()  # with some of them missing, the user could not choose
    return Notification(
        kind="question",
        about=question_key(question.session_id, question.id),
        title=words.title,
        text=text,
        directory=directory,
        agent=agent,
        session_id=question.session_id,
        question_id=question.id,
        is_whole=not was_cut,
        choices=choices,
    )


def question_key(session_id: str, question_id: str) -> str:
    """Return the subject key of a question."""
    return f"question {session_id} {question_id}"


def limit_notification(
    text: str,
    *,
    about: str,
    directory: str | None,
    agent: str,
    session_id: str | None = None,
    task_id: str | None = None,
) -> Notification:
    """Return the notification of a reached limit.

    `about` identifies it, `text` names the limit and what happens to the work.
    """
    return Notification(
        kind="limit",
        about=f"limit {about}",
        title="A limit is reached",
        text=shortened(visible(text)),
        directory=directory,
        agent=agent,
        session_id=session_id,
        task_id=task_id,
    )


def task_notification(task: Task, who: str, *, about: str, is_scheduled: bool) -> Notification:
    """Return the notification of a task's end. `who` is the display name of its agent."""
    words = [task.instruction[:_INSTRUCTION_CHARS]]
    if task.status == "completed":
        title = f"{who} is done"
        words.append((task.result or "")[: 2 * TEXT_CHARS])  # it may be very long; its secrets are redacted already
    else:
        title = "A scheduled run has failed" if is_scheduled else f"{who} has failed"
        words.append(str((task.error or {}).get("message", "")) or task.note or "Its outcome is unknown.")
    kind: NotificationKind = "done" if task.status == "completed" else "schedule" if is_scheduled else "failed"
    return Notification(
        kind=kind,
        about=about,
        title=title,
        text=shortened(visible("\n\n".join(filter(None, words)))),
        directory=task.directory,
        agent=task.agent,
        session_id=task.session_id,
        task_id=task.id,
    )


async def notification_of_run(schedules: ScheduleStore, about: str) -> Notification | None:
    """Return the notification of a run that was left out: `run`, its schedule, and when it was due."""
    _, schedule_id, due_at = about.split()
    schedule = next((one for one in await schedules.all() if one.id == schedule_id), None)
    if schedule is None:
        return None
    runs = await schedules.runs(schedule_id, _RUNS_LOOKED_AT)
    run = next((one for one in runs if microseconds(one.due_at) == int(due_at)), None)
    when = "" if run is None else f"{run.due_at.astimezone():%Y-%m-%d %H:%M}: {run.note}"
    return Notification(
        kind="schedule",
        about=about,
        title="A scheduled run was left out",
        text=shortened(visible(f"{schedule.prompt[:_INSTRUCTION_CHARS]}\n\n{when}")),
        directory=schedule.directory,
        agent=_agent_of(schedule),
    )


def _agent_of(schedule: Schedule) -> str | None:
    request = TurnRequest.unpacked(schedule.spec)
    return None if request is None else request.options.agent


def proposal_notification(schedule: Schedule, *, about: str) -> Notification:
    """Return the notification of a schedule that a client's model has proposed, and that a person has to confirm."""
    request = TurnRequest.unpacked(schedule.spec)
    sandbox = None if request is None else sandbox_word(request.options.writes)
    what = f"{schedule.when}, in {schedule.directory}" + (f", sandbox {sandbox}" if sandbox else "")
    confirm = f"Nothing begins until you confirm it: helmsman schedule confirm {schedule.id}"
    words = (f"{schedule.proposed_by} proposes: {schedule.prompt[:_INSTRUCTION_CHARS]}", what, confirm)
    return Notification(
        kind="schedule",
        about=about,
        title="A schedule waits for your confirmation",
        text=shortened(visible("\n\n".join(words))),
        directory=schedule.directory,
        agent=_agent_of(schedule),
    )


def rule_notification(rule: ListedRule) -> Notification:
    """Return the notification of a rule that a client's model has proposed, and that a person has to confirm."""
    confirm = f"It decides nothing until you confirm it: helmsman config rules confirm {rule.id}"
    words = (f"{rule.rule.proposed_by} proposes a rule:", rule.rule.describe(), confirm)
    directory = rule.rule.directory
    return Notification(
        kind="question",
        about=f"rule {rule.id}",
        title="A rule waits for your confirmation",
        text=shortened(visible("\n\n".join(words))),
        directory=None if directory is None else str(directory),
    )


def shortened(text: str) -> str:
    """Return a text without secrets, truncated for a notification."""
    shown = redact(text)
    return shown if len(shown) <= TEXT_CHARS else shown[:TEXT_CHARS] + "\n(cut here: there is more to read)"
