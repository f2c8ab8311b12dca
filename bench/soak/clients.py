"""The clients of a soak: MCP clients that start, wait, answer, interrupt and hang up, and programs that use the library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from bench.soak.servers import ServerGone, ToolError
from bench.soak.stories import STORIES, prompt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from bench.soak.servers import Connection, Server
    from bench.soak.works import Books, Work

LOOK_AGAIN: Final = {
    "engine_lost",
    "engine_start_failed",
    "engine_timeout",
    "session_busy",
    "session_idle",
    "session_locked",
    "too_many_sessions",
    "question_not_open",
    "registry_unavailable",
    "task_not_ours",
}
"""Errors that a fault, or another client, can bring about: the client looks again."""

_ENDED: Final = {"done", "error", "interrupted"}
_PATIENCE: Final = 120.0
"""How long one session may take, faults and all."""


class McpWorker:
    """One agent that uses Helmsman over MCP, a session after the other."""

    def __init__(self, server: Server, books: Books, random: Random, repository: Path) -> None:
        self._server = server
        self._books = books
        self._random = random
        self._repository = repository

    async def work(self, over: anyio.Event) -> None:
        stories, weights = list(STORIES), list(STORIES.values())
        while not over.is_set():
            work = self._books.new_work(self._random.choices(stories, weights)[0])
            with anyio.move_on_after(_PATIENCE) as scope:
                await self._see_through(work)
            if scope.cancelled_caught:
                self._books.problems.append(f"#{work.number} ({work.story}) did not end within {_PATIENCE:g} s.")

    async def _see_through(self, work: Work) -> None:
        """Come back after every broken connection until the session has ended."""
        while work.told is None:
            try:
                async with self._server.connection() as connection:
                    await _Visit(connection, self._books, self._random, self._repository, work).stay()
            except Exception as error:  # noqa: BLE001 - a dying server breaks a client anywhere; it is counted by name
                self._books.counts[f"connection lost: {_innermost(error)}"] += 1
                await anyio.sleep(self._random.uniform(0.1, 0.5))


class _Visit:
    """What a client does while it is connected."""

    def __init__(self, connection: Connection, books: Books, random: Random, repository: Path, work: Work) -> None:
        self._connection = connection
        self._books = books
        self._random = random
        self._repository = repository
        self._work = work
        self._leave_questions = random.random() < 0.2

    async def stay(self) -> None:
        while self._work.session_id is None:
            await self._start()
        while True:
            status = await self._wait()
            if status is None:
                continue
            if status["status"] == "awaiting_approval":
                await self._answer(status)
            elif status["status"] == "active":
                await self._meddle()
            elif self._random.random() < 0.25:
                await self._go_on()
            else:
                self._work.told, self._work.result = status["status"], status.get("result")
                return

    async def _start(self) -> None:
        work = self._work
        started = await self._call(
            "codex_start",
            hang_up_after=self._sometimes(0.05, 0.5),
            prompt=prompt(work.story, work.number),
            workingDirectory=str(self._repository),
            sandbox="workspace-write",
            approvalPolicy="on-request",
            idempotencyKey=f"soak-{work.number}",
        )
        if started is not None:
            work.session_id = started["sessionId"]
            self._books.counts["sessions started over MCP"] += 1

    async def _wait(self) -> dict[str, Any] | None:
        return await self._call(
            "codex_wait",
            hang_up_after=self._sometimes(0.05, 1.0),
            sessionId=self._work.session_id,
            timeoutSec=self._random.choice([0.5, 2, 10]),
        )

    async def _answer(self, status: Mapping[str, Any]) -> None:
        question, chance = status["pendingQuestion"], self._random.random()
        if self._leave_questions:
            self._books.counts["question left to its deadline"] += 1
            self._leave_questions = False
            await anyio.sleep(self._random.uniform(1, 6))
        elif chance < 0.1:
            await self._interrupt()
        else:
            says = "approve" if chance < 0.6 else "deny: the soak says so"
            if says == "approve":
                self._work.approved |= self._work.numbers
            self._books.counts[f"question answered: {says.partition(':')[0]}"] += 1
            await self._call("codex_respond", sessionId=self._work.session_id, id=question["id"], answers=[says])

    async def _meddle(self) -> None:
        chance = self._random.random()
        if chance < 0.15:
            await self._interrupt()
        elif chance < 0.3:
            number = self._new_number()
            self._books.counts["steered"] += 1
            await self._say(f"By the way: #{number}", "steer")
        elif chance < 0.4:
            await self._two_at_once()

    async def _go_on(self) -> None:
        if self._random.random() < 0.3:
            await self._two_at_once()
        else:
            self._books.counts["went on with a session"] += 1
            await self._say(prompt(self._work.story, self._new_number()), "error")

    async def _two_at_once(self) -> None:
        """Two messages in the same moment: one may be refused, and the session must bear it."""
        self._books.counts["two messages at once"] += 1
        async with anyio.create_task_group() as tasks:
            for when_busy in self._random.sample(["error", "queue", "steer", "queue"], 2):
                tasks.start_soon(self._say, prompt("sentence", self._new_number()), when_busy)

    async def _say(self, message: str, when_busy: str) -> None:
        await self._call("codex_say", sessionId=self._work.session_id, message=message, whenBusy=when_busy)

    async def _interrupt(self) -> None:
        self._books.counts["interrupted"] += 1
        await self._call("codex_interrupt", sessionId=self._work.session_id)

    async def _call(self, tool: str, *, hang_up_after: float | None = None, **arguments: Any) -> dict[str, Any] | None:
        """The tool's answer; None when it said that something is not possible now."""
        if hang_up_after is not None:
            self._books.counts[f"hung up in {tool}"] += 1
        try:
            return await self._connection.call(tool, hang_up_after=hang_up_after, **arguments)
        except ToolError as error:
            kind = f"{tool}: {error.code}"
            self._books.errors[kind] += 1
            self._books.examples.setdefault(kind, str(error))
            self._work.refused += tool in ("codex_start", "codex_say")
            if error.code not in LOOK_AGAIN:
                self._books.problems.append(f"#{self._work.number}: {tool} answered {error.code}: {error}")
            await anyio.sleep(0.2)
            return None

    def _sometimes(self, chance: float, seconds: float) -> float | None:
        return self._random.uniform(0, seconds) if self._random.random() < chance else None

    def _new_number(self) -> int:
        number = self._books.next_number()
        self._work.numbers.add(number)
        return number


class LibraryWorker:
    """Starts programs that use the library, one after the other, and kills some of them."""

    def __init__(self, env: Mapping[str, str], books: Books, random: Random, repository: Path, logs: Path) -> None:
        self._env = env
        self._books = books
        self._random = random
        self._repository = repository
        self._log = logs / "library.log"

    async def work(self, over: anyio.Event) -> None:
        while not over.is_set():
            as_step = self._random.random() < 0.4
            work = self._books.new_work(self._random.choice(["sentence", "command", "slow", "hang", "background"]))
            await self._run(work, as_step)

    async def _run(self, work: Work, as_step: bool) -> None:
        order = {"prompt": prompt(work.story, work.number), "cwd": str(self._repository), "as_step": as_step}
        is_killed = self._random.random() < 0.5
        with self._log.open("ab") as errors:
            process = await anyio.open_process(
                [sys.executable, "-m", "bench.soak.library_user", json.dumps(order)],
                stdin=subprocess.DEVNULL,
                stderr=errors,
                env={**self._env, "PYTHONPATH": str(Path.cwd())},
                start_new_session=True,
            )
        try:
            with anyio.move_on_after(self._random.uniform(1, 6) if is_killed else _PATIENCE) as scope:
                await self._listen(work, process)
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                    await process.wait()
                await process.aclose()
        if scope.cancelled_caught and is_killed:
            self._books.counts["library process killed"] += 1
        elif scope.cancelled_caught:
            self._books.problems.append(f"The library process of #{work.number} did not end within {_PATIENCE:g} s.")

    async def _listen(self, work: Work, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        text = b""
        async for chunk in process.stdout:
            text += chunk
            for line in text.decode().splitlines():
                what, _, value = line.partition(" ")
                if what == "session" and work.session_id is None:
                    work.session_id = value
                    self._books.counts["sessions started by the library"] += 1
                elif what == "status":
                    work.told = value if value in _ENDED else "error"
        await process.wait()


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return "the client hung up" if isinstance(error, ServerGone) else type(error).__name__
