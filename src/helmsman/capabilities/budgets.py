"""Ask before a budget is exceeded: `[budget]` of `helmsman.toml`, for a task, a project's day, and a day.

Spending comes from durable records (`helmsman.capabilities.usage_report`). It is checked at the beginning of every turn and
at each usage report, since one model call may exceed a budget. A turn that exceeds one is stopped, and a question of
the session asks whether the task may continue. A yes grants the amount in the question, half of the budget. The grant
is stored with the task before anything continues, and applies to all work under the same budget. A no, or no answer,
ends the task.

A task may also have its own limit (`max_cost_usd`). It is stopped there without a question.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import anyio.to_thread

from helmsman.agents.registry import usable
from helmsman.base.budget import Budget
from helmsman.base.caller_context import current
from helmsman.base.structs import Value, pack, replace, unpack_if_valid
from helmsman.base.user_directories import project_places
from helmsman.capabilities.limits import ANSWERED_WITHIN
from helmsman.capabilities.usage_report import Spending, UsageReports, tokens
from helmsman.errors import BudgetExceeded, HelmsmanError, InvalidSetting, RegistryUnavailable
from helmsman.git.worktree import projects, user_home
from helmsman.model.events import Failure, InterruptFailed, InterruptRequested, TurnEnded, Usage
from helmsman.model.nature import READS, verb
from helmsman.model.prompts import MORE_GRANTED
from helmsman.model.questions import APPROVE, BUDGET_ASKED, STOP, Choice, Prompt, Question, own_question
from helmsman.settings import CONFIG_NAME, read_toml
from helmsman.steering.turn_errors import failed_turn
from helmsman.tasks.model import BUDGET, Task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering
    from helmsman.tasks.prices import Prices
    from helmsman.tasks.registry import Registry

log = logging.getLogger(__name__)

_WAITS: Final = "A budget is used up. The task waits for your decision."
_RAISE: Final = "Raise it in [budget] of your helmsman.toml"
_RAISE_FLEETS: Final = "Raise it with `helmsman fleet budget`"
_ADVICE: Final = "or send the session a message: then you are asked again."


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """Use of a budget. `granted` is the amount up to which work may continue; `project` is its project.

    `fleet` is set for a budget of a whole fleet.
    """

    key: str
    used: float
    budget: float
    granted: float | None = None
    project: str | None = None
    fleet: bool | None = None

    @property
    def is_used_up(self) -> bool:
        return self.used >= max(self.budget, self.granted or 0)

    @property
    def next_grant(self) -> float:
        """Amount up to which a yes lets work continue: half of the budget more, exactly as shown."""
        if self.key.endswith("_usd"):
            # Rounded to what the question shows: a yes grants neither more nor less.
            return math.ceil((self.used + self.budget / 2) * 100) / 100
        return self.used + max(1, self.budget // 2)

    @property
    def unit(self) -> str:
        return "USD" if self.key.endswith("_usd") else "tokens"

    @property
    def whose(self) -> str:
        scope = self.key.rpartition("_")[0]
        whose = {"task": "this task", "project_day": "this project", "day": "all work"}[scope]
        return f"{whose} of the fleet" if self.fleet else whose

    def shown(self, amount: float) -> str:
        return f"{amount:,.2f}" if self.unit == "USD" else f"{int(amount):,}"

    def in_words(self) -> str:
        """Describe the use of a budget: "this project has used 9.40 of 10 USD today"."""
        budget = self.shown(self.budget).removesuffix(".00")
        today = "" if self.key.startswith("task_") else " today"
        more = "" if self.granted is None else f", of which up to {self.shown(self.granted)} were granted"
        return f"{self.whose} has used {self.shown(self.used)} of {budget} {self.unit}{today}{more}"


class BudgetsElsewhere(Protocol):
    """Budgets that hold for tasks beside those of this machine's files: a fleet's."""

    async def states(self, task_id: str, model: str | None, usage: Usage) -> list[BudgetState]:
        """Return how much of each is used, with this by a task that runs here."""
        ...

    async def grant(self, task_id: str, states: Sequence[BudgetState]) -> None:
        """Let a task continue, up to the next grant of each budget."""
        ...


class Budgets:
    """`helm.extras.budgets`."""

    def __init__(self, helm: Steering, usage: UsageReports, prices: Prices) -> None:
        self._helm = helm
        self._usage = usage
        self._prices = prices
        self._user_file = helm.settings.user_file
        self._read: dict[Path, tuple[tuple[int, ...], Budget]] = {}
        self._checking: set[str] = set()
        self._again: set[str] = set()
        self.elsewhere: BudgetsElsewhere | None = None
        self.clock: Callable[[], datetime] = lambda: datetime.now().astimezone()

    # --- use ---------------------------------------------------------------------------------------------------------

    @verb(READS)
    async def states(self, directory: str | Path | None = None) -> tuple[BudgetState, ...]:
        """Return today's use of the budgets for all work and for a directory's project.

        Without a directory, include every project with spending today.
        """
        # Without any budget, the spending need not be added up.
        if not any(
            self._budget(str(place)).amounts() for place in (directory, current().directory) if place is not None
        ):
            return ()
        spent = await self._usage.spent_since(self._day)
        projects = [one.directory for one in spent if one.directory is not None] if directory is None else [directory]
        states = await self._states(self._budget(None), None, spent=spent)
        shown = [state for state in states if state.key.startswith("day_")]
        for project in dict.fromkeys(map(str, projects)):
            states = await self._states(self._budget(project), project, spent=spent)
            shown += [state for state in states if state.key.startswith("project_")]
        return tuple(shown)

    @property
    def _day(self) -> datetime:
        """Start of today."""
        # Naive and then local again: after a change of clocks, midnight has another offset than now.
        return self.clock().replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None).astimezone()

    async def used_up(
        self, directory: str | None, task_id: str, *, model: str | None = None, usage: Usage | None = None
    ) -> list[BudgetState]:
        """Return the budgets that are used up for a task in a directory with this usage."""
        states = await self._states(self._budget(directory), directory, task_id, model=model, usage=usage or Usage())
        if self.elsewhere is not None:
            states += await self.elsewhere.states(task_id, model, usage or Usage())
        return [state for state in states if state.is_used_up]

    async def refusal(self, directory: str | None, task_id: str) -> BudgetExceeded | None:
        """Return why a task may not begin in a directory without a further grant, or None."""
        states = await self.used_up(directory, task_id)
        return _refused(states) if states else None

    async def _states(
        self,
        budget: Budget,
        directory: str | None,
        task_id: str | None = None,
        *,
        model: str | None = None,
        usage: Usage | None = None,
        spent: Sequence[Spending] | None = None,
    ) -> list[BudgetState]:
        amounts = budget.amounts()
        if not amounts:
            return []
        day = self._day
        if spent is None:
            # A budget for single tasks needs no sum of the day.
            spent = await self._usage.spent_since(day) if any("day_" in key for key in amounts) else []
        project = await anyio.to_thread.run_sync(projects(self._helm.settings.state_dir), directory)
        granted = await self._granted(task_id, day)
        used = {
            # Only a budget in tokens can limit a model without a price.
            "task_usd": self._prices.cost(model, usage or Usage()) or 0.0,
            "task_tokens": tokens(usage or Usage()),
            **self._used_of(spent, "day"),
            **self._used_of([one for one in spent if one.directory == project], "project_day"),
        }

        def state(key: str, amount: float) -> BudgetState:
            of = project if key.startswith("project_") else None
            grants = [grant for grant in granted if grant.covers(key, amount, of)]
            most = max((grant.up_to for grant in grants), default=None)
            return BudgetState(key=key, used=used[key], budget=amount, granted=most, project=of)

        return [state(key, amount) for key, amount in amounts.items()]

    def _used_of(self, spent: Sequence[Spending], scope: str) -> dict[str, float]:
        usages = [(one.model, one.usage) for one in spent]
        return {
            f"{scope}_usd": sum(self._prices.cost(model, usage) or 0.0 for model, usage in usages),
            f"{scope}_tokens": sum(tokens(usage) for _, usage in usages),
        }

    async def _granted(self, task_id: str | None, day: datetime) -> list[_Grant]:
        def read(registry: Registry) -> list[_Grant]:
            own = None if task_id is None else registry.get(task_id)
            of_task = () if own is None else _grants(own)
            of_day = (grant for task in registry.granted(day) for grant in _grants(task))
            return [
                *(grant for grant in of_task if grant.is_of_task),
                *(grant for grant in of_day if not grant.is_of_task and grant.day == f"{day:%Y-%m-%d}"),
            ]

        try:
            return await self._helm.task_writer.registry(read)
        # Without the registry nothing counts as granted, so the user is asked again.
        except RegistryUnavailable as error:
            log.warning("grants beyond budgets are not known: %s", error)
            return []

    # --- what may be used --------------------------------------------------------------------------------------------

    def _budget(self, directory: str | None) -> Budget:
        """Return the budget for work in a directory, from the current files."""
        held = Budget() if self._user_file is None else self._budget_in(self._user_file)
        # Files of a project come with the repository, so they can only narrow the user's own budget.
        for path in self._project_files(directory):
            held = held.narrowed(self._budget_in(path))
        return held

    def _project_files(self, directory: str | None) -> Iterator[Path]:
        """Yield the files from a directory up to the root of its project, which an inner repository does not hide."""
        if directory is None:
            return
        # Texts, not paths: every turn begins with this, and paths take long.
        for place in project_places(os.path.realpath(directory), user_home()):
            # The user's own file may lie on the way up. It was read above.
            if os.path.lexists(path := os.path.join(place, CONFIG_NAME)) and not self._is_users(path):  # noqa: PTH118
                yield Path(path)

    def _is_users(self, path: str) -> bool:
        return self._user_file is not None and os.path.realpath(path) == os.path.realpath(self._user_file)

    def _budget_in(self, path: Path) -> Budget:
        """Return the budget in a file. While the file is invalid, the previous budget applies."""
        before = self._read.get(path)
        try:
            status = path.stat()
            # With the inode, because an editor may replace a file faster than its time changes.
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if before is None or before[0] != stamp:
                budget = Budget.read(read_toml(path).get("budget", {}), path)
                before = self._read[path] = stamp, budget
        except FileNotFoundError:
            return Budget()
        except (OSError, InvalidSetting) as error:
            log.warning("the budget stays as it is: %s", error)
        return Budget() if before is None else before[1]

    # --- a turn begins -----------------------------------------------------------------------------------------------

    async def defer_turn(self, session: Session, task_id: str, go_on: Callable[[], Awaitable[None]]) -> bool:
        """Return whether a requested turn must wait for an answer. After a yes, `go_on` is called."""
        before = self._helm.task_writer.used_before(task_id)
        states = await self.used_up(session.directory, task_id, model=session.model, usage=before)
        if not states:
            return False
        self._helm.task_writer.hold(task_id, session, {"note": _WAITS, "waiting_for": BUDGET})
        day = f"{self.clock():%Y-%m-%d}"
        # A fleet stores the grants beyond its own budgets.
        own = [state for state in states if not state.fleet]
        grants = [_Grant(state.key, state.next_grant, state.budget, day, state.project) for state in own]

        async def grant_and_go_on() -> None:
            if self.elsewhere is not None:
                await self.elsewhere.grant(task_id, [state for state in states if state.fleet])
            await go_on()

        answered = partial(self._answered, session, task_id, grants, _refused(states), grant_and_go_on)
        self._helm.ask_first(session, _question(session, states), answered, ANSWERED_WITHIN.total_seconds())
        return True

    def _answered(
        self,
        session: Session,
        task_id: str,
        grants: Sequence[_Grant],
        refused: BudgetExceeded,
        go_on: Callable[[], Awaitable[None]],
        choices: tuple[Choice, ...] | None,
    ) -> None:
        if choices and choices[0].value == APPROVE:
            granted = {grant.key: pack(grant) for grant in grants}
            self._helm.task_writer.update(task_id, {"note": None, "granted": granted})
            session.is_beginning()  # who stops it now waits until it can be stopped
            # Store the grant before anything else. In the background, because the caller that answers is cancelled as
            # soon as the question closes.
            self._helm.in_background(partial(self._store_and, go_on), f"session {session.id} could not continue")
            return
        self._helm.task_writer.explain(session.id, if_stopped=refused.message, if_over=refused.message)
        session.apply(failed_turn(session.id, refused))
        self._helm.make_room()

    async def _store_and(self, go_on: Callable[[], Awaitable[None]]) -> None:
        await self._helm.task_writer.write()
        await go_on()

    # --- a turn runs -------------------------------------------------------------------------------------------------

    def check(self, session: Session) -> None:
        """Check the spending of a session, and stop its turn if a budget is exceeded."""
        self._check_cost(session)
        if not (usage := self._helm.task_writer.usage_of(session.id)) or usage == Usage():
            return  # what others have used was looked at before it began
        # One check at a time. A report during a check makes it look once more.
        if session.id in self._checking:
            self._again.add(session.id)
            return
        if self.elsewhere is None and not self._budget(session.directory).amounts():
            return
        self._checking.add(session.id)
        failed = f"session {session.id} may be beyond its budget, and could not be stopped"
        self._helm.in_background(partial(self._check, session), failed)

    async def _check(self, session: Session) -> None:
        self._again.add(session.id)
        try:
            while session.id in self._again:
                self._again.discard(session.id)
                await self._check_budgets(session)
        finally:
            self._checking.discard(session.id)
            self._again.discard(session.id)

    async def _check_budgets(self, session: Session) -> None:
        task_id = self._helm.task_writer.running_task(session.id)
        if task_id is None or not _runs_freely(session):
            return
        usage, turn = self._helm.task_writer.usage_of(session.id), session.turn_count
        states = await self.used_up(session.directory, task_id, model=session.model, usage=usage)
        # That took time. The turn that was measured may be over by now.
        if not states or session.turn_count != turn or not _runs_freely(session):
            return
        log.info("session %s is stopped: %s", session.id, "; ".join(state.in_words() for state in states))
        # Marked immediately, so that no other check stops the same turn.
        session.pause(is_pausing=True)
        await self._pause(session, states)

    async def _pause(self, session: Session, states: Sequence[BudgetState]) -> None:
        """Stop the turn, unless another stop is under way."""
        # An agent cannot interrupt a turn that it has not begun.
        await session.until_begun()
        if not session.is_pausing or session.engine is None or not usable(session.engine):
            return
        if session.state.turn_kind == "other":  # it cannot be gone on with by another message
            error = _refused(states)
            failure = Failure(code=error.code, message=error.message)
            session.apply(InterruptRequested(session_id=session.id, failure=failure))
        try:
            await session.engine.interrupt(session.id)
        except HelmsmanError:
            session.apply(InterruptFailed(session_id=session.id))
            raise

    def asks(self, session: Session, ended: TurnEnded) -> bool:
        """Return whether this module stopped a turn, and its task continues after a yes."""
        is_ours = session.is_pausing
        session.pause(is_pausing=False)
        task_id = self._helm.task_writer.running_task(session.id)
        # A turn that ended before the stop reached it has ended. The next one asks.
        if not is_ours or ended.outcome != "interrupted" or task_id is None or session.state.turn_kind == "other":
            return False
        turn = session.continuation(MORE_GRANTED)
        engine = None if session.engine is None else session.engine.id
        spec = replace(session.request(turn), engine=engine).packed()
        self._helm.task_writer.go_on_later(session.id, {"spec": spec, "note": _WAITS, "waiting_for": BUDGET})
        go_on = partial(self._helm.continue_work, session, ended, turn, task_id)
        self._helm.in_background(go_on, f"session {session.id} could not continue")
        return True

    # --- limits of callers -------------------------------------------------------------------------------------------

    def _check_cost(self, session: Session) -> None:
        """Stop a task that has cost more than its limit, or whose cost is unknown."""
        task_id = self._helm.task_writer.running_task(session.id)
        limit = self._helm.task_writer.max_costs.get(task_id or "")
        if task_id is None or limit is None or not session.state.is_running:
            return
        usage = self._helm.task_writer.usage_of(session.id) or Usage()
        if session.model is None and usage == Usage():
            return  # some agents name their model when they have begun
        cost = self._prices.cost(session.model, usage)
        if cost is None:
            model = f"the model {session.model}" if session.model else f"what {session.options.agent} uses"
            why = (
                f"there is no price for {model}, so its limit of ${limit:g} could not be kept. Add the "
                'price to helmsman.toml ([prices."…"]), or leave out max_cost_usd.'
            )
        elif cost > limit:
            why = f"it has cost ${cost:.4f}, and its limit is ${limit:g}. Raise max_cost_usd to continue."
        else:
            return
        # Once only: a further report must not stop it again.
        del self._helm.task_writer.max_costs[task_id]
        self._helm.task_writer.explain(
            session.id, if_stopped=f"It was stopped: {why}", if_over=f"It had ended before it could be stopped: {why}"
        )
        failed = f"task {task_id} spends more than it may and could not be stopped"
        self._helm.in_background(partial(self._helm.interrupt, session.id), failed)


def _runs_freely(session: Session) -> bool:
    """Return whether a turn runs that Helmsman itself neither stops nor asks about."""
    return session.state.is_running and session.own_question is None and not session.is_pausing


class _Grant(Value, frozen=True):
    """Grant beyond a budget, for that budget's amount and day only."""

    key: str
    up_to: float
    of: float
    day: str
    project: str | None = None

    @property
    def is_of_task(self) -> bool:
        return self.key.startswith("task_")

    def covers(self, key: str, amount: float, project: str | None) -> bool:
        # A changed budget voids the grants beyond it.
        return (self.key, self.of, self.project) == (key, amount, project)


def _grants(task: Task) -> Iterator[_Grant]:
    stored = (unpack_if_valid(grant, _Grant) for grant in task.granted.values())
    yield from (grant for grant in stored if grant is not None)


def _refused(states: Sequence[BudgetState]) -> BudgetExceeded:
    """Return the error for a budget that was not raised."""
    raised = _RAISE_FLEETS if any(state.fleet for state in states) else _RAISE
    return BudgetExceeded(f"{_sentences(states)} It was not raised. {raised}, {_ADVICE}")


def _sentences(states: Sequence[BudgetState]) -> str:
    told = (state.in_words() for state in states)
    return " ".join(f"{words[0].upper()}{words[1:]}." for words in told)


def _question(session: Session, states: Sequence[BudgetState]) -> Question:
    more = " and ".join(f"{state.shown(state.next_grant)} {state.unit} for {state.whose}" for state in states)
    prompt = Prompt(
        text=f"{_sentences(states)} Continue, up to {more}?",
        options=(APPROVE, STOP),
        key=BUDGET_ASKED,
        descriptions={APPROVE: f"continue, up to {more}", STOP: "the task ends here, as failed"},
    )
    return own_question(session.id, session.state.turn_id, prompt, {"directory": session.directory})
