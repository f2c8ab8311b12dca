"""Account, its rate limits, and the available models.

Limits have two sources: with a ChatGPT login Codex can be asked, and while it works it reports the limits in the
model's responses. A limit that neither has reported is unknown, and is shown as such.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from helmsman.agents.protocol import Account, Capability, Login, Model, SkillList
from helmsman.base.files import refuse_outside
from helmsman.errors import EngineRefused, InvalidInput, RateLimitLow
from helmsman.model.inputs import directory as existing_directory
from helmsman.model.nature import ACTS, READS, verb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from helmsman.model.events import RateLimit, RateLimitsReported
    from helmsman.model.options import PathLike
    from helmsman.steering.core import Steering

Outlook = Literal["likely", "uncertain", "unlikely", "no", "unknown"]

_NOBODY: Final = Account(kind=None, email=None, plan=None, requires_login=False)

# Rules of thumb: nothing says in advance how much a task needs.
_PLENTY_PERCENT: Final = 40
_LITTLE_PERCENT: Final = 10

_GENERAL_WINDOWS: Final = frozenset({"primary", "secondary"})
"""Windows of the account as a whole; those of a single model have its name as a prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Window of a rate limit: the remaining part, and the time of its reset."""

    name: str
    remaining_percent: float
    window_minutes: int | None
    resets_at: datetime | None

    def __str__(self) -> str:
        until = "" if self.resets_at is None else f" until {self.resets_at.isoformat(timespec='minutes')}"
        return f"{self.remaining_percent:g} % of the limit {self.name}{until}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReport:
    """`login` says in a sentence how Codex is logged in; `advice` whether a large task is likely to fit."""

    kind: str | None
    email: str | None
    plan: str | None
    login: str
    limits: tuple[Allowance, ...]
    large_task_fits: Outlook
    advice: str


class AccountFacts:
    """`Helmsman.extras.account`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm

    @verb(READS)
    async def models(self, agent: str | None = None) -> tuple[Model, ...]:
        """Return the available models with their efforts. The default is marked."""
        return await (await self._helm.engine(Capability.MODELS, agent=agent)).models()

    @verb(READS)
    async def skills(self, directory: PathLike | None = None, agent: str | None = None) -> SkillList:
        """Return the agent's skills for a directory (by default the current one).

        Raises:
            InvalidInput: There is no such directory, or it is outside the allowed roots.
        """
        place = existing_directory("cwd", directory if directory is not None else ".")
        refuse_outside(place, self._helm.allowed_roots, "cwd")
        return await (await self._helm.engine(Capability.SKILLS, agent=agent)).skills(place)

    @verb(ACTS)
    async def log_in(
        self, on_begun: Callable[[Login], None], *, with_code: bool = False, agent: str | None = None
    ) -> str | None:
        """Start a login and wait for its end.

        Return the reason if it failed. `on_begun` gets the instructions for the user.
        """
        engine = await self._helm.engine(Capability.LOGIN, agent=agent)
        # Before the wait, because the user has to act on the instructions first.
        login = await engine.start_login(with_code=with_code)
        on_begun(login)
        return await engine.login_ended(login)

    @verb(READS)
    async def read(self, agent: str | None = None) -> AccountReport:
        """Return the account, its limits, and whether a large task is likely to fit."""
        engine = await self._helm.engine(Capability.ACCOUNT, agent=agent)
        try:
            account = await engine.account()
            login = _login(account)
        except EngineRefused as refused:  # newer Codex asks its backend for this, which may not be reached
            account = _NOBODY
            login = (
                f"It is not known now how Codex is logged in: {refused.details.get('rpc_message', refused.message)}."
            )
        reported = await engine.rate_limits()
        limits = _allowances(reported)
        outlook, advice = _outlook(account, limits)
        return AccountReport(
            kind=account.kind,
            email=account.email,
            plan=account.plan or (reported.plan if reported is not None else None),
            login=login,
            limits=limits,
            large_task_fits=outlook,
            advice=advice,
        )

    @verb(READS)
    async def check_remaining(self, percent: float, agent: str | None = None) -> tuple[str, ...]:
        """Refuse if less than this percentage of the account's limit is left. Return remarks.

        Raises:
            RateLimitLow: Less is left.
        """
        if not 0 <= percent <= 100:
            raise InvalidInput(
                f"min_remaining_percent cannot be {percent:g}. Use a number from 0 to 100.",
                parameter="min_remaining_percent",
            )
        # The limit of one model must not hold up sessions of the others.
        limits = _general(_allowances(await (await self._helm.engine(agent=agent)).rate_limits()))
        if not limits:
            return ("Nothing is known of the account's rate limits, so minRemainingPercent could not be checked.",)
        least = _least(limits)
        if least.remaining_percent >= percent:
            return ()
        raise RateLimitLow(
            f"Only {least} is left, and {percent:g} % was asked for. Wait for the reset, or ask for less.",
            remaining_percent=least.remaining_percent,
            limit=least.name,
            resets_at=None if least.resets_at is None else least.resets_at.isoformat(),
        )


def _allowances(reported: RateLimitsReported | None) -> tuple[Allowance, ...]:
    """Return the current limits, without windows that have been reset since their report."""
    now = time.time()
    limits: Sequence[RateLimit] = () if reported is None else reported.limits
    return tuple(
        Allowance(
            name=limit.name,
            remaining_percent=max(0.0, 100.0 - limit.used_percent),
            window_minutes=limit.window_minutes,
            resets_at=_moment(limit.resets_at),
        )
        for limit in limits
        if limit.resets_at is None or limit.resets_at > now
    )


def _moment(seconds: int | None) -> datetime | None:
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):  # no such year
        return None


def _general(limits: Sequence[Allowance]) -> Sequence[Allowance]:
    return [limit for limit in limits if limit.name in _GENERAL_WINDOWS] or limits


def _least(limits: Sequence[Allowance]) -> Allowance:
    return min(limits, key=lambda limit: limit.remaining_percent)


def _login(account: Account) -> str:
    match account.kind:
        case "chatgpt":
            return "Codex is logged in with ChatGPT."
        case "apiKey":
            return "Codex is logged in with an API key, which is billed by use and has no rate-limit windows."
        case str(kind):
            return f"Codex is logged in with {kind}."
        case None if account.requires_login:
            return "Codex is not logged in. Run `helmsman agents login`."
        case None:
            return "Codex uses a model provider that needs no OpenAI login."


def _outlook(account: Account, limits: Sequence[Allowance]) -> tuple[Outlook, str]:
    """Estimate whether a large task fits. The needs of a task are unknown in advance, so this is a rule of thumb."""
    if account.kind is None and account.requires_login:
        return "no", "Nothing can run before Codex is logged in. Run `helmsman agents login`."
    if not limits:
        return "unknown", "This provider reports no rate limits."
    least = _least(_general(limits))
    if least.remaining_percent <= 0:
        return "no", f"No task fits now: {least} is left."
    if least.remaining_percent < _LITTLE_PERCENT:
        return "unlikely", f"A large task is unlikely to fit: only {least} is left."
    if least.remaining_percent < _PLENTY_PERCENT:
        return "uncertain", f"A large task may not fit: {least} is left."
    return "likely", f"A large task is likely to fit: {least} is left."
