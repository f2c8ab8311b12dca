"""Table of operations: what users can ask for, each declared once.

An operation is a function with models for its input and output, a title and a docstring as templates
(`helmsman.operations.texts`), and its nature (`helmsman.model.nature`). `operations.toolsets` lists them. MCP
tools and `docs/reference.md` are derived from these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from inspect import isclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, get_args, get_type_hints

from helmsman.shapes.contract import Input, Output

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helmsman.agents.protocol import Capability
    from helmsman.capabilities.service import AgentService
    from helmsman.model.nature import Nature
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.tasks.model import Task

InputT = TypeVar("InputT", bound=Input)


@dataclass(frozen=True)
class Deferred:
    """Protocol-specific reply of a front end instead of an output."""

    reply: Any


class UserConfirmation(Protocol):
    """Confirmation by the user of a model's proposal."""

    answered: str | None
    """Subject that was confirmed or declined, if the call brings the user's answer."""
    is_yes: bool

    async def ask(self, what: str, message: str, confirmed: Callable[[], Awaitable[object]]) -> Deferred | None:
        """Ask the user, if the client can. Returns the reply to give instead of an output, if there is one."""
        ...

    async def by_person(self, confirmed: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Carry out what the user has confirmed, on the user's behalf."""
        ...


class OperationCall(Protocol):
    """Call of an operation: the service that carries it out, and the client that called."""

    @property
    def helm(self) -> AgentService: ...

    @property
    def agent(self) -> str:
        """Agent whose tool was called, for operations that every agent has."""
        ...

    @property
    def on_question(self) -> QuestionHandler | None:
        """Asks the user at the client as soon as a question arises. None if the client cannot."""
        ...

    @property
    def viewer(self) -> str:
        """Identifies the client: it may apply only the changes that it was shown."""
        ...

    async def respond(self, session_id: str, question_id: str, answers: Sequence[str]) -> Session:
        """Answer a question as the model that called."""
        ...

    async def wait(
        self, sessions: Sequence[Session], *, seconds: float, until: Literal["attention", "change", "all"] = "attention"
    ) -> Deferred | None:
        """Wait for sessions, with progress to the client. Questions of a single one are put to the user."""
        ...

    async def wait_for_job(self, task: Task, *, seconds: float) -> Deferred | None:
        """Wait for a job in the same way."""
        ...

    async def watch(self, session: Session, *, seconds: float) -> None:
        """Wait for a session with progress to the client, and put no question to the user."""
        ...

    def confirmation(self) -> UserConfirmation: ...


@dataclass(frozen=True)
class Operation(Generic[InputT]):
    """One operation.

    Attributes:
        name: The name of its MCP tool, as a template.
        run: Carries it out.
        title: For people, as a template.
        nature: Its effects, and whether it may be repeated.
        render: Returns the output as text, for clients that show only text.
        needs: The capability that the agent needs for it.
        like: The operation whose parameters of the same name mean the same: a listing describes them once.
        agent_input: The input of the tool for any agent, if that is more.
        fleet_input: The input where there is a fleet, if that is more: for Codex, and for any agent.
    """

    name: str
    run: Callable[[Any, InputT], Awaitable[Output | Deferred]]
    title: str
    nature: Nature
    render: Callable[[Any], str]
    needs: Capability | None = None
    agent_input: type[InputT] | None = None
    fleet_input: tuple[type[InputT], type[InputT]] | None = None
    like: str | None = None

    @property
    def can_run_elsewhere(self) -> bool:
        """True if a call may name another machine to run on."""
        return self.name.startswith("{tool}_")

    @cached_property
    def description(self) -> str:
        """Description for users and models, as a template."""
        return " ".join((self.run.__doc__ or "").split())

    @cached_property
    def _models(self) -> tuple[type[InputT], type[Output]]:
        # The type hints are the declaration: input and output are not repeated in the decorator.
        _, takes, gives = get_type_hints(self.run).values()
        return takes, next(kind for kind in (gives, *get_args(gives)) if isclass(kind) and issubclass(kind, Output))

    @property
    def output(self) -> type[Output]:
        return self._models[1]

    def input(self, *, any_agent: bool = False, in_fleet: bool = False) -> type[InputT]:
        """Return the model of its input."""
        if in_fleet and self.fleet_input is not None:
            # `any_agent` is a bool: False picks the model for Codex, True the one for any agent.
            return self.fleet_input[any_agent]
        if any_agent and self.agent_input is not None:
            return self.agent_input
        return self._models[0]


def operation(
    name: str,
    title: str,
    nature: Nature,
    render: Callable[[Any], str],
    *,
    needs: Capability | None = None,
    agent_input: type[InputT] | None = None,
    fleet_input: tuple[type[InputT], type[InputT]] | None = None,
    like: str | None = None,
) -> Callable[[Callable[[Any, InputT], Awaitable[Output | Deferred]]], Operation[InputT]]:
    """Declare a function as an operation."""
    return lambda run: Operation(name, run, title, nature, render, needs, agent_input, fleet_input, like)


def operations_in(module: Any) -> tuple[Operation[Any], ...]:
    """Return the operations that a module declares, in its order."""
    # Modules list their tools in the order of their source.
    return tuple(one for one in vars(module).values() if isinstance(one, Operation))
