"""What a tool is, how it is listed, and how a call becomes a result.

A tool is a function with a docstring for its clients and models for what it takes and gives. Errors on purpose
(`HelmsmanError`, wrong arguments) become results with `isError`, whose text begins with the code of the error; protocol
errors are for protocol mistakes.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import isclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, get_args, get_type_hints

import mcp_types as types
from mcp.shared.exceptions import MCPError

from helmsman.base.shortening import TEXT_CHARS, cut, session_file, within
from helmsman.base.structs import Value, replace
from helmsman.base.surroundings import current
from helmsman.errors import HelmsmanError, HostUnreachable, InvalidInput
from helmsman.hub.links import NAMING, elsewhere
from helmsman.mcp.current_call import NumberedCall, current_call
from helmsman.mcp.doors import Context, Doors
from helmsman.mcp.listed_schema import listed_schema
from helmsman.service import Helmsman
from helmsman.shapes.contract import Input, Output
from helmsman.tasks.calls import is_repeated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Mapping, Sequence

    from helmsman.sessions.session import QuestionHandler

log = logging.getLogger(__name__)

InputT = TypeVar("InputT", bound=Input)

Instead = types.InputRequiredResult | dict[str, Any]
"""What a client may be told instead of an answer: that input is required, or (as it goes over the wire) a task's handle."""
CallOutcome = types.CallToolResult | Instead


def _changes(*, destructive: bool, idempotent: bool, open_world: bool) -> types.ToolAnnotations:
    return types.ToolAnnotations(
        read_only_hint=False, destructive_hint=destructive, idempotent_hint=idempotent, open_world_hint=open_world
    )


ERROR_META: Final = "helmsman/error"
"""The key in the `_meta` of a failed result that holds the error as data: `code`, `message`, `retryable` and details."""

BEGIN_A_TASK: Final = frozenset(
    {
        *("codex_start", "codex_say", "agent_start", "agent_say"),
        *("codex", "_codex_local_run", "_codex_local_exec", "_codex_local_resume"),
        *("debug", "review", "plan", "refactor", "test"),
    }
)
"""Tools whose whole effect is a task: where one was entered for a call, what came of the call is known."""
_HARMLESS: Final = frozenset({"codex_respond", "agent_respond", "_codex_cloud_results"})
"""Done again without harm: the first answer to a question counts, and it is written down whose that was; what a tree has is
not applied again."""

CODEX: Final = "codex"
"""Whom the tools that carry its name start, whatever the default agent is."""
_WORDS_FOR_ANY: Final = (
    (r"\bcodex_", "agent_"),
    (r"\ba Codex session's", "an agent's"),
    (r"\ba Codex session", "an agent's session"),
    (r"\bsessions Codex has", "sessions agents have"),
    (r"\bCodex sessions", "agents' sessions"),
    (r"\bCodex configuration", "agent configuration"),
    (r"(?:^|(?<=\. ))Codex\b(?!'s configuration)", "The agent"),
    (r"(?<!older )\bCodex\b(?!'s configuration)", "the agent"),
)
"""What says Codex in the description of a tool, and what says any agent. What only Codex has keeps its name."""
_BETWEEN_SENTENCES: Final = re.compile(r"(?<=\.)\s(?=[\"A-Z])")
_TOOL_NAME: Final = re.compile(r"\b(codex|agent)_[a-z_]+")

READS: Final = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
ACTS: Final = _changes(destructive=True, idempotent=False, open_world=True)
STOPS: Final = _changes(destructive=True, idempotent=True, open_world=False)
"""Changes something here for good, and does no more when it is called again."""
FORGETS: Final = _changes(destructive=True, idempotent=False, open_world=False)
BEGINS: Final = _changes(destructive=False, idempotent=False, open_world=True)
ARRANGES: Final = _changes(destructive=False, idempotent=True, open_world=False)
"""Changes how a session is kept, and nothing that could be lost."""


class CallContext(Value, frozen=True):
    """One call of a tool: whom to ask, and the request it came with."""

    helm: Helmsman
    doors: Doors
    context: Context
    params: types.CallToolRequestParams
    agent: str = CODEX
    """Whose tool was called, where each agent has one."""
    host: str | None = None
    """The machine that `helm` is of, if that is another one."""

    @property
    def agent_title(self) -> str:
        """What that agent is called in sentences."""
        return self.helm.agents.title(self.agent)

    @property
    def on_question(self) -> QuestionHandler | None:
        """What asks the caller's person as soon as a question arises; None where that is not possible."""
        return self.doors.handler(self.context)


class Offered(Protocol):
    """What a server can offer: something with a name that can be listed and called."""

    @property
    def name(self) -> str: ...

    def listed(self) -> types.Tool: ...

    async def called(self, call: CallContext) -> CallOutcome: ...


@dataclass(frozen=True)
class Tool(Generic[InputT]):
    """A function as a tool: `run` does it, asks for input, or hands out a task.

    Clients see its name, its docstring, and the models of its second argument and of what it returns. `in_words` makes the
    short text beside the structured content. However much a model or a command wrote, an answer has a size: what is too long
    is cut here, and says where the whole is.
    """

    run: Callable[[CallContext, InputT], Awaitable[Output | Instead]]
    title: str
    annotations: types.ToolAnnotations
    in_words: Callable[[Any], str]
    takes_agent: type[InputT] | None = None
    """What it takes as a tool for any agent, where that is more than an agent's session."""
    any_agent: bool = False
    takes_in_fleet: type[InputT] | None = None
    """What it takes where there is a fleet, if that is more."""
    agent: str | None = None
    """Whose tool it is, where each agent that is here has one: by the agent's name, and as sentences call it."""
    agent_title: str = ""

    @property
    def name(self) -> str:
        return self._said(self.run.__name__)

    def for_any_agent(self) -> Tool[InputT]:
        """The same tool under the name that is no agent's."""
        return replace(self, any_agent=True)

    def in_fleet(self, takes: type[InputT]) -> Tool[InputT]:
        """The same tool for doors of a fleet."""
        return replace(self, takes_in_fleet=takes)

    def for_agent(self, name: str, title: str) -> Tool[InputT]:
        """The same tool as that agent's own."""
        return replace(self, agent=name, agent_title=title)

    @property
    def takes_host(self) -> bool:
        """Whether it can be done on another machine."""
        return self.agent is None and self.run.__name__.startswith(f"{CODEX}_")

    def _said(self, text: str) -> str:
        if self.any_agent:
            return in_words_for_any(text)
        if self.agent in (None, CODEX):
            return text
        # The cloud is only Codex's.
        text = " ".join(part for part in _BETWEEN_SENTENCES.split(text) if "cloud" not in part.lower())
        text = re.sub(r"(?<![A-Za-z])codex(?![A-Za-z])", str(self.agent), text.replace(", e.g. gpt-5.5", ""))
        return re.sub(r"\bCodex(?:, OpenAI's coding agent)?\b", lambda _: self.agent_title, text)

    @cached_property
    def _models(self) -> tuple[type[InputT], type[Output]]:
        """What it takes and gives."""
        _, takes, gives = get_type_hints(self.run).values()
        if self.any_agent and self.takes_agent is not None:
            takes = self.takes_agent
        if self.takes_in_fleet is not None:
            takes = self.takes_in_fleet
        return takes, next(kind for kind in (gives, *get_args(gives)) if isclass(kind) and issubclass(kind, Output))

    def listed(self) -> types.Tool:
        return self._listed.model_copy()

    @cached_property
    def _listed(self) -> types.Tool:
        """Made once in a process, however many servers list it: most of the work is in the schemas."""
        takes, gives = self._models
        return types.Tool(
            name=self.name,
            title=self._said(self.title),
            description=self._said(" ".join((self.run.__doc__ or "").split())),
            input_schema=_described(listed_schema(takes, "validation"), self._said),
            output_schema=_described(listed_schema(gives, "serialization"), self._said),
            annotations=self.annotations,
        )

    def listed_like(self, other: str) -> types.Tool:
        """As it is listed beside that tool of another agent, which says all: a client's model reads it once."""
        takes = listed_schema(self._models[0], "validation")
        properties = {name: _type_alone(field) for name, field in takes["properties"].items()}
        return types.Tool(
            name=self.name,
            title=self._said(self.title),
            description=f"The same as {other}, by {self.agent_title}: it takes and gives what that does.",
            input_schema=takes | {"properties": properties},
            annotations=self.annotations,
        )

    async def called(self, call: CallContext) -> CallOutcome:
        if self.agent is not None:
            call = replace(call, agent=self.agent)
        try:
            result = await self.run(call, self._models[0].read(call.params.arguments or {}, whole="arguments"))
        except HelmsmanError as error:
            return failed(self._in_its_words(error), call.host)
        if not isinstance(result, Output):
            return result
        if call.host is not None:
            result = type(result).model_validate(elsewhere(result.as_dict(), call.host))
        structured = result.as_dict()
        session_id, agent = structured.get("sessionId"), structured.get("agent", CODEX)
        whole = "" if session_id is None else session_file(session_id, agent)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=cut(self.in_words(result), TEXT_CHARS, whole))],
            structured_content=within(structured, whole=whole),
            is_error=result.is_failure(),
        )

    def _in_its_words(self, error: HelmsmanError) -> HelmsmanError:
        """Return an error that names parameters as the tool does, in its text and in its details."""
        fields = self._models[0].model_fields
        names = {name: field.alias for name, field in fields.items() if field.alias is not None}
        if "working_directory" in names:
            names["cwd"] = names["working_directory"]
        error = error.renamed(names)
        alias = names.get(str(error.details.get("parameter")))
        return error if alias is None else type(error)(error.message, **{**error.details, "parameter": alias})


def in_words_for_any(text: str) -> str:
    """What is said of Codex and its tools, said of any agent and the tools for it."""
    for word, other in _WORDS_FOR_ANY:
        text = re.sub(word, other, text)
    return text


def naming_only(names: Container[str], text: str) -> str:
    """Return a text for a client that has only these tools.

    A name of another tool becomes that of its twin (`agent_say` for `codex_say`). A clause that names a tool without one
    is left out.
    """

    def twin(match: re.Match[str]) -> str:
        other = ("agent" if match[1] == CODEX else CODEX) + match[0].removeprefix(match[1])
        return other if match[0] not in names and other in names else match[0]

    def is_known(part: str) -> bool:
        return all(match[0] in names for match in _TOOL_NAME.finditer(part))

    text = _TOOL_NAME.sub(twin, text)
    if is_known(text):
        return text
    sentences = []
    for sentence in _BETWEEN_SENTENCES.split(text):
        clauses = [clause for clause in sentence.split("; ") if is_known(clause)]
        if clauses:
            sentences.append("; ".join(clauses).rstrip(".:") + "." if not is_known(sentence) else sentence)
    return " ".join(sentences)


def _with_descriptions(schema: Any, said: Callable[[str], str]) -> Any:
    """Return a schema with its descriptions in other words; one of which nothing is left is taken off."""
    if isinstance(schema, list):
        return [_with_descriptions(part, said) for part in schema]
    if not isinstance(schema, dict):
        return schema
    told = {key: said(part) if key == "description" and isinstance(part, str) else part for key, part in schema.items()}
    return {key: _with_descriptions(part, said) for key, part in told.items() if key != "description" or part}


def _described(schema: Any, said: Callable[[str], str]) -> Any:
    """A schema with its descriptions in other words. What those leave nothing of is left out."""
    if isinstance(schema, list):
        return [_described(part, said) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(text := schema.get("description"), str):
        schema = schema | {"description": said(text)}
    return {key: _described(part, said) for key, part in schema.items() if not _says_nothing(part, said)}


def _says_nothing(field: Any, said: Callable[[str], str]) -> bool:
    text = field.get("description") if isinstance(field, dict) else None
    return isinstance(text, str) and not said(text)


def _type_alone(field: dict[str, Any]) -> dict[str, Any]:
    """What a parameter is, without what it means and what is in it."""
    told = ("description", "properties", "additionalProperties")
    return {key: value for key, value in field.items() if key not in told}


def tool(
    title: str,
    annotations: types.ToolAnnotations,
    in_words: Callable[[Any], str],
    *,
    takes_agent: type[InputT] | None = None,
) -> Callable[[Callable[[CallContext, InputT], Awaitable[Output | Instead]]], Tool[InputT]]:
    """Make a tool of a function."""
    return lambda run: Tool(run, title, annotations, in_words, takes_agent)


def tools_in(module: Mapping[str, object]) -> tuple[Tool[Any], ...]:
    """The tools among the names of a module, in their order."""
    return tuple(one for one in module.values() if isinstance(one, Tool))


class Toolbox:
    """The tools a server offers."""

    def __init__(self, helm: Helmsman, doors: Doors, tools: Sequence[Offered]) -> None:
        self._helm = helm
        self._doors = doors
        # The user may have called an agent what a tool is called that has nothing to do with it.
        self._tools = {tool.name: tool for tool in tools} | {t.name: t for t in tools if _agent_of(t) is None}
        self._by_title = {
            _spelt(tool.name.replace(tool.agent, tool.agent_title, 1)): tool
            for tool in self._tools.values()
            if isinstance(tool, Tool) and tool.agent is not None
        }

    async def list(self, _context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """All tools; of those that agents have, those whose agent is here now."""
        here: set[str | None] = {None}
        if any(_agent_of(tool) is not None for tool in self._tools.values()):
            here |= {agent.name for agent in await self._helm.agents_here()} or {CODEX}
        offered = [tool for tool in self._tools.values() if _agent_of(tool) in here]
        first: dict[str, str] = {}
        for tool in offered:
            first.setdefault(_definition(tool), tool.name)
        hosts = sorted(self._helm.hosts.known())
        said = partial(naming_only, {tool.name for tool in offered})
        listed = [_with_host(tool, _listed_beside(tool, first[_definition(tool)]), hosts) for tool in offered]
        return types.ListToolsResult(tools=[_in_words_of(one, said) for one in listed])

    def _named(self, name: str) -> Offered | None:
        """A tool by its name, or as people spell it: an agent by its title (`claude-code`), a primitive without its `_`."""
        for spelt in (name, f"_{name}"):
            if (found := self._tools.get(spelt) or self._by_title.get(_spelt(spelt))) is not None:
                return found
        return None

    async def call(self, context: Context, params: types.CallToolRequestParams) -> CallOutcome:
        tool = self._named(params.name)
        if tool is None:
            names = [tool.name for tool in (await self.list(context, None)).tools]
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}. Use one of {', '.join(names)}.")
        try:
            client = self._doors.client(context)
            with current().on_behalf_of(client).entered():
                return await self._called_by(tool, CallContext(self._helm, self._doors, context, params))
        except HelmsmanError as error:
            return failed(error)
        except (SystemExit, KeyboardInterrupt) as error:  # one call does not end the process of all
            log.exception("%s tried to end the process", params.name)
            raise MCPError(types.INTERNAL_ERROR, f"{params.name} failed: {type(error).__name__}.") from error

    async def _called_by(self, tool: Offered, call: CallContext) -> CallOutcome:
        numbered = current_call.get()
        call = self._placed(tool, call)
        if numbered is None:
            return await self._called(tool, call)
        numbered.take()
        listed = tool.listed()
        if listed.annotations is not None and listed.annotations.read_only_hint:
            return await self._called(tool, call)
        return await self._called_once(tool, call, numbered, listed.annotations)

    async def _called_once(
        self, tool: Offered, call: CallContext, numbered: NumberedCall, annotations: types.ToolAnnotations | None
    ) -> CallOutcome:
        """Do what a call asks for, unless an earlier hub has done it: then give the answer there was, if one is known."""

        def stored(outcome: CallOutcome) -> str | None:
            if not isinstance(outcome, types.CallToolResult):
                return None
            return outcome.model_dump_json(by_alias=True, exclude_none=True)

        async def do() -> CallOutcome:
            outcome = await self._called(tool, call)
            if is_repeated() and isinstance(outcome, types.CallToolResult):
                session_id = (outcome.structured_content or {}).get("sessionId")
                if isinstance(session_id, str):  # unknown to this hub when the client attached: nothing was answered
                    await self._doors.attach_to(call.context, session_id)
            return outcome

        is_idempotent = annotations is not None and annotations.idempotent_hint is True
        is_harmless = not {tool.name, _definition(tool)}.isdisjoint(BEGIN_A_TASK | _HARMLESS)
        return await numbered.calls.once(
            numbered.id,
            tool.name,
            do,
            repeatable=is_idempotent or is_harmless or call.host is not None,  # the other hub knows what it has done
            stored=stored,
            restored=types.CallToolResult.model_validate_json,
            failed=failed,
        )

    # --- other machines ----------------------------------------------------------------------------------------------

    def _placed(self, tool: Offered, call: CallContext) -> CallContext:
        """The call with the machine that it names, by `host` or by an id, and in the words of that machine."""
        links = self._helm.hosts
        arguments = dict(call.params.arguments or {})
        if not isinstance(tool, Tool) or not tool.takes_host:
            ids = (arguments.get(name) for name in (*NAMING, "session_id", "task_id"))
            is_meant = arguments.get("host") in links.known() if isinstance(arguments.get("host"), str) else False
            if is_meant or any(links.split(one)[0] for one in ids if isinstance(one, str) and ":" in one):
                instead = "Start work there with codex_start and its host, or at a terminal: helmsman --host NAME"
                raise InvalidInput(f"{tool.name} works on this machine only. {instead}", parameter="host")
            return call
        hosts = {arguments.pop("host", None)} - {None, ""}
        for name in NAMING:
            if isinstance(reference := arguments.get(name), str):
                host, arguments[name] = links.split(reference)
                hosts |= {host} - {None}
        if not hosts:
            return call
        if len(hosts) > 1 or not isinstance(host := hosts.pop(), str):
            raise InvalidInput("host and the ids name different machines. Name one.", parameter="host")
        return replace(call, host=host, params=call.params.model_copy(update={"arguments": arguments}))

    async def _called(self, tool: Offered, call: CallContext) -> CallOutcome:
        if call.host is not None:
            return await self._called_elsewhere(tool, call)
        outcome = await tool.called(call)
        if not isinstance(tool, Tool) or not tool.takes_host or not _is_unknown(outcome):
            return outcome
        # Some models leave out what the id of a session on another machine begins with.
        named = {value for name in NAMING if isinstance(value := (call.params.arguments or {}).get(name), str)}
        hosts = [name for name, helm in self._helm.hosts.opened.items() if not named.isdisjoint(helm.sessions)]
        return outcome if len(hosts) != 1 else await self._called_elsewhere(tool, replace(call, host=hosts[0]))

    async def _called_elsewhere(self, tool: Offered, call: CallContext) -> CallOutcome:
        host = str(call.host)
        try:
            return await tool.called(replace(call, helm=await self._helm.hosts.get(host)))
        except HelmsmanError as error:
            return failed(error, host)
        except (TypeError, ValueError, KeyError, AttributeError):
            log.exception("%s gave what %s makes nothing of", host, tool.name)
            return failed(HostUnreachable("Its answer makes no sense. Have the same version of Helmsman there."), host)

    def input_schema(self, name: str) -> dict[str, Any] | None:
        tool = self._named(name)
        if tool is None:
            return None
        return _with_host(tool, tool.listed(), sorted(self._helm.hosts.known())).input_schema


def _agent_of(tool: Offered) -> str | None:
    return tool.agent if isinstance(tool, Tool) else None


def _definition(tool: Offered) -> str:
    """The name that a tool has in the code, whichever agent's it is."""
    return tool.run.__name__ if isinstance(tool, Tool) and tool.agent is not None else tool.name


def _listed_beside(tool: Offered, first: str) -> types.Tool:
    return tool.listed() if first == tool.name or not isinstance(tool, Tool) else tool.listed_like(first)


def _with_host(tool: Offered, listed: types.Tool, hosts: Sequence[str]) -> types.Tool:
    """A tool as it is listed where there are other machines."""
    if not hosts or not isinstance(tool, Tool) or not tool.takes_host:
        return listed
    schema = listed.input_schema
    host = {"type": "string", "enum": list(hosts), "description": "Do it on this other machine."}
    return listed.model_copy(update={"input_schema": schema | {"properties": schema["properties"] | {"host": host}}})


def _is_unknown(outcome: CallOutcome) -> bool:
    """Whether there is no such session or task."""
    told = (outcome.meta or {}).get(ERROR_META) if isinstance(outcome, types.CallToolResult) else None
    return isinstance(told, dict) and told.get("code") in ("session_not_found", "task_not_found")


def _in_words_of(listed: types.Tool, said: Callable[[str], str]) -> types.Tool:
    return listed.model_copy(
        update={
            "description": said(listed.description or ""),
            "input_schema": _with_descriptions(listed.input_schema, said),
            "output_schema": listed.output_schema and _with_descriptions(listed.output_schema, said),
        }
    )


def _spelt(name: str) -> str:
    """A name however it is put together: Claude Code, claude-code, claude_code."""
    return re.sub(r"[ _]", "-", name.lower())


def failed(error: HelmsmanError, host: str | None = None) -> types.CallToolResult:
    """Return an error as the result of a call, which ran on another machine if one is named.

    The text is `code: message`. There is no structured content: clients check it against the tool's output schema, and
    those that do so for errors too (TypeScript SDK 1.x) would throw away the message.
    """
    told, where = error.as_dict(), ""
    if host is not None:
        told, where = elsewhere(told, host) | {"host": host}, f"On {host}: "
    return types.CallToolResult(
        is_error=True,
        content=[types.TextContent(type="text", text=f"{error.code}: {where}{cut(error.message, TEXT_CHARS)}")],
        _meta={ERROR_META: within(told)},
    )
