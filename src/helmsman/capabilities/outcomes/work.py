"""Steps of a job, each executed once, even if hubs die.

After a restart of the hub, a job runs its procedure from the beginning. Results of steps are stored, and turns have
idempotency keys derived from the job, so completed steps are skipped and running turns are awaited.

All kinds of jobs share three forms: a turn goes back to its agent until its work is verified (`until_verified`),
several agents make candidates side by side (`side_by_side`), and a report has the same first part (`found`).
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack

import anyio
import anyio.to_thread

from helmsman.base.structs import replace
from helmsman.capabilities.changes import Changes
from helmsman.capabilities.outcomes.agent_selection import language_of, selected_agents
from helmsman.capabilities.outcomes.reports import as_markdown, for_agent
from helmsman.capabilities.repository_commands import consent_of, end_stopped
from helmsman.errors import BudgetExceeded, HelmsmanError, TooManySessions
from helmsman.model.events import USAGE_LIMIT, TurnEnded, Usage
from helmsman.model.inputs import takes_turn_options, turn_input
from helmsman.tasks.drafts import NextTurn, next_turn
from helmsman.tasks.jobs import TurnGate
from helmsman.tasks.outcome import TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from helmsman.agents.protocol import Begun, Engine
    from helmsman.capabilities.all_tasks import Tasks
    from helmsman.capabilities.outcomes.agent_selection import Chosen
    from helmsman.capabilities.outcomes.request import Wanted
    from helmsman.capabilities.repository_commands import CommandAllowance, Consent, HeldTurn
    from helmsman.git.worktree import Worktree
    from helmsman.model.options import TurnOptions
    from helmsman.model.questions import Choice, Question
    from helmsman.sessions.session import Session
    from helmsman.settings import OnLimit
    from helmsman.steering.core import Steering
    from helmsman.tasks.jobs import RunningJob
    from helmsman.tasks.model import Task, TaskChanges

T = TypeVar("T")

_LOOK_SECONDS: Final = 1.0
_TURNS: Final = "turns"
_SHOWN_OF_STEP: Final = ("title", "status", "attempts", "check")


class TurnNotDone(HelmsmanError):
    """Raised if a turn of a job failed or was stopped."""


SENT_BACK: Final = 3
"""Number of times that work which is not verified is returned to its agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneTurn:
    """Completed turn with its session, its task and the agent's last message."""

    session: Session
    task: Task

    @property
    def said(self) -> str:
        return self.task.result or ""


@dataclass(slots=True, kw_only=True)
class Candidate:
    """Work of one agent and its progress. `seen` is the stored result of its last verification.

    `why` is the reason for its agent, `error` the reason for a failure.
    """

    number: int
    agent: str
    why: str
    session_id: str | None = None
    turn: DoneTurn | None = None
    attempts: int = 0
    seen: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None

    @property
    def verified(self) -> bool:
        return bool(self.seen.get("verified"))

    @property
    def evidence(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.seen.get("evidence", [])
        return found

    @property
    def against(self) -> str:
        """First reasons why it is not verified."""
        return " ".join([one["what"] for one in self.evidence if not one["ok"]][:3])

    def as_dict(self, winner: Candidate | None) -> dict[str, Any]:
        after = self.seen.get("after")
        return {
            "number": self.number,
            "agent": self.agent,
            "why": self.why,
            "sessionId": self.session_id,
            "verified": self.verified,
            "attempts": self.attempts,
            "evidence": self.evidence,
            "diff": self.seen.get("diff"),
            "checkSeconds": None if after is None else round(after["seconds"], 1),
            "told": self.seen.get("told") or ("" if self.turn is None else self.turn.said),
            "error": self.error,
            "winner": self is winner,
        }


Verify: TypeAlias = "Callable[[DoneTurn], Awaitable[dict[str, Any]]]"
"""Verifies the work of a turn: `verified`, `evidence`, and what else its job needs. A `settled` result is not returned."""


class Work:
    """Context of a procedure. `known` holds the results of earlier steps."""

    def __init__(
        self,
        helm: Steering,
        tasks: Tasks,
        task: Task,
        wanted: Wanted,
        job: RunningJob,
        known: dict[str, Any],
        limit: anyio.CancelScope,
    ) -> None:
        self.helm = helm
        self.tasks = tasks
        self.changes = Changes(helm, tasks)
        self.task = task
        self.wanted = wanted
        self.job = job
        self._known = known
        self._limit = limit
        self._at: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._turns: list[str] = [*known.get(_TURNS, ())]
        self.side_by_side_count = 1
        """Number of turns that share the remaining budget."""
        self.steps: Sequence[Mapping[str, Any]] = ()
        """Steps of a plan or loop that is carried out, shown as progress."""

    @property
    def chosen(self) -> list[Chosen]:
        """Selected agents, best first."""
        return selected_agents(self.task)

    # --- steps -------------------------------------------------------------------------------------------------------

    async def once(self, step: str, do: Callable[[], Awaitable[Any]]) -> Any:
        """Return the JSON result of a step; it is executed at most once and stored before the job continues."""
        # Candidates may reach the same step at the same time. The second one waits for the result.
        async with self._at[step]:
            if step not in self._known:
                await self.keep(step, await do())
            return self._known[step]

    def known(self, step: str) -> Any:
        """Return the result of a step; None if it was not executed."""
        return self._known.get(step)

    async def keep(self, step: str, found: T) -> T:
        """Store the result of a step."""
        await self.helm.task_writer.registry(lambda registry: registry.keep_step(self.task.id, step, found))
        self._known[step] = found
        return found

    def report_progress(self, text: str) -> None:
        """Report the current activity."""
        progress: dict[str, Any] = {"text": text}
        if self.steps:
            done = sum(step["status"] == "done" for step in self.steps)
            shown = [{key: step[key] for key in _SHOWN_OF_STEP} for step in self.steps]
            progress |= {"done": done, "total": len(self.steps), "unit": "steps", "steps": shown}
        self.helm.task_writer.update(self.task.id, {"progress": progress})
        self.job.notify()

    @property
    def seconds(self) -> float:
        """Time since the job began, across hubs."""
        return (datetime.now(UTC) - self.task.created_at).total_seconds()

    # --- turns -------------------------------------------------------------------------------------------------------

    @takes_turn_options
    async def start(
        self,
        step: str,
        prompt: str,
        *,
        cwd: str | Path | None = None,
        worktree: bool = False,
        gate: TurnGate | None = None,
        **options: Unpack[TurnOptions],
    ) -> DoneTurn:
        """Start a session and wait for the end of its first turn. `gate` runs before the turn begins.

        Raises:
            TurnNotDone: The turn failed or was stopped.
            HelmsmanError: The turn could not be started.
        """
        begun: list[str] = []

        def note(task_id: str) -> None:
            begun.append(task_id)
            if gate is not None:
                self.job.gates[task_id] = gate

        async def start() -> Session:
            # Within the retries, because other turns may spend some of it while this one waits.
            options["max_cost_usd"] = await self._left_usd()
            return await self.helm.start(
                prompt,
                cwd=self.wanted.directory if cwd is None else cwd,
                worktree=worktree,
                idempotency_key=self._key(step),
                on_task=note,
                **options,
            )

        session = await self._with_room(start)
        # After a restart, the key finds the turn of the earlier hub, and no task is begun.
        return await self._to_its_end(session, begun[-1] if begun else session.task_id or "")

    async def say(self, step: str, session_id: str, message: str) -> DoneTurn:
        """Run another turn of a session and wait for its end.

        Raises:
            TurnNotDone: The turn failed or was stopped.
            HelmsmanError: The turn could not be started.
        """

        async def say() -> str:
            return await self.tasks.local.follow_up(
                session_id, message, idempotency_key=self._key(step), max_cost_usd=await self._left_usd()
            )

        task_id = await self._with_room(say)
        return await self._to_its_end(await self.helm.session(session_id), task_id)

    def _key(self, step: str) -> str:
        return f"{self.task.id} {step}"

    async def _with_room(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Retry until there is room for another turn."""
        while True:
            turn = NextTurn(of_job=self.task.id)
            before = next_turn.set(turn)
            try:
                return await begin()
            except TooManySessions:
                await anyio.sleep(_LOOK_SECONDS)
            finally:
                next_turn.reset(before)
                # If no turn was drafted, the origin must not stay for an unrelated one.
                turn.take()

    def _note_session(self, session: Session) -> None:
        self.job.sessions[session.id] = None
        told: TaskChanges = {
            "job_sessions": tuple(self.job.sessions),
            "input_required": asks(self.helm, self.job),
        }
        self.helm.task_writer.update(self.task.id, told)
        self.job.notify()

    async def _to_its_end(self, session: Session, task_id: str) -> DoneTurn:
        self._note_session(session)
        if task_id not in self._turns:  # stored, because the next hub does not begin those of finished steps again
            self._turns.append(task_id)
            await self.keep(_TURNS, self._turns)
        while True:
            await session.wait(until="end")
            task = await self.tasks.get(task_id)
            if not task.is_running:
                break
            await anyio.sleep(_LOOK_SECONDS)  # it resumes when a usage limit or a budget permits
        self.job.gates.pop(task_id, None)
        if task.status != "completed":
            told = (task.error or {}).get("message") or task.note or f"it is {task.status}"
            raise TurnNotDone(
                f"The turn of {task.agent} in session {session.id} came to no end: {told}",
                sessionId=session.id,
                agent=task.agent,
                cause=(task.error or {}).get("code"),
            )
        return DoneTurn(session=session, task=task)

    @takes_turn_options
    async def start_reader(
        self, step: str, prompt: str, who: str, *, cwd: str | Path | None = None, **options: Unpack[TurnOptions]
    ) -> DoneTurn:
        """Start a session that may only read and never asks, and wait for the end of its first turn (`start`)."""
        options |= {"agent": who, "sandbox": "read-only", "approval_policy": "never"}
        return await self.start(f"{step} {who}", prompt, cwd=cwd, **options)

    @takes_turn_options
    async def start_writer(
        self, step: str, prompt: str, who: str, gate: TurnGate, **options: Unpack[TurnOptions]
    ) -> DoneTurn:
        """Start a session in its own worktree, and wait for the end of its first turn (`start`)."""
        options |= {"agent": who, "sandbox": "workspace-write", "approval_policy": "on-request"}
        return await self.start(step, prompt, worktree=True, gate=gate, **options)

    # --- forms of all kinds ------------------------------------------------------------------------------------------

    async def until_verified(
        self,
        name: str,
        made: Candidate,
        verify: Verify,
        feedback: Callable[[Sequence[Any]], str] = for_agent,
        *,
        most: int = SENT_BACK,
    ) -> None:
        """Verify a candidate's turn, and return it to its agent with the evidence until it holds, at most `most` times."""
        assert made.turn is not None
        made.session_id, tries = made.turn.session.id, 0
        while True:
            tries += 1
            made.attempts += 1
            self.report_progress(f"What {made.agent} did ({name}) is being verified.")
            before = made.seen
            made.seen = await self.once(f"{name} verified {tries}", partial(verify, made.turn))
            if made.verified or made.seen.get("settled") or tries > most:
                return
            if made.seen.get("decide") and made.seen["diff"] == before.get("diff"):
                return  # the agent insists on it, so a person decides
            self.report_progress(f"It goes back to {made.agent} ({name}): it did not verify.")
            try:
                made.turn = await self.say(f"{name} again {tries}", made.session_id, feedback(made.evidence))
            except HelmsmanError as error:
                made.error = error.message
                return

    async def side_by_side(
        self,
        what: str,
        orders: Sequence[Sequence[Chosen]],
        begin: Callable[[str, str, OnLimit | None], Awaitable[DoneTurn]],
        verify: Verify,
        feedback: Callable[[Sequence[Any]], str] = for_agent,
    ) -> list[Candidate]:
        """Make a candidate for each order of agents. `begin` takes a step, an agent and its policy at a limit."""
        made: list[Candidate] = []

        async def make(number: int, order: Sequence[Chosen]) -> None:
            name = f"{what} {number}"
            one = Candidate(number=number, agent=order[0].agent, why="")
            made.append(one)
            try:
                one.turn = await _first_turn(self, name, order, one, partial(begin, name))
                await self.until_verified(name, one, verify, feedback)
            except HelmsmanError as error:
                one.error = error.message

        self.side_by_side_count = len(orders)
        async with anyio.create_task_group() as tasks:
            for number, order in enumerate(orders, 1):
                tasks.start_soon(make, number, order)
        self.side_by_side_count = 1
        return sorted(made, key=lambda one: one.number)

    async def found(
        self,
        shown: Candidate | None,
        *,
        verified: bool,
        says: str,
        evidence: Sequence[Mapping[str, Any]],
        change: str | None = None,
        **report: Any,
    ) -> TaskOutcome:
        """Return the result of the job, with its report (`JobReport`). Only a `verified` one counts as done.

        `shown` is the winner, or the candidate shown instead. `change` is the diff that would be applied.
        """
        used, cost = await self.spent()
        look = partial(language_of, Path(self.wanted.directory), self.helm.settings.state_dir)
        whole: dict[str, Any] = {
            "kind": self.wanted.kind,
            "verified": verified,
            "says": says,
            "evidence": list(evidence),
            "agent": None if shown is None else shown.agent,
            "why": "" if shown is None else shown.why,
            "sessionId": None if shown is None else shown.session_id,
            "attempts": 0 if shown is None else shown.attempts,
            "candidates": [],
            "seconds": round(self.seconds, 1),
            "tokens": used.input_tokens + used.output_tokens,
            "costUsd": cost,
            "language": await anyio.to_thread.run_sync(look),
            **report,
        }
        return TaskOutcome(output=as_markdown(whole), report=whole, diff=change)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def ask(self, session_id: str, question: Question) -> Choice | None:
        """Ask a session's question handlers, in a turn without agent activity; None means no answer.

        Raises:
            HelmsmanError: The session is busy or gone.
        """
        answers: list[Choice | None] = []
        answered = anyio.Event()

        async def put(held: HeldTurn) -> TurnEnded:
            session = held.session

            def take(choices: tuple[Choice, ...] | None) -> None:
                answers.append(choices[0] if choices else None)
                if session.is_stopping:
                    end_stopped(held.helm, session)
                answered.set()

            held.helm.ask_first(session, question, take)
            await answered.wait()
            said = "No answer." if answers[0] is None else f"The answer is {answers[0].value}."
            return TurnEnded(session_id=session.id, outcome="completed", final_message=said)

        gates, gate = self.job.gates, TurnGate(note="A question is open.", do=put, only_asks=True)
        turn = turn_input(question.prompts[0].text)

        async def begin() -> Session:
            return await self.helm.run_other_turn(
                session_id, turn, _never, on_task=lambda task_id: gates.update({task_id: gate})
            )

        # The time of people does not count.
        left, self._limit.deadline = self._limit.deadline - anyio.current_time(), math.inf
        since, uncounted = datetime.now(UTC), _uncounted(self.task)
        self._keep_clock({"since": since.isoformat(), "seconds": uncounted})
        try:
            session = await self._with_room(begin)
            self._note_session(session)
            await answered.wait()
            await session.wait(until="end")
        finally:
            self._limit.deadline = anyio.current_time() + left
            self._keep_clock({"seconds": uncounted + (datetime.now(UTC) - since).total_seconds()})
        for task_id in [task_id for task_id, one in gates.items() if one is gate]:
            del gates[task_id]
        return answers[0]

    def _keep_clock(self, clock: dict[str, Any]) -> None:
        """Store the uncounted time, so that the next hub continues with the same limit."""
        self.task = replace(self.task, uncounted=clock)
        self.helm.task_writer.update(self.task.id, {"uncounted": clock})

    def consent(self, session: Session) -> Consent:
        """Return consent through a session's question handlers; it holds for the same words in the whole job."""
        asks = consent_of(self.helm, session)

        async def ask(command: str, tree: Worktree, allowance: CommandAllowance, why: str) -> str | None:
            may = f"{allowance.place} {allowance.network} {allowance.folder} {command}"
            step = f"allowed {hashlib.sha256(may.encode()).hexdigest()[:16]}"
            # Candidates may ask for the same words at the same time. The second one waits for the answer.
            async with self._at[step]:
                if (known := self.known(step)) is not None:
                    return str(known["refused"]) if known["refused"] else None
                refused = await asks(command, tree, allowance, why)
                # A refusal because the turn was stopped is no answer to the question.
                if refused is None or session.state.is_running:
                    await self.keep(step, {"command": command, "refused": refused})
                return refused

        return ask

    # --- cost --------------------------------------------------------------------------------------------------------

    async def _left_usd(self) -> float | None:
        """Return the maximum cost of the next turn.

        Raises:
            BudgetExceeded: The budget is used up.
        """
        if self.wanted.budget_usd is None:
            return None
        left = self.wanted.budget_usd - ((await self.spent())[1] or 0.0)
        if left <= 0:
            raise BudgetExceeded(
                f"The budget of {self.wanted.budget_usd:g} USD for {self.task.id} is used up. Ask again with a larger one."
            )
        return left / self.side_by_side_count

    async def too_expensive(self) -> str | None:
        """Return why the budget has no room for a turn that costs as much as those before did; None if it has."""
        if self.wanted.budget_usd is None:
            return None
        cost = (await self.spent())[1] or 0.0
        mean = cost / max(1, len(self._turns))
        left = self.wanted.budget_usd - cost
        if left > mean:
            return None
        return f"it may cost {mean:.4f} USD, and {max(left, 0.0):.4f} USD of the budget are left"

    async def spent(self) -> tuple[Usage, float | None]:
        """Return usage and cost of all turns; the cost is None if no price is known."""
        used, costs = Usage(), list[float]()
        for task_id in [*self._turns]:
            results = await self.tasks.results(await self.tasks.find(task_id))
            used += results.task.usage or Usage()
            if results.cost_usd is not None:
                costs.append(results.cost_usd)
        return used, sum(costs) if costs else None


def seconds_left(task: Task, wanted: Wanted) -> float:
    """Return the remaining time of a job, counted from its creation across hubs."""
    taken = (datetime.now(UTC) - task.created_at).total_seconds() - _uncounted(task)
    return max(0.0, wanted.seconds - taken)


def _uncounted(task: Task) -> float:
    """Return the time that people have needed so far, including a question that was open when the hub died."""
    clock = task.uncounted
    since = clock.get("since")
    asking = 0.0 if since is None else (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()
    return float(clock.get("seconds", 0.0)) + asking


def asks(helm: Steering, job: RunningJob) -> bool:
    """Return whether one of a job's sessions waits for an answer."""
    known = helm.sessions
    return any(known[session_id].state.questions for session_id in job.sessions if session_id in known)


async def _never(_engine: Engine) -> Begun:
    """Never called: the gate has already ended this turn."""
    raise AssertionError


# --- Replace an agent that cannot begin, because of an account limit or a missing login, by the next one --------------

_NO_ACCOUNT: Final = frozenset(
    {
        USAGE_LIMIT,
        "model_cap",
        "rate_limit_exceeded",
        "rate_limit_low",
        "unauthorized",
        "authentication_failed",
        "agent_not_found",
        "codex_not_found",
        "engine_start_failed",
    }
)
"""Failures that concern the agent's account or installation."""


def makers_of(work: Work) -> list[Sequence[Chosen]]:
    """Return the agents for each candidate, best first."""
    wanted, chosen = work.wanted, work.chosen
    if len(wanted.agents) > 1:  # one candidate per agent, without replacement
        count = max(wanted.candidates, len(chosen))
        return [[chosen[number % len(chosen)]] for number in range(count)]
    return [chosen] * wanted.candidates


async def _first_turn(
    work: Work,
    what: str,
    order: Sequence[Chosen],
    made: Candidate,
    begin: Callable[[str, OnLimit | None], Awaitable[DoneTurn]],
) -> DoneTurn:
    """Run `begin` with the first agent that can; it takes an agent and the behaviour at a usage limit.

    `made` gets the agent, the reason and, if it fails, the session. An agent that has changed files is never replaced.

    Raises:
        HelmsmanError: The agent failed, and none replaces it.
    """
    passed_over: list[str] = []
    for chosen in order:
        is_last = chosen is order[-1]
        made.agent, made.why = chosen.agent, "; ".join([chosen.why, *passed_over])
        step = f"{what} without {chosen.agent}"
        given_up: str | None = work.known(step)
        if given_up is None:
            try:
                # While another agent is left to try, a usage limit ends the turn instead of having it wait.
                return await begin(chosen.agent, None if is_last else "fail")
            except HelmsmanError as error:
                session_id = error.details.get("sessionId")
                if is_last or not await _may_be_replaced(work, session_id, error):
                    made.session_id = session_id
                    raise
                given_up = await work.keep(step, error.message)
        passed_over.append(f"{chosen.agent} could not begin: {given_up}")
    raise AssertionError


async def _may_be_replaced(work: Work, session_id: str | None, error: HelmsmanError) -> bool:
    """Return whether an agent failed because of its account, before it changed any file."""
    cause = error.details.get("cause") if isinstance(error, TurnNotDone) else error.code
    if cause not in _NO_ACCOUNT:
        return False
    session = None if session_id is None else await work.helm.session(session_id)
    if session is None or session.worktree is None:
        return True  # it has not begun, or has no write access
    return not (await work.changes.diff(session.id)).diff.files
