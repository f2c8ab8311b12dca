"""Very many Helmsmen are killed at random moments; afterwards every task says of itself what is true.

What is true is told by others: the scripted model (whom Codex has asked), Codex's own record of each turn, and the engines.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from helmsman import Helmsman
from helmsman.agents.codex.storage import CodexSessions, turns_of
from helmsman.agents.protocol import RecordedTurn
from helmsman.agents.supervisor.records import read_records
from helmsman.base.concurrency import background_tasks
from helmsman.base.structs import replace
from helmsman.settings import Settings
from helmsman.tasks.model import Task
from helmsman.tasks.registry import REGISTRY_NAME
from helmsman.testing import CodexHome, ModelRequest, ScriptedModel, leaks, run, say
from tests.left_processes import stuck_sandboxes

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.name != "posix", reason="There is no kill -9 here."),
    pytest.mark.rare,
]

KILLABLE = Path(__file__).with_name("killable_helmsman.py")
AT_ONCE = 6
MOST_TASKS = 2000
SEED = 20261115
SECONDS = 200

STORIES = ("quick", "command", "gated", "question", "twice")
STAGES = {
    "forked": 0.1,  # with the longest random delay after it, in seconds
    "entered": 0.2,
    "began": 0.1,
    "ItemEnded": 0.05,
    "QuestionAsked": 0.02,
    "TurnEnded": 0.01,
    "entered again": 0.1,
    "ended": 0.01,
}


@dataclass
class Job:
    """One process, what it is to do, and when it dies."""

    number: int
    story: str
    detach: bool
    stage: str
    delay: float
    reached: anyio.Event = field(default_factory=anyio.Event)
    pid: int | None = None

    @property
    def prompts(self) -> list[str]:
        name = f"job {self.number}:"
        return [f"{name} quick", f"{name} gated again"] if self.story == "twice" else [f"{name} {self.story}"]

    @classmethod
    def at_random(cls, number: int, chance: random.Random) -> Job:
        stage = chance.choice(list(STAGES))
        story = chance.choice(STORIES)
        if stage in ("QuestionAsked", "entered again"):
            story = "question" if stage == "QuestionAsked" else "twice"
        elif stage in ("TurnEnded", "ended", "ItemEnded"):
            story = chance.choice(("quick", "command"))
        return cls(number, story, chance.random() < 0.5, stage, chance.uniform(0, STAGES[stage]))


class Killing:
    """Starts the jobs' processes and kills each at its moment."""

    def __init__(self, process: Process, settings: Settings, cwd: Path) -> None:
        self._process = process
        self._settings = settings
        self._cwd = cwd
        self._jobs: dict[int, Job] = {}

    async def listen(self) -> None:
        assert self._process.stdout is not None
        lines = BufferedByteReceiveStream(self._process.stdout)
        with suppress(anyio.EndOfStream, anyio.IncompleteRead):
            while True:
                report = json.loads(await lines.receive_until(b"\n", 65536))
                job = self._jobs[report["job"]]
                job.pid = report.get("pid", job.pid)
                if report["stage"] == job.stage:
                    job.reached.set()

    async def kill(self, job: Job) -> None:
        """The whole short life of one job."""
        self._jobs[job.number] = job
        flags = {"codex_path": str(self._settings.codex_path), "detach": job.detach}
        order = {"job": job.number, "settings": flags, "cwd": str(self._cwd), "prompts": job.prompts}
        assert self._process.stdin is not None
        await self._process.stdin.send(json.dumps(order).encode() + b"\n")
        await job.reached.wait()
        await anyio.sleep(job.delay)
        assert job.pid is not None
        os.kill(job.pid, signal.SIGKILL)


@asynccontextmanager
async def killing(settings: Settings, home: CodexHome, cwd: Path) -> AsyncIterator[Killing]:
    command = [sys.executable, str(KILLABLE)]
    async with (
        await anyio.open_process(command, env=home.env, cwd=cwd, stderr=None) as process,
        background_tasks() as tasks,
    ):
        begun = Killing(process, settings, cwd)
        tasks.start_soon(begun.listen)
        try:
            yield begun
        finally:
            process.kill()


async def kill_all(killer: Killing, jobs: list[Job]) -> None:
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def one(job: Job) -> None:
        async with limit:
            await killer.kill(job)

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(one, job)


# --- the witnesses ---------------------------------------------------------------------------------------------------


class Witnesses:
    """What happened, from those who do not ask the registry."""

    def __init__(self, model: ScriptedModel, home: CodexHome, state_dir: Path) -> None:
        self._model = model
        self._index = CodexSessions(home.path)
        self._state_dir = state_dir

    def turns(self) -> dict[str, RecordedTurn]:
        """Each turn that Codex has a record of, by its prompt; by its id, where Codex did not come to write the prompt."""
        found: dict[str, RecordedTurn] = {}
        for info in self._index.list(limit=MOST_TASKS)[0]:
            assert info.path is not None
            prompts = prompts_in(info.path)
            for turn in turns_of(info.path):
                assert turn.turn_id is not None
                found[prompts.get(turn.turn_id, turn.turn_id)] = turn
        return found

    def asked_of_the_model(self) -> set[str]:
        return {request.last_user_text for request in self._model.requests}

    def running(self) -> set[str]:
        """The sessions that an engine is at work on."""
        running: set[str] = set()
        for record in read_records(self._state_dir):
            activity = record.activity()
            running |= {*activity.working, *activity.waiting}
        return running


def prompts_in(rollout: Path) -> dict[str, str]:
    """The prompts of a session's turns, by the turns' ids. Codex puts other things into the person's mouth, too."""
    prompts: dict[str, str] = {}
    turn_id = ""
    for line in rollout.read_text(encoding="utf-8").splitlines():
        payload = json.loads(line)["payload"]
        if payload.get("type") == "task_started":
            turn_id = payload["turn_id"]
        elif payload.get("role") == "user":
            for part in payload["content"]:
                if part["text"].startswith("job "):
                    prompts[turn_id] = part["text"]
    return prompts


ENDS = {"completed": "completed", "failed": "failed", "interrupted": "canceled"}


def lie(task: Task, turn: RecordedTurn | None, running: set[str]) -> str | None:
    """What is not true of what a task says, or None."""
    if turn is None:
        return None if task.status == "unknown" else "Codex has no record of its turn"
    if turn.outcome != "open":
        if task.status != ENDS[turn.outcome]:
            return f"Codex says its turn {turn.outcome}"
        return None if task.result == turn.message else f"Codex says its result is {turn.message}"
    if task.session_id in running:
        return None if task.status == "working" else "an engine is at work on it"
    return None if task.status == "failed" else "nobody is at work on it"


def done(request: ModelRequest) -> str:
    return f"Done with {request.last_user_text}"


@pytest.fixture
def no_stuck_sandboxes() -> Iterator[None]:
    """Ends what Codex leaves when killed in the wrong millisecond. Asked for before the engines, so it comes after them."""
    yield
    leaks.end(stuck_sandboxes(os.environ[leaks.MARKER_VARIABLE]))


@dataclass(frozen=True)
class Scene:
    """Where the jobs are done."""

    model: ScriptedModel
    home: CodexHome
    settings: Settings
    state_dir: Path
    folder: Path


@pytest.fixture
def scene(
    no_stuck_sandboxes: None,
    model: ScriptedModel,
    codex_home: CodexHome,
    settings: Settings,
    detached_engines: Path,
    folder: Path,
) -> Scene:
    return Scene(model, codex_home, settings, detached_engines, folder)


@pytest.mark.timeout(600)
async def test_after_forty_kills_every_task_tells_the_truth(scene: Scene) -> None:
    await kill_at_random(scene, 40)


async def kill_at_random(scene: Scene, kills: int) -> None:
    model = scene.model
    gate = model.gate()
    model.on("quick", lambda request: say(done(request)))
    model.on("command", run("echo working"), lambda request: say(done(request)))
    model.on("gated", lambda request: say("Done ", gate, f"with {request.last_user_text}"))
    model.on("question", run("touch made.txt", escalate="please"), lambda request: say(done(request)))
    chance = random.Random(SEED)  # the same moments each time
    jobs = [Job.at_random(number, chance) for number in range(kills)]
    with anyio.fail_after(SECONDS):
        async with killing(scene.settings, scene.home, scene.folder) as killer:
            await kill_all(killer, jobs)
    witnesses = Witnesses(model, scene.home, scene.state_dir)
    async with Helmsman(replace(scene.settings, detach=True), env=scene.home.env) as helm:
        await until_all_tell_the_truth(helm, witnesses)
        gate.release()
        await bring_to_an_end(helm, witnesses)
        tasks = await until_all_tell_the_truth(helm, witnesses)
    assert not [task for task in tasks if task.is_running]
    assert {"completed", "canceled", "unknown"} <= {task.status for task in tasks}  # the moments were different ones
    assert witnesses.asked_of_the_model() <= {task.instruction for task in tasks}
    with closing(sqlite3.connect(scene.state_dir / REGISTRY_NAME)) as registry:
        assert registry.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def until_all_tell_the_truth(helm: Helmsman, witnesses: Witnesses) -> list[Task]:
    """A Codex whose parent was killed may take a moment to write down the end, and as long its task may call it working."""
    lies: list[str] = []
    with anyio.move_on_after(30):
        while True:
            tasks, _ = await helm.tasks.list(limit=MOST_TASKS)
            turns, running = witnesses.turns(), witnesses.running()
            said = {
                task.id: lie(task, turns.get(task.instruction) or turns.get(task.turn_id or ""), running)
                for task in tasks
            }
            lies = [
                f"{task.id} ({task.instruction}) says {task.status}, but {said[task.id]}\n  {task}"
                for task in tasks
                if said[task.id]
            ]
            if not lies:
                return tasks
            await anyio.sleep(0.2)
    pytest.fail("\n".join(lies), pytrace=False)


async def bring_to_an_end(helm: Helmsman, witnesses: Witnesses) -> None:
    """Approve what is asked, until no engine is at work on anything."""
    with anyio.fail_after(SECONDS):
        while witnesses.running():
            for task in (await helm.tasks.list(status=["working"], limit=MOST_TASKS))[0]:
                session = await helm.tasks.local.follow(task)
                for question in session.questions if session is not None else ():
                    await helm.respond(question.session_id, question.id, ["approve"])
            await anyio.sleep(0.05)
