"""Request for an outcome, common to all kinds and validated once; and files that describe loops."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

import msgspec
from msgspec import Meta, field, structs

from helmsman.base.structs import Value
from helmsman.errors import InvalidInput

Kind = Literal["debug", "review", "plan", "refactor", "test", "loop"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Apply = Literal["ask", "never", "verified"]
"""Handling of a verified change: ask, keep it in its worktree, or apply it."""
AUTO: Final = "auto"
NEVER: Final = "never"
MOST_CANDIDATES: Final = 5
DEFAULT_SECONDS: Final = 3600.0
MORE: Final[Mapping[Kind, Mapping[str, type]]] = {
    "debug": {"test": str},
    "review": {"target": str, "branch": str, "commit": str, "diff": str},
    "plan": {},
    "refactor": {"scope": list},
    "test": {"base": str},
    "loop": {"steps": list},
}
"""Parameters of single kinds with their types: the failing test; the review target; the paths that may change; the
commit with which new tests must fail; the steps of a loop.
"""
EXAMPLE_LOOP: Final = Path(__file__).with_name("loop.toml")
_MOST_SECONDS: Final = 7 * 24 * 3600.0


class LoopStep(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Step of a loop: what to do, and when it is done.

    Attributes:
        check: The command that has to pass; None for the check of the loop.
        judge: Agent that must not object to the whole change: `auto` or its name; None for no judge.
        attempts: How often the agent may try; None for those of the loop.
        files: Files that may change although they belong to a check, such as one that the check looks for.
    """

    name: Annotated[str, Meta(pattern=r"\S")]
    prompt: Annotated[str, Meta(pattern=r"\S")]
    check: str | None = None
    judge: str | None = None
    attempts: Annotated[int, Meta(ge=1, le=20)] | None = None
    files: tuple[str, ...] = ()


class _LoopFile(Value, frozen=True, kw_only=True, rename=None, forbid_unknown_fields=True):
    steps: Annotated[list[LoopStep], Meta(min_length=1, max_length=50)]
    goal: str = ""
    attempts: Annotated[int, Meta(ge=1, le=20)] = 4
    check: str | None = None
    agents: tuple[str, ...] = ()
    apply: Apply = "ask"
    budget_usd: float | None = None
    seconds: float = DEFAULT_SECONDS


class Wanted(Value, frozen=True, kw_only=True):
    """Requested outcome.

    Attributes:
        request: Description: a symptom, a goal, an improvement.
        directory: The working directory.
        agents: Agents that work concurrently or review together; empty or `auto` selects them automatically.
        check: The command that verifies the result; None to find it.
        candidates: Number of concurrent solutions; for a review, the number of reviewers.
        judge: Agent that judges a verified change: `auto`, `never` or its name.
        budget_usd: Maximum total cost.
        seconds: Maximum total time.
        more: Parameters of this kind (`MORE`).
    """

    kind: Kind
    request: str
    directory: str
    agents: tuple[str, ...] = ()
    check: str | None = None
    candidates: int = 1
    apply: Apply = "ask"
    judge: str = AUTO
    budget_usd: float | None = None
    seconds: float = DEFAULT_SECONDS
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def from_loop(cls, file: str | Path, directory: str, goal: str | None = None, **given: Any) -> Self:
        """Return the loop that a TOML file describes. `goal` and other fields (`given`) replace those of the file.

        The file `example` is the built-in one, never one with this name in the current directory. A file cannot say that
        a change is applied unasked: it may come with a repository, so only `given` can.

        Raises:
            InvalidInput: The file cannot be read, or does not describe a loop.
        """
        try:
            path = EXAMPLE_LOOP if file == "example" else Path(file)
            loop = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _LoopFile)
        except OSError as error:
            raise InvalidInput(f"{file} cannot be read: {error.strerror}.", parameter="file") from error
        except (ValueError, msgspec.ValidationError) as error:
            raise InvalidInput(f"{file} does not describe a loop: {error}. `--example` shows one.") from error
        if loop.apply == "verified":
            raise InvalidInput(
                f'{file} says apply = "verified", which a file cannot grant. Leave it out, and use `--apply verified`.',
                parameter="apply",
            )
        fields = {name: getattr(loop, name) for name in ("check", "agents", "apply", "budget_usd", "seconds")}
        # A value of the step itself comes later, so it counts.
        steps = [{"attempts": loop.attempts, **one.to_json()} for one in loop.steps]
        return cls(
            kind="loop",
            request=loop.goal if goal is None else goal,
            directory=directory,
            more={"steps": steps},
            **(fields | given),
        )

    @property
    def steps(self) -> list[LoopStep]:
        """Steps of a loop."""
        return msgspec.convert(self.more["steps"], list[LoopStep])

    def __post_init__(self) -> None:
        if self.agents == (AUTO,):
            structs.force_setattr(self, "agents", ())
        for name, allowed in (("kind", KINDS), ("apply", get_args(Apply))):
            if getattr(self, name) not in allowed:
                raise InvalidInput(
                    f"{name} cannot be {getattr(self, name)!r:.80}. Use one of: {', '.join(allowed)}.", parameter=name
                )
        if not self.request.strip():
            raise InvalidInput("Say what is wanted: request is empty.", parameter="request")
        if not 1 <= self.candidates <= MOST_CANDIDATES:
            raise InvalidInput(
                f"candidates cannot be {self.candidates}. Use a number from 1 to {MOST_CANDIDATES}.",
                parameter="candidates",
            )
        if not 0 < self.seconds <= _MOST_SECONDS:
            raise InvalidInput(
                f"A job cannot take {self.seconds:g} s. Use a number up to {_MOST_SECONDS:g}.", parameter="jobLimitSec"
            )
        if self.budget_usd is not None and not 0 < self.budget_usd < math.inf:
            raise InvalidInput(f"A budget cannot be {self.budget_usd:g} USD. Use more than 0.", parameter="budgetUsd")
        if self.check is not None and not self.check.strip():
            raise InvalidInput("check is empty. Give a command, or leave it out.", parameter="check")

        if self.judge not in (AUTO, NEVER) and self.kind in ("review", "plan", "loop"):
            raise InvalidInput(f"A {self.kind} has no judge. Leave out judge.", parameter="judge")

        if self.kind == "review" and (self.check is not None or self.apply != "ask"):
            raise InvalidInput("A review runs no check and has nothing to apply. Leave out check and apply.")

        if self.kind == "loop":
            try:
                is_empty = not self.steps
            except (KeyError, msgspec.ValidationError):
                is_empty = True
            if is_empty or self.candidates != 1:
                raise InvalidInput("A loop takes steps, each with a name and a prompt, and one candidate.")

        for name, value in self.more.items():
            kind = MORE[self.kind].get(name)
            if kind is None or not isinstance(value, kind):
                known = ", ".join(MORE[self.kind]) or "nothing else"
                told = "cannot be that" if kind is not None else "is not known here"
                raise InvalidInput(f"{self.kind} takes {known}; {name} {told}.", parameter=name)
