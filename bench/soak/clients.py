"""Clients of a soak: MCP clients that start, wait, answer, interrupt and hang up, and programs that use the library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import mcp_types as types

from bench.soak.servers import HungUp, Pipes, ToolError
from bench.soak.stories import asked_in, prompt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from bench.soak.servers import Connection, HttpServer
    from bench.soak.works import Books, Work

OF_EACH_OTHER: Final = frozenset({"session_busy", "session_idle", "too_many_sessions", "question_not_open"})
"""Errors that another client can bring about: the client looks again."""
OF_FAULTS: Final = frozenset(
    {
        "engine_lost",
        "engine_start_failed",
        "engine_timeout",
        "session_locked",
        "registry_unavailable",
        "task_not_ours",
    }
)
"""Errors that a fault can bring about."""
_OF_DEAD_HUBS: Final = frozenset({"unknown_outcome", "task_not_ours"})
"""Error codes of a call that a killed hub had begun. The hub must have died during the call."""

_ENDED: Final = {"done", "error", "interrupted"}
_STOP: Final = "stop"
"""Answer to a usage limit, since nothing waits for it."""
_PATIENCE: Final = 600.0
"""Timeout of one session, including faults."""


class Habits:
    """Behaviour of a client, and the errors that it tolerates."""

    def __init__(
        self,
        books: Books,
        random: Random,
        stories: Mapping[str, int],
        bears: frozenset[str],
        waits: Sequence[float],
    ) -> None:
        self.books = books
        self.random = random
        self.waits = waits
        self.bears = bears
        """Errors that it expects."""
        self._stories = stories

    def new_work(self) -> Work:
        return self.books.new_work(self.random.choices(list(self._stories), list(self._stories.values()))[0])


class HttpWorker:
    """Agent that uses Helmsman over HTTP, one session after another. It reconnects after every error."""

    def __init__(self, server: HttpServer, habits: Habits, repository: Path) -> None:
        self._server = server
        self._habits = habits
        self._books = habits.books
        self._repository = repository

    async def work(self, over: anyio.Event) -> None:
        while not over.is_set():
            work = self._habits.new_work()
            with anyio.move_on_after(_PATIENCE) as scope:
                await self._see_through(work)
            if scope.cancelled_caught:
                self._books.problems.append(f"#{work.number} ({work.story}) did not end within {_PATIENCE:g} s.")

    async def _see_through(self, work: Work) -> None:
        """Come back after every broken connection until the session has ended."""
        while work.told is None:
            try:
                async with self._server.connection() as connection:
                    await _Visit(connection, self._habits, self._repository, work).stay()
            except Exception as error:  # noqa: BLE001 - a dying server breaks a client anywhere; it is counted by name
                self._books.counts[f"HTTP connection lost: {_in_a_word(error)}"] += 1
                await anyio.sleep(self._habits.random.uniform(0.1, 0.5))


class PipeWorker:
    """Agent with its own `helmsman serve`, which it keeps while hubs come and go."""

    def __init__(
        self, env: Mapping[str, str], habits: Habits, repository: Path, logs: Path, *, mode: str, has_forms: bool
    ) -> None:
        self._habits = habits
        self._books = habits.books
        self._repository = repository
        self._has_forms = has_forms
        person: Any = self._person if has_forms else None
        self.pipes = Pipes(env, repository, logs, mode=mode, person=person)
        self._work: Work | None = None

    async def work(self, over: anyio.Event) -> None:
        while not over.is_set():
            pipe: int | None = None
            try:
                async with self.pipes.connection() as connection:
                    pipe = connection.pipe
                    self._books.counts["connections through a pipe"] += 1
                    while not over.is_set():
                        await self._next(connection)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
                self._count_loss(pipe, error)

    async def _next(self, connection: Connection) -> None:
        """See the next session through, or the one that a broken connection has left."""
        if self._work is None or self._work.told is not None:
            self._work = self._habits.new_work()
            self._work.by_key = self._habits.random.random() < 0.5
        with anyio.move_on_after(_PATIENCE) as scope:
            await _Visit(connection, self._habits, self._repository, self._work, has_forms=self._has_forms).stay()
        if scope.cancelled_caught:
            self._books.problems.append(
                f"#{self._work.number} ({self._work.story}, {self._work.session_id}) did not end within {_PATIENCE:g} s."
            )
            self._work = None

    def _count_loss(self, pipe: int | None, error: Exception) -> None:
        if self._work is not None and self._work.session_id is None and not self._work.by_key:
            self._work = None  # whether there is a session, only Codex's files tell
        if _is(error, HungUp):
            self._books.counts["pipe closed by its client"] += 1
        elif pipe not in self.pipes.killed:
            self._books.connections_lost.append(f"{_in_a_word(error)}: {_innermost(error)} (pipe {pipe})")

    async def _person(self, _context: Any, params: types.ElicitRequestFormParams) -> types.ElicitResult:
        """Fill in a form after a while, like a user."""
        random = self._habits.random
        await anyio.sleep(random.uniform(0, 2))
        number = asked_in(params.message)
        work = None if number is None else self._books.work_of(number)
        decision = "approve" if random.random() < 0.7 else "deny"
        offered = params.requested_schema["properties"].get("decision", {}).get("enum", ())
        if _STOP in offered:
            decision = _STOP
        if work is not None and decision == "approve":
            work.approved |= work.numbers
        self._books.counts[f"form filled in: {decision}"] += 1
        return types.ElicitResult(action="accept", content={"decision": decision})


class _Visit:
    """Actions of a client while it is connected."""

    def __init__(
        self, connection: Connection, habits: Habits, repository: Path, work: Work, *, has_forms: bool = False
    ) -> None:
        self._connection = connection
        self._habits = habits
        self._books = habits.books
        self._random = habits.random
        self._repository = repository
        self._work = work
        self._has_forms = has_forms
        self._leave_questions = self._random.random() < 0.2

    async def stay(self) -> None:
        work = self._work
        while work.session_id is None:
            if not await self._start() and not work.by_key:
                work.told = "not started"
                return
        while True:
            status = await self._wait()
            if status is None:
                continue
            if status["status"] == "awaiting_approval":
                await self._answer(status)
            elif status["status"] == "active":
                await self._meddle()
            elif work.story == "change" and status["status"] == "done" and not work.is_applied:
                await self._apply()
            elif work.story != "change" and self._random.random() < 0.25:
                await self._go_on()
            else:
                work.told, work.result = status["status"], status.get("result")
                return

    async def _start(self) -> bool:
        work = self._work
        work.repository = self._repository
        key = {"idempotencyKey": f"soak-{work.number}"} if work.by_key else {}
        started = await self._call(
            "codex_start",
            hang_up_after=self._sometimes(0.05, 0.5) if work.by_key else None,
            prompt=prompt(work.story, work.number),
            workingDirectory=str(self._repository),
            sandbox="workspace-write",
            approvalPolicy="on-request",
            worktree=work.story == "change",
            **key,
        )
        if started is not None:
            work.session_id = started["sessionId"]
            work.acknowledged[work.number] = "start"
            self._books.counts["sessions started over MCP"] += 1
        return started is not None

    async def _wait(self) -> dict[str, Any] | None:
        return await self._call(
            "codex_wait",
            hang_up_after=self._sometimes(0.05, 1.0),
            sessionId=self._work.session_id,
            timeoutSec=self._random.choice(self._habits.waits),
        )

    async def _answer(self, status: Mapping[str, Any]) -> None:
        question, chance = status["pendingQuestion"], self._random.random()
        if self._has_forms and chance < 0.8:
            await anyio.sleep(0.3)  # the person is being asked
        elif self._leave_questions:
            self._books.counts["question left to its deadline"] += 1
            self._leave_questions = False
            await anyio.sleep(self._random.uniform(1, 6))
        elif chance < 0.1:
            await self._interrupt()
        else:
            offered = question["questions"][0]["options"]
            says = _STOP if _STOP in offered else "approve" if chance < 0.6 else "deny: the soak says so"
            if says == "approve":
                self._work.approved |= self._work.numbers
            self._books.counts[f"question answered: {says.partition(':')[0]}"] += 1
            await self._call("codex_respond", sessionId=self._work.session_id, id=question["id"], answers=[says])

    async def _meddle(self) -> None:
        chance = self._random.random()
        if self._work.story == "change":
            return
        if chance < 0.1:
            await self._interrupt()
        elif chance < 0.25:
            number = self._new_number()
            self._books.counts["steered"] += 1
            await self._say(f"By the way: #{number}", "steer", number)
        elif chance < 0.4:
            await self._two_at_once()

    async def _go_on(self) -> None:
        if self._random.random() < 0.3:
            await self._two_at_once()
        else:
            self._books.counts["went on with a session"] += 1
            number = self._new_number()
            await self._say(prompt(self._work.story, number), "error", number)

    async def _two_at_once(self) -> None:
        """Two messages in the same moment: one may be refused, and the session must bear it."""
        self._books.counts["two messages at once"] += 1
        async with anyio.create_task_group() as tasks:
            for when_busy in self._random.sample(["error", "queue", "steer", "queue"], 2):
                number = self._new_number()
                tasks.start_soon(self._say, prompt("sentence", number), when_busy, number)

    async def _say(self, message: str, when_busy: str, number: int) -> None:
        said = await self._call("codex_say", sessionId=self._work.session_id, message=message, whenBusy=when_busy)
        if said is not None:
            self._work.acknowledged[number] = when_busy

    async def _interrupt(self) -> None:
        self._books.counts["interrupted"] += 1
        self._work.was_interrupted = True
        await self._call("codex_interrupt", sessionId=self._work.session_id)

    async def _apply(self) -> None:
        shown = await self._call("codex_diff", sessionId=self._work.session_id)
        if shown is None:
            return
        applied = await self._call(
            "codex_apply", sessionId=self._work.session_id, allowDirty=True, digest=shown["digest"]
        )
        if applied is not None:
            self._work.is_applied = True
            self._books.counts["changes applied"] += 1

    async def _call(self, tool: str, *, hang_up_after: float | None = None, **arguments: Any) -> dict[str, Any] | None:
        """Return the tool's answer; None if it is not possible now, or was not awaited."""
        deaths = self._books.hub_deaths
        if hang_up_after is not None:
            self._books.counts[f"hung up in {tool}"] += 1
        try:
            return await self._connection.call(tool, hang_up_after=hang_up_after, **arguments)
        except HungUp:
            if self._connection.pipe is None or self._random.random() < 0.5:
                raise
            return None  # the call was cancelled, and the connection stays
        except ToolError as error:
            kind = f"{tool}: {error.code}"
            self._books.errors[kind] += 1
            self._books.examples.setdefault(kind, str(error))
            self._work.refused += tool in ("codex_start", "codex_say")
            self._work.starts_refused += tool == "codex_start"
            is_of_hub = error.code in _OF_DEAD_HUBS and self._books.hub_deaths > deaths
            is_not_found = tool == "codex_say" and error.code == "session_not_found"  # the verdict looks
            self._work.was_not_found |= is_not_found
            is_in_form = error.code == "not_yours" and "in a form" in str(error)  # the person answers it
            if error.code not in self._habits.bears and not is_of_hub and not is_not_found and not is_in_form:
                self._books.problems.append(
                    f"#{self._work.number} ({self._work.story}, {self._work.session_id}): {tool} answered {error.code}: "
                    f"{error} ({self._books.hub_deaths - deaths} hubs died meanwhile)"
                )
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


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is(error: BaseException, kind: type[BaseException]) -> bool:
    """Return whether an error contains this kind; a client's streams may break too when it leaves."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is(one, kind) for one in error.exceptions)
    return isinstance(error, kind)


def _in_a_word(error: BaseException) -> str:
    return "the client hung up" if _is(error, HungUp) else type(_innermost(error)).__name__
