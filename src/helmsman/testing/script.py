"""Vocabulary of scripts: the output and actions of a scripted model, as plain values.

A step is one response of the model, for one HTTP request of Codex. It is a part (`say("Done")`), a list of parts of the
same response (`[think("hm"), run("ls")]`), or a function of the request that returns a step. The wire format and the
tools of each Codex are in `helmsman.testing.tools`.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import anyio

from helmsman.model.events import PlanStep, RateLimit, StepStatus, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from helmsman.testing.model_request import ModelRequest


class ScriptProblem(Exception):
    """Raised when the script has no valid answer to a request."""


class Part:
    """Base class of the parts of a step."""

    __slots__ = ()


class ToolCall(Part):
    """Part that calls one of the tools that Codex offers."""

    __slots__ = ()


class Ending(Part):
    """Part that ends the stream abnormally. No part can follow it."""

    __slots__ = ()


class Gate(Part):
    """Point in a stream where the model waits for the test. After its release it stays open."""

    def __init__(self) -> None:
        self._released = anyio.Event()
        self._arrivals = 0
        self._awaited: list[tuple[int, anyio.Event]] = []

    async def reached(self, count: int = 1) -> None:
        """Wait until `count` streams have reached the gate. The caller bounds the wait."""
        if self._arrivals < count:
            enough = anyio.Event()
            self._awaited.append((count, enough))
            await enough.wait()

    def release(self) -> None:
        """Release all current and later streams."""
        self._released.set()

    async def pass_through(self) -> None:
        """Register the arrival of a stream and wait for the release."""
        self._arrivals += 1
        for count, enough in self._awaited:
            if self._arrivals >= count:
                enough.set()
        await self._released.wait()


Chunk: TypeAlias = "str | Gate | Cut | Hang"  # piece of a text, or an action between two pieces


# --- parts of a response ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say(Part):
    chunks: tuple[Chunk, ...]
    phase: Literal["commentary", "final_answer"] | None = None


@dataclass(frozen=True, slots=True)
class Think(Part):
    chunks: tuple[Chunk, ...]
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class Run(ToolCall):
    """Shell command.

    Args:
        command: What the shell runs.
        escalate: Ask to run it outside the sandbox, with this justification.
        prefix_rule: The command prefix proposed for a lasting permission; only with `escalate`.
        yield_ms: Leave the command running in the background after this time (not on Codex 0.93).
        workdir: Where to run it, instead of the session's directory.
    """

    command: str
    _: KW_ONLY
    escalate: str | None = None
    prefix_rule: Sequence[str] | None = None
    yield_ms: int | None = None
    workdir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """One file of a patch, for agents whose tools edit one file at a time. `new` replaces the lines `old`."""

    path: str
    kind: Literal["add", "update", "delete"]
    old: str = ""
    new: str = ""
    moved_to: str | None = None


@dataclass(frozen=True, slots=True)
class Patch(ToolCall):
    text: str

    def changes(self) -> list[FileEdit]:
        """Return the changes of the patch by file."""
        found: list[FileEdit] = []
        for section in re.split(r"^\*\*\* (?=(?:Add|Update|Delete) File: )", self.text, flags=re.MULTILINE)[1:]:
            heading, _, body = section.partition("\n")
            kind, _, path = heading.partition(" File: ")
            lines = body.splitlines(keepends=True)
            move = next((line for line in lines if line.startswith("*** Move to: ")), None)
            # Context lines belong to both versions.
            old = "".join(line[1:] for line in lines if line[:1] in "- ")
            new = "".join(line[1:] for line in lines if line[:1] in "+ ")
            found.append(
                FileEdit(
                    path=path,
                    kind=_KINDS[kind],
                    old=old,
                    new=new,
                    moved_to=None if move is None else move.removeprefix("*** Move to: ").strip(),
                )
            )
        return found


_KINDS: Final[Mapping[str, Literal["add", "update", "delete"]]] = {
    "Add": "add",
    "Update": "update",
    "Delete": "delete",
}


@dataclass(frozen=True, slots=True)
class Plan(ToolCall):
    steps: tuple[PlanStep, ...]
    explanation: str | None = None


@dataclass(frozen=True, slots=True)
class McpCall(ToolCall):
    """Tool of an MCP server that Codex has connected."""

    server: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserQuestion:
    text: str
    options: tuple[str, ...]
    id: str
    header: str


@dataclass(frozen=True, slots=True)
class AskUser(ToolCall):
    questions: tuple[UserQuestion, ...]


@dataclass(frozen=True, slots=True)
class RequestPermissions(ToolCall):
    """Request more permissions for this turn; Codex offers the tool with the feature `request_permissions_tool`."""

    reason: str
    _: KW_ONLY
    network: bool = False
    read: Sequence[str] = ()
    write: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Search(Part):
    """Web search that the provider has already done."""

    query: str


@dataclass(frozen=True, slots=True)
class SpawnAgent(ToolCall):
    """Sub-agent call. The script for its message defines its actions."""

    message: str
    _: KW_ONLY
    name: str = "helper"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitAgents(ToolCall):
    """Wait for the sub-agents started so far in this conversation."""

    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Call(ToolCall):
    """Call a tool by name: a dynamic tool of the client, or any other that Codex offers."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cut(Ending):
    """Close the socket in mid stream: after the parts before it, or in a message, `say("Hel", cut())`."""


@dataclass(frozen=True, slots=True)
class Hang(Ending):
    """Send nothing more until the connection is closed. (A gate hangs until the test releases it.)"""


@dataclass(frozen=True, slots=True)
class ResponseFailed(Ending):
    """End the stream with `response.failed`, for example with code `context_length_exceeded`."""

    code: str
    message: str = "The script says so."


@dataclass(frozen=True, slots=True)
class Incomplete(Ending):
    """End the stream with `response.incomplete`."""

    reason: str = "max_output_tokens"


@dataclass(frozen=True, slots=True)
class Fail(Part):
    """HTTP error instead of a stream."""

    status: int
    error: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Cost(Part):
    usage: Usage


@dataclass(frozen=True, slots=True)
class Limit(Part):
    rate_limit: RateLimit


React: TypeAlias = "Callable[[ModelRequest], Step]"
Step: TypeAlias = "Part | Sequence[Part] | React"


@dataclass(frozen=True, slots=True)
class Always:
    """Last step of a script, repeated for every further request."""

    step: Step


def parts_of(step: Step) -> tuple[Part, ...]:
    """Return the parts of a step that is not a function.

    Raises:
        TypeError: This is not a step.
        ValueError: The parts cannot be combined.
    """
    parts = tuple(step) if isinstance(step, list | tuple) else (step,)
    checked: list[Part] = []
    for part in parts:
        if not isinstance(part, Part):
            raise TypeError(f"{part!r} is not part of a script. Use say(), run(), fail() and their like.")
        checked.append(part)
    endings = [index for index, part in enumerate(checked) if isinstance(part, Ending | Fail)]
    if any(isinstance(part, Fail) for part in checked) and len(checked) > 1:
        raise ValueError("fail() is an HTTP error instead of a stream. Put it alone into its step.")
    if endings and endings[0] != len(checked) - 1:
        raise ValueError("Nothing can follow cut(), hang(), response_failed() or incomplete(). Put it last.")
    return tuple(checked)


# --- how a script is written -----------------------------------------------------------------------------------------


call, call_tool, run, search, spawn_agent, wait_agents = Call, McpCall, Run, Search, SpawnAgent, WaitAgents
always, cut, hang, incomplete, response_failed = Always, Cut, Hang, Incomplete, ResponseFailed
request_permissions = RequestPermissions


def say(*chunks: Chunk, phase: Literal["commentary", "final_answer"] | None = None) -> Say:
    """Return a message. Each text is one delta; a gate pauses the stream, `cut()` or `hang()` interrupts it."""
    return Say(chunks, phase)


def think(*summary: Chunk, raw: str | None = None) -> Think:
    """Return reasoning: a summary in chunks as for `say`, and optionally the raw text."""
    return Think(summary, raw)


def patch(*sections: str) -> Patch:
    """Return a patch made of `add`, `update`, `delete` and `move`, or of the full text of a patch."""
    text = "".join(sections)
    if not text.startswith("*** Begin Patch"):
        text = f"*** Begin Patch\n{text}*** End Patch\n"
    return Patch(text)


def add(path: str, content: str) -> str:
    """Return the section of a patch that creates a file."""
    return f"*** Add File: {path}\n" + _prefixed("+", content)


def update(path: str, old: str, new: str, *, move_to: str | None = None) -> str:
    """Return the section of a patch that replaces lines of a file, and optionally renames it."""
    destination = f"*** Move to: {move_to}\n" if move_to else ""
    return f"*** Update File: {path}\n{destination}@@\n" + _prefixed("-", old) + _prefixed("+", new)


def delete(path: str) -> str:
    """Return the section of a patch that deletes a file."""
    return f"*** Delete File: {path}\n"


def move(path: str, to: str, keeping: str) -> str:
    """Return the section of a patch that renames a file; `keeping` is one of its lines, required by the format."""
    return f"*** Update File: {path}\n*** Move to: {to}\n@@\n" + _prefixed(" ", keeping)


def _prefixed(sign: str, text: str) -> str:
    return "".join(f"{sign}{line}\n" for line in text.removesuffix("\n").split("\n")) if text else ""


def plan(*steps: str | tuple[str, StepStatus], explanation: str | None = None) -> Plan:
    """Return a plan; each step is a text (pending) or a text with its status. Codex 0.155 and newer have no such tool."""
    named = (PlanStep(step) if isinstance(step, str) else PlanStep(*step) for step in steps)
    return Plan(tuple(named), explanation)


def question(text: str, *options: str, id: str = "q1", header: str = "Choice") -> UserQuestion:  # noqa: A002
    """Return one question for `ask_user`."""
    return UserQuestion(text, options, id, header)


def ask_user(*questions: UserQuestion) -> AskUser:
    """Ask the user questions; Codex asks them only if its configuration or mode allows it."""
    return AskUser(questions)


def fail(
    status: int,
    *,
    message: str = "The script says so.",
    error_type: str | None = None,
    code: str | None = None,
    retry_after: int | None = None,
    **error: Any,
) -> Fail:
    """Return an HTTP error. Further keywords go into the body's `error`, for example `resets_at=`."""
    body = {"message": message, "type": error_type, "code": code, **error}
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Fail(status, {key: value for key, value in body.items() if value is not None}, headers)


def usage(
    input_tokens: int = 0, cached_input_tokens: int = 0, output_tokens: int = 0, reasoning_output_tokens: int = 0
) -> Cost:
    """Set the token usage of a response: `[say("Done"), usage(100, output_tokens=10)]`."""
    return Cost(Usage(input_tokens, cached_input_tokens, output_tokens, reasoning_output_tokens))


def rate_limit(
    used_percent: float,
    *,
    window_minutes: int | None = None,
    resets_at: int | None = None,
    name: Literal["primary", "secondary"] = "primary",
) -> Limit:
    """Return how much of the account's limit is used, told with the response."""
    limit = RateLimit(name=name, used_percent=used_percent, window_minutes=window_minutes, resets_at=resets_at)
    return Limit(limit)
