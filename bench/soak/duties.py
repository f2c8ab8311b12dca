"""Soak of scheduled work: hubs are killed around due times and during notifications.

Each duty is a schedule with one time. Most produce a message, some ask whether a command may run, some reach a usage
limit and must resume afterwards. No client waits for them: a receiver counts the notifications about their ends,
questions and limits.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from bench.soak.faults import kill_hub, until_there_is_one
from bench.soak.receiver import SECRET, CountingReceiver
from bench.soak.run import ground_for
from bench.soak.servers import Pipes
from bench.soak.stories import answer, asks_for, marker_file, number_in
from bench.soak.works import Books
from helmsman.sessions.state import SessionState
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import always, fail, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from bench.soak.run import Ground, Place
    from helmsman.tasks.model import Task
    from helmsman.testing import ModelRequest, ScriptedModel
    from helmsman.testing.script import Step

PERIOD: Final = 1.8
"""Between two times at which something is due, in seconds."""
KINDS: Final = ("says", "says", "says", "says", "asks", "limit")
_ADDING: Final = 0.6
"""Maximum time for adding a schedule."""
_NO_LIMITS_AT_THE_END: Final = 0.2
"""Limit ends at the end of a minute: the last duties reach none, so that the soak need not wait."""
_AROUND: Final = (-0.4, 1.2)
_WHILE_STARTING: Final = 0.3
"""Share of hubs that may be killed while starting. On a busy machine all of them would be."""
_PATIENCE: Final = 1.6
"""Seconds after its due time that a kill waits for a notification or a limit."""
_SETTLE_SECONDS: Final = 240.0
_ENV: Final = {"HELMSMAN_DETACH": "1", "MAX_SESSIONS": "1000", "HELMSMAN_ON_LIMIT": "wait"}
_TOLD: Final = ("question", "done", "failed", "limit", "schedule")
_ENDED: Final = {"completed": "done", "failed": "schedule", "unknown": "schedule"}
"""Notification for each end of a run."""


@dataclass(slots=True)
class Duty:
    """Work that is due once."""

    number: int
    kind: str
    schedule_id: str = ""


@dataclass(slots=True)
class Seen:
    """Requests to the model, by the number of the duty."""

    answered: Counter[int] = field(default_factory=Counter[int])
    limited: Counter[int] = field(default_factory=Counter[int])


@dataclass(slots=True, kw_only=True)
class DutiesOutcome:
    """Result of the soak."""

    seed: int
    how_long: str
    codex: str
    books: Books
    orphans: list[str]
    duties: list[Duty]
    ends: Counter[str] = field(default_factory=Counter[str])
    notices: Counter[int] = field(default_factory=Counter[int])
    """Number of notifications by number of arrivals."""
    not_begun: int = 0
    """Runs whose hub died after recording their start and before sending it to Codex: `unknown`, and reported."""
    cut_off: int = 0
    """Notices that two hubs in a row were about to send when they died: these did not arrive, and are marked doubtful."""
    not_once: list[str] = field(default_factory=list[str])
    not_told: list[str] = field(default_factory=list[str])
    not_gone_on: list[str] = field(default_factory=list[str])
    untrue: list[str] = field(default_factory=list[str])

    def figures(self) -> Iterator[tuple[str, str]]:
        """Yield the result in figures."""
        of = Counter(duty.kind for duty in self.duties)
        yield "runs that were due", f"{len(self.duties)}, of which {of['asks']} asked and {of['limit']} reached a limit"
        yield "runs finished", ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()))
        yield "messages that a hub had taken and not begun when it died", str(self.not_begun)
        yield (
            "notices",
            f"{self.notices[1]} arrived once, {self.notices[2]} twice; {self.cut_off} cut off twice before it arrived, and "
            "marked doubtful",
        )

    def must_be_none(self) -> list[tuple[str, list[str]]]:
        """Return violations, with their places."""
        return [
            ("due runs that were begun twice, or not begun without a word", self.not_once),
            ("notices lost without a word, or that came more than twice", self.not_told),
            ("limits after which work did not go on, or went on twice", self.not_gone_on),
            ("runs reported wrongly", self.untrue),
            ("MCP connections lost through the death of a hub", self.books.connections_lost),
            ("orphan processes", self.orphans),
            ("anything else that should never happen", self.books.problems),
        ]


async def soak_duties(kills: int, seed: int, folder: Path) -> DutiesOutcome:
    """Kill this many hubs, each around scheduled work."""
    random, books, seen = Random(seed), Books(), Seen()
    last = int(kills * (1 - _NO_LIMITS_AT_THE_END))
    duties = [Duty(number, random.choice(KINDS[:-1] if number > last else KINDS)) for number in range(1, kills + 1)]
    with CountingReceiver(seed) as receiver:
        async with ground_for(folder, seed, books, _ENV) as ground:
            place = ground.place
            _tell(place, receiver.url)
            _teach(ground, seen)
            clients = Pipes(place.env, place.repository("of-nobody"), place.logs, mode="legacy")
            async with _hub_kept(place), clients.connection():
                begin = time.time() + len(duties) * _ADDING + PERIOD
                for duty in duties:
                    await _add(place, duty, begin + duty.number * PERIOD)
                await _kill_around(kills, begin, place, books, random, lambda: receiver.came, seen.limited.total)
                tasks = await _settled(ground, duties)
            outcome = DutiesOutcome(
                seed=seed,
                how_long=f"{kills} hubs around due times",
                codex=ground.codex,
                books=books,
                orphans=ground.orphans,
                duties=duties,
            )
            _judge(outcome, tasks, seen, receiver, ground)
    books.problems += receiver.problems
    return outcome


def _tell(place: Place, url: str) -> None:
    """Configure all notifications for the receiver."""
    path = Path(place.env["HOME"]) / ".config" / "helmsman" / "helmsman.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"[notify]\nevents = {list(_TOLD)}\nunanswered_sec = 0\n"
        f'[[notify.to]]\nway = "webhook"\nurl = "{url}"\nsecret = "{SECRET}"\n',
        encoding="utf-8",
    )


def _teach(ground: Ground, seen: Seen) -> None:
    model: ScriptedModel = ground.model

    def says(request: ModelRequest) -> Step:
        number = number_in(request)
        seen.answered[number] += 1
        return say(answer(number))

    def is_limited(request: ModelRequest) -> Step:
        if seen.limited[number_in(request)]:
            return says(request)
        seen.limited[number_in(request)] += 1
        return fail(429, error_type="usage_limit_reached", resets_at=int(time.time()) + 1)

    model.on("[says]", always(says))
    model.on("[asks]", asks_for(ground.marks), always(says))
    model.on("[limit]", always(is_limited))


@asynccontextmanager
async def _hub_kept(place: Place) -> AsyncIterator[None]:
    """Keep a hub running, like the system after `helmsman hub install`."""
    with (place.logs / "kept.log").open("wb") as log:
        command = [sys.executable, "-m", "helmsman", "hub", "run"]
        kept = await anyio.open_process(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(place.env), cwd=place.folder
        )
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            if kept.returncode is None:
                kept.terminate()
            await kept.wait()


async def _add(place: Place, duty: Duty, at: float) -> None:
    """Add the schedule as a person does: one of a model would wait for a confirmation."""
    when = datetime.fromtimestamp(at, UTC).isoformat()
    prompt = f"Duty [{duty.kind}] #{duty.number}"
    added = await _command(place, "schedule", "add", prompt, "--at", when, "--full-auto", "--json")
    duty.schedule_id = json.loads(added)["scheduleId"]


async def _command(place: Place, *arguments: str) -> bytes:
    """Run a command of a person, and return its output."""
    command = [sys.executable, "-m", "helmsman", *arguments]
    return (
        await anyio.run_process(command, env=dict(place.env), cwd=place.folder / "repositories" / "of-nobody")
    ).stdout


async def _kill_around(
    count: int,
    begin: float,
    place: Place,
    books: Books,
    random: Random,
    notices: Callable[[], int],
    limits: Callable[[], int],
) -> None:
    """Kill this many hubs: around a duty's time, right after a notification, or right after a limit."""
    for number in range(1, count + 1):
        due = begin + number * PERIOD
        if random.random() > _WHILE_STARTING:
            await until_there_is_one(place.state_dir)
            due = max(due, time.time())  # on a busy machine, due work is late too
        when = random.choice(
            ("at a due time", "at a due time", "in the middle of a notice", "when a limit was reached")
        )
        match when:
            case "at a due time":
                await _until_time(due + random.uniform(*_AROUND))
            case "in the middle of a notice":
                await _until_more(notices, due + _PATIENCE)
            case _:
                await _until_more(limits, due + _PATIENCE)
        deaths = books.hub_deaths
        while books.hub_deaths == deaths:  # none may be there yet
            kill_hub(place.state_dir, books)
            await anyio.sleep(0.02)
        books.counts[f"hub killed {when}"] += 1


async def _until_time(at: float) -> None:
    await anyio.sleep(max(at - time.time(), 0))


async def _until_more(count: Callable[[], int], at: float) -> None:
    """Wait until there is one more, or until the time."""
    before = count()
    while time.time() < at and count() == before:  # noqa: ASYNC110 - a thread tells of it
        await anyio.sleep(0.005)


# --- the end ---------------------------------------------------------------------------------------------------------


async def _settled(ground: Ground, duties: Sequence[Duty]) -> list[Task]:
    """Return all tasks after they have ended and were reported. Questions are answered only now."""
    state_dir, books = ground.place.state_dir, ground.place.books
    answered: set[str] = set()
    with anyio.move_on_after(_SETTLE_SECONDS):
        while True:
            tasks = await anyio.to_thread.run_sync(_tasks, state_dir)
            for task in tasks:
                for question in await anyio.to_thread.run_sync(_open_questions, state_dir, task):
                    if await anyio.to_thread.run_sync(_is_told, state_dir, question) and question not in answered:
                        answered.add(question)
                        await _command(ground.place, "respond", str(task.session_id), question, "approve")
                        books.counts["question answered: approve"] += 1
            is_over = len(tasks) >= len(duties) and not any(task.is_running for task in tasks)
            if is_over and not await anyio.to_thread.run_sync(_untold, state_dir):
                return tasks
            await anyio.sleep(0.2)
    books.problems.append(f"After {_SETTLE_SECONDS:g} s not everything had ended and was told.")
    return await anyio.to_thread.run_sync(_tasks, state_dir)


def _tasks(state_dir: Path) -> list[Task]:
    with closing(Registry(state_dir / REGISTRY_NAME)) as registry:
        return list(registry.list(limit=100_000)[0])


def _open_questions(state_dir: Path, task: Task) -> list[str]:
    if not task.is_running or not task.input_required or task.session_id is None:
        return []
    with closing(Registry(state_dir / REGISTRY_NAME)) as registry:
        state = SessionState(task.session_id)
        for event in registry.events(task.session_id).events:
            state.apply(event)
        return list(state.questions)


def _ask_store(state_dir: Path, sql: str, *values: object) -> int:
    with closing(sqlite3.connect(f"file:{state_dir / REGISTRY_NAME}?mode=ro", uri=True)) as connection:
        return int(connection.execute(sql, values).fetchone()[0])


def _is_told(state_dir: Path, question: str) -> bool:
    sql = (
        "SELECT COUNT(*) FROM notice_deliveries JOIN notices ON id = notice "
        "WHERE about LIKE ? AND status NOT IN ('pending', 'sending')"
    )
    return _ask_store(state_dir, sql, f"question % {question}") > 0


def _untold(state_dir: Path) -> int:
    return _ask_store(
        state_dir,
        "SELECT (SELECT COUNT(*) FROM notices_due) + "
        "(SELECT COUNT(*) FROM notice_deliveries WHERE status IN ('pending', 'sending'))",
    )


def _is_doubtful(state_dir: Path, kind: str, about: str) -> bool:
    """Return whether the store has an unknown delivery for a task, or for a question of a session."""
    told = kind if kind in ("question", "limit") else "task"
    sql = (
        "SELECT COUNT(*) FROM notice_deliveries JOIN notices ON id = notice WHERE about LIKE ? AND status = 'doubtful'"
    )
    return _ask_store(state_dir, sql, f"{told} {about}%") > 0


def _judge(
    outcome: DutiesOutcome, tasks: Sequence[Task], seen: Seen, receiver: CountingReceiver, ground: Ground
) -> None:
    state_dir = ground.place.state_dir
    by_schedule: dict[str, list[Task]] = {}
    for task in tasks:
        by_schedule.setdefault(str(task.schedule), []).append(task)
    told: Counter[tuple[str, str]] = Counter()
    for notice in receiver.told.values():
        outcome.notices[len(notice.repeats)] += 1
        told[notice.kind, notice.task_id or notice.session_id or ""] += 1
        if len(notice.repeats) > 2 or notice.repeats[1:] not in ([], [True]):
            outcome.not_told.append(f"A notice of kind {notice.kind} of {notice.task_id} came: {notice.repeats}")
    for duty in outcome.duties:
        runs = by_schedule.pop(duty.schedule_id, [])
        if len(runs) != 1:
            outcome.not_once.append(f"#{duty.number} ({duty.kind}): {len(runs)} runs")
            continue
        (task,) = runs
        outcome.ends[task.status] += 1
        _judge_run(outcome, duty, task, seen, ground.marks)
        expected = [(_ENDED.get(task.status, ""), task.id)]
        expected += [("limit", task.id)] if seen.limited[duty.number] else []
        expected += [("question", task.session_id or "")] if duty.kind == "asks" and task.status == "completed" else []
        for news in expected:
            times = told.pop(news, 0)
            if times == 0 and _is_doubtful(state_dir, *news):
                outcome.cut_off += 1
            elif times != 1:
                outcome.not_told.append(f"#{duty.number} ({duty.kind}, {task.id}): {news[0]}")
    outcome.not_told += [
        f"{count} of kind {kind} of {about} that are of nobody" for (kind, about), count in told.items()
    ]
    outcome.not_once += [f"{len(runs)} tasks of schedule {schedule}" for schedule, runs in by_schedule.items()]


def _judge_run(outcome: DutiesOutcome, duty: Duty, task: Task, seen: Seen, marks: Path) -> None:
    answers, name = seen.answered[duty.number], f"#{duty.number} ({duty.kind}, {task.id})"
    if task.status == "unknown" and not answers:
        outcome.not_begun += 1  # unknown whether Codex received it: reported, and not repeated
        return
    if duty.kind == "limit" and (answers, seen.limited[duty.number]) != (1, 1):
        outcome.not_gone_on.append(f"{name}: {task.status}, {answers} answers, {task.note}, {task.error}")
    elif answers != 1:
        outcome.not_once.append(f"{name}: {task.status}, the model answered {answers} times, {task.note}, {task.error}")
    elif (task.status, task.result) != ("completed", answer(duty.number)):
        outcome.untrue.append(f"{name}: {task.status}, {task.result!r}, {task.note}, {task.error}")
    mark = marker_file(marks, duty.number)
    ran = len(mark.read_text(encoding="utf-8").splitlines()) if mark.exists() else 0
    if ran != (duty.kind == "asks"):
        outcome.not_once.append(f"{name}: its command ran {ran} times")
