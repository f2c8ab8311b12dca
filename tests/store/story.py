"""A user's work with every kind of durable write in it, done by a program through its hub, and what is true after it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import anyio

from helmsman import Helmsman, Session
from helmsman.approvals.audit import AUDIT_NAME
from helmsman.capabilities.changes import AppliedSession
from helmsman.capabilities.rewinding import Rewind
from helmsman.errors import OutcomeUnknown
from helmsman.model.events import PastTurn, UserMessage
from helmsman.schedules.store import Schedule
from helmsman.tasks.model import Task
from helmsman.testing import ScriptedModel, add, patch, run, say
from tests.notices.receivers import Receiver

SECONDS: Final = 30
FIRST, STEERED, QUEUED, HELD, CHANGE, SCHEDULED = "first", "steered", "queued", "held", "change", "scheduled"
_STATUSES: Final = {
    FIRST: "completed",
    QUEUED: "completed",
    HELD: "canceled",
    CHANGE: "completed",
    SCHEDULED: "completed",
}


class Untrue(AssertionError):
    """What the hub says is not what happened."""


class Story:
    """The steps, what the hub acknowledged of them, and what it did not know.

    The program repeats nothing by itself: its connection does, as every client's. What a hub calls unknown is looked up,
    as a user would, and done again only where it is known not to have been done.
    """

    def __init__(self, model: ScriptedModel, receiver: Receiver, repository: Path, state_dir: Path) -> None:
        self._model, self._receiver, self._repository, self._state_dir = model, receiver, repository, state_dir
        self.unknown: list[str] = []
        """The steps of which the hub could not tell whether they were done."""
        self.at = ""
        """The step that is under way."""
        self._running, self._holding = model.gate(), model.gate()
        model.on(
            FIRST,
            run("echo asked >> ran.txt", escalate="It is needed."),
            say("hm", self._running),
            say("first is done"),  # asked for because of what was steered
        )
        model.on(QUEUED, say("queued is done"))
        model.on(HELD, say("hm", self._holding))
        model.on(CHANGE, patch(add("new.txt", "new\n")), run("echo changed >> ran.txt"), say("change is done"))
        model.on(SCHEDULED, say("scheduled is done"))

    # --- the steps ---------------------------------------------------------------------------------------------------

    async def tell(self, helm: Helmsman) -> None:
        """Go through all of it."""
        session = await self._start(helm)
        await self._answer(session)
        await self._steer_and_queue(helm, session)
        await self._interrupt(helm, session)
        await self._change_and_apply(helm, session)
        await self._rewind(helm, session)
        await self._schedule(helm)

    async def _start(self, helm: Helmsman) -> Session:
        session = await self._opened(helm)
        with self._step("first request"):
            while not self._saw(FIRST):
                if not session.state.is_running and await self._is_unknown(helm, FIRST):
                    self.unknown.append(FIRST)
                    session = await self._opened(helm)  # a session that never ran a turn cannot be resumed
                await anyio.sleep(0.02)
        return session

    async def _opened(self, helm: Helmsman) -> Session:
        options: dict[str, Any] = {"sandbox": "workspace-write", "approval_policy": "on-request"}

        async def start() -> Session:
            return await helm.start(FIRST, cwd=self._repository, worktree=True, **options)

        session: Session | None = await self._acknowledged("start", start)
        if session is None:
            task = await self._task(helm, FIRST)
            if task is None or task.session_id is None:
                raise Untrue("a start is unknown, and no task tells of it")
            session = await helm.session(task.session_id)
        return session

    async def _answer(self, session: Session) -> None:
        with self._step("question"):
            while not session.questions or not self._told("question"):
                await anyio.sleep(0.01)
        (question,) = session.questions
        await self._acknowledged("answer", lambda: session.respond(question.id, "approve"))
        with self._step("approved command"):
            await self._running.reached()

    async def _steer_and_queue(self, helm: Helmsman, session: Session) -> None:
        await self._acknowledged("steer", lambda: session.steer(STEERED))
        await self._acknowledged("queue", lambda: session.say(QUEUED, when_busy="queue"))
        self._running.release()
        await self._turn(helm, session, QUEUED, lambda: is_done(session, "queued is done"))

    async def _interrupt(self, helm: Helmsman, session: Session) -> None:
        await self._acknowledged("say", lambda: session.say(HELD))
        await self._turn(helm, session, HELD, lambda: self._saw(HELD))
        await self._acknowledged("interrupt", session.interrupt)
        with self._step("end of the interrupted turn"):
            while session.state.is_running:
                await session.feed.changed()
        self._holding.release()

    async def _change_and_apply(self, helm: Helmsman, session: Session) -> None:
        await self._acknowledged("say again", lambda: session.say(CHANGE))
        await self._turn(helm, session, CHANGE, lambda: is_done(session, "change is done"))
        with self._step("diff"):
            shown = (await helm.extras.changes.diff(session.id)).diff.digest

        async def apply() -> AppliedSession:
            return await helm.extras.changes.apply(session.id, digest=shown)

        await self._acknowledged("apply", apply)

    async def _rewind(self, helm: Helmsman, session: Session) -> None:
        """Take the files of the last turn back. Of a rewind that is unknown, the next look says what is left of it."""

        async def look() -> Rewind:
            return await helm.extras.rewinding.preview(session.id, part="files")

        async def rewind() -> Rewind:
            return await helm.extras.rewinding.rewind(session.id, part="files", digest=shown.digest)

        shown = await look()
        while not shown.is_nothing:
            await self._acknowledged("rewind", rewind)
            with self._step("look at what was taken back"):
                shown = await look()

    async def _schedule(self, helm: Helmsman) -> None:
        options: dict[str, Any] = {"sandbox": "read-only", "approval_policy": "never"}

        async def schedule() -> Schedule:
            return await helm.extras.schedules.add(SCHEDULED, at="in 1s", cwd=self._repository, **options)

        added = await self._acknowledged("schedule", schedule)
        if added is None and not await helm.extras.schedules.list():
            await self._acknowledged("schedule again", schedule)
        with self._step("scheduled run"):
            while not (task := await self._task(helm, SCHEDULED)) or not (task.has_ended or task.status == "unknown"):
                await anyio.sleep(0.05)
        if task.status == "unknown":
            self.unknown.append(SCHEDULED)  # it is not due again
        with self._step("notification of the scheduled run"):
            while not self._told(task.id):
                await anyio.sleep(0.01)

    async def _turn(self, helm: Helmsman, session: Session, prompt: str, has_come: Callable[[], bool]) -> None:
        """Wait for something in a turn. One that the agent may not have heard of is `unknown`: the user asks again."""
        with self._step(f"turn {prompt}"):
            while not has_come():
                is_idle = not session.state.is_running and not session.queue
                if is_idle and not self._saw(prompt) and await self._is_unknown(helm, prompt):
                    self.unknown.append(prompt)
                    await session.say(prompt)
                await anyio.sleep(0.02)

    async def _is_unknown(self, helm: Helmsman, prompt: str) -> bool:
        task = await self._task(helm, prompt)
        return task is not None and task.status == "unknown"

    def _saw(self, prompt: str) -> bool:
        """Whether the model was asked."""
        return any(request.last_user_text == prompt for request in self._model.requests)

    def _step(self, name: str) -> Any:
        self.at = name
        return anyio.fail_after(SECONDS)

    async def _acknowledged(self, name: str, do: Callable[[], Awaitable[Any]]) -> Any:
        with self._step(name):
            try:
                return await do()
            except OutcomeUnknown:
                self.unknown.append(name)
        return None

    async def _task(self, helm: Helmsman, instruction: str) -> Task | None:
        return next((task for task in await tasks_of(helm) if task.instruction == instruction), None)

    def _told(self, what: str) -> bool:
        """Whether somebody was notified of a task, or of something of this kind."""
        return any(what in (one.json["kind"], one.json.get("taskId")) for one in list(self._receiver.received))

    @property
    def _lost(self) -> list[tuple[str, str]]:
        """The tasks in place of which another one was begun."""
        return [("unknown", prompt) for prompt in self.unknown if prompt != SCHEDULED]

    # --- what is true ------------------------------------------------------------------------------------------------

    async def check(self, helm: Helmsman) -> None:
        """Compare what the hub says with what the model, the files and the receiver of notifications saw.

        Raises:
            Untrue: They differ.
        """
        tasks = [task for task in await tasks_of(helm) if (task.status, task.instruction) not in self._lost]
        statuses = _STATUSES | ({SCHEDULED: "unknown"} if SCHEDULED in self.unknown else {})
        same("tasks", sorted(task.instruction for task in tasks), sorted(statuses))
        same("statuses", {task.instruction: task.status for task in tasks}, statuses)
        by_prompt = {task.instruction: task for task in tasks}
        session_id = by_prompt[FIRST].session_id
        assert session_id is not None
        await self._check_prompts(helm, session_id)
        self._check_files()
        _check_rewound(await helm.session(session_id))
        self._check_answers()
        (schedule,) = await helm.extras.schedules.list()
        runs = await helm.extras.schedules.runs(schedule.id)
        same("runs of the schedule", [one.task_id for one in runs], [by_prompt[SCHEDULED].id])
        await self._check_notifications(helm)

    async def _check_prompts(self, helm: Helmsman, session_id: str) -> None:
        """The model saw each prompt once, and the session's history has it once."""
        scheduled = [request for request in self._model.requests if SCHEDULED in request.user_texts]
        if scheduled or SCHEDULED not in self.unknown:
            same("requests of the scheduled run", [request.user_texts for request in scheduled], [(SCHEDULED,)])
        requests = [request for request in self._model.requests if request not in scheduled]
        said = list(requests[-1].user_texts)
        prompts = [FIRST, STEERED, QUEUED, HELD, CHANGE]
        if "steer" in self.unknown and STEERED not in said:
            prompts.remove(STEERED)
        same("prompts that the model saw", said, prompts)
        same("requests to the model", len(requests), len(prompts) + 3)
        turns = await helm.history(session_id)
        same("prompts in the history", _prompts(turn for turn in turns if turn.status != "failed"), prompts)
        # A turn of which nothing is known stays there as one that failed, beside the one that was sent again.
        failed = _prompts(turn for turn in turns if turn.status == "failed")
        same("turns that failed", [prompt for prompt in failed if prompt not in self.unknown], [])
        session = await helm.session(session_id)
        same("the session", (session.status, session.result), ("done", "change is done"))
        if not self._lost:
            same("turns", session.turn_count, 4)

    def _check_files(self) -> None:
        """Each command ran once, and what they did was applied once."""
        files = {path.name: path.read_text(encoding="utf-8") for path in self._repository.glob("*.txt")}
        same("files", files, {"ran.txt": "asked\nchanged\n", "new.txt": "new\n"})

    def _check_answers(self) -> None:
        """The audit log has the answer once."""
        lines = (self._state_dir / AUDIT_NAME).read_text(encoding="utf-8").splitlines()
        same("answers in the audit log", [json.loads(line)["decision"] for line in lines], ["approve"])

    async def _check_notifications(self, helm: Helmsman) -> None:
        """One for each event; two with the same id where the hub says that it does not know whether the first arrived."""
        with anyio.fail_after(SECONDS):
            while any(one.status in ("pending", "sending") for one in await helm.extras.notices.log()):
                await anyio.sleep(0.02)
        doubtful = {one.id for one in await helm.extras.notices.log() if one.is_doubtful}
        received = [(one.headers["webhook-id"], one.json) for one in self._receiver.received]
        twice = {key for key, count in Counter(key for key, _ in received).items() if count > 1}
        if twice - doubtful or len(received) - len({key for key, _ in received}) > 1:
            raise Untrue(f"notifications that came twice: {twice - doubtful}")
        about = {key: (content["kind"], content.get("taskId")) for key, content in received}
        repeated = [event for event, count in Counter(about.values()).items() if count > 1]
        same("events with more than one notification", repeated, [])


def _check_rewound(session: Session) -> None:
    """The worktree has what was there before the last turn."""
    assert session.worktree is not None
    files = {path.name: path.read_text(encoding="utf-8") for path in session.worktree.directory.glob("*.txt")}
    same("files in the worktree", files, {"ran.txt": "asked\n"})


def is_done(session: Session, result: str) -> bool:
    return session.result == result and not session.state.is_running


async def tasks_of(helm: Helmsman) -> list[Task]:
    tasks, _ = await helm.tasks.list(limit=50)
    return list(tasks)


def _prompts(turns: Iterable[PastTurn]) -> list[str]:
    """The prompts that arrived. A message into a turn that is not known to have arrived is there as failed."""
    items = (item for turn in turns for item in turn.items)
    return [item.text for item in items if isinstance(item, UserMessage) and item.status != "failed"]


def same(what: str, said: object, true: object) -> None:
    if said != true:
        raise Untrue(f"{what}: {said!r} instead of {true!r}")
