"""Operations as MCP tools: their listing, and the conversion of calls to results.

Expected errors (`HelmsmanError`, wrong arguments) become results with `isError`, whose text starts with the error code.
Protocol errors are for protocol mistakes.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from helmsman.base.caller_context import current
from helmsman.base.structs import replace
from helmsman.base.truncate import TEXT_CHARS, cut, session_file, within
from helmsman.errors import HelmsmanError, HostUnreachable, InvalidInput
from helmsman.hub.host_pool import NAMING, elsewhere
from helmsman.mcp.apps import with_card
from helmsman.mcp.current_call import NumberedCall, current_call
from helmsman.mcp.resources import client_of
from helmsman.mcp.tool_search import CALL, FIND, ToolSearch, called_through, found_result, query_in
from helmsman.mcp.waiting import ClientCall
from helmsman.model.nature import ACTS, Nature
from helmsman.operations.schemas import listed_schema
from helmsman.operations.table import Deferred, Operation
from helmsman.operations.texts import CODEX, FOR_ANY, FOR_CODEX, Voice, naming_only, rendered, with_descriptions
from helmsman.tasks.call_key import is_repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcp.server.subscriptions import SubscriptionBus

    from helmsman.mcp.call import CallContext, CallOutcome
    from helmsman.mcp.elicitation import Context, Elicitor
    from helmsman.service import HelmsmanService
    from helmsman.shapes.contract import Input

log = logging.getLogger(__name__)

ERROR_META: Final = "helmsman/error"
"""Key in the `_meta` of a failed result for the error as data: `code`, `message`, `retryable` and details."""


class ToolLike(Protocol):
    """Tool that a server lists and calls."""

    @property
    def name(self) -> str: ...

    def listed(self) -> types.Tool: ...

    async def called(self, call: CallContext) -> CallOutcome: ...


@dataclass(frozen=True)
class Tool:
    """Operation as an MCP tool, for Codex, for any agent, or for one agent by name.

    Answers have a maximum size: longer texts are truncated, with a note where to find the rest.
    """

    operation: Operation[Any]
    voice: Voice = FOR_CODEX
    in_fleet: bool = False
    agent: str | None = None
    """Agent that the tool belongs to, if each installed agent has such a tool."""
    agent_title: str = ""

    @property
    def name(self) -> str:
        return self.voice.render(self.operation.name)

    @property
    def takes_host(self) -> bool:
        return self.agent is None and self.operation.can_run_elsewhere

    @property
    def definition(self) -> str:
        """Return the tool's name in the code, which is the same for all agents."""
        return self.name if self.agent is None else self.operation.name

    @cached_property
    def input_model(self) -> type[Input]:
        return self.operation.input(any_agent=self.voice is FOR_ANY, in_fleet=self.in_fleet)

    def listed(self) -> types.Tool:
        return self._listed.model_copy()

    @cached_property
    def _listed(self) -> types.Tool:
        """Made once in a process, however many servers list it: most of the work is in the schemas."""
        say = self.voice.render
        return types.Tool(
            name=self.name,
            title=say(self.operation.title),
            description=say(self.operation.description),
            input_schema=rendered(listed_schema(self.input_model, "validation"), say),
            output_schema=rendered(listed_schema(self.operation.output, "serialization"), say),
            annotations=hints_of(self.operation.nature),
        )

    def listed_like(self, other: str) -> types.Tool:
        """Return a short listing that refers to the tool of another agent: a client's model reads the texts once."""
        takes = listed_schema(self.input_model, "validation")
        properties = {name: _type_alone(field) for name, field in takes["properties"].items()}
        return types.Tool(
            name=self.name,
            title=self.voice.render(self.operation.title),
            description=f"The same as {other}, by {self.agent_title}: it takes and gives what that does.",
            input_schema=takes | {"properties": properties},
            annotations=hints_of(self.operation.nature),
        )

    def listed_beside(self, others: Mapping[str, Tool]) -> types.Tool:
        """Return the listing beside other tools: a parameter that one of them describes is not described again."""
        twin = others.get(FOR_CODEX.render(self.operation.name)) if self.voice is FOR_ANY else None
        like = twin or others.get(self.voice.render(self.operation.like or ""))
        listed = self.listed()
        if like is None or like is self:
            return listed
        own, known = (listed_schema(one.input_model, "validation")["properties"] for one in (self, like))
        # Only parameters that mean the same in both lose their description.
        properties = {
            name: {key: part for key, part in field.items() if key != "description"}
            if own.get(name) == known.get(name)
            else field
            for name, field in listed.input_schema["properties"].items()
        }
        about = f"As {like.name}, for a session of any agent." if twin is not None else listed.description or ""
        as_there = "" if twin is not None else f" Parameters without a description: as for {like.name}."
        schema = listed.input_schema | {"properties": properties}
        return listed.model_copy(update={"description": about + as_there, "input_schema": schema})

    async def called(self, call: CallContext) -> CallOutcome:
        if self.agent is not None:
            call = replace(call, agent=self.agent)
        try:
            # Models confuse the ids of a task and of its session.
            arguments = await _by_sessions(call) if self.operation.can_run_elsewhere else call.params.arguments or {}
            result = await self.operation.run(call, self.input_model.read(arguments, whole="arguments"))
        except HelmsmanError as error:
            return failed(self._in_its_words(error), call.host)
        if isinstance(result, Deferred):
            return cast("CallOutcome", result.reply)
        # Ids of another machine begin with its name from here on.
        if call.host is not None:
            result = type(result).model_validate(elsewhere(result.as_dict(), call.host))
        structured = result.as_dict()
        session_id, agent = structured.get("sessionId"), structured.get("agent", CODEX)
        # Where the client's model finds what was cut.
        whole = "" if session_id is None else session_file(session_id, agent)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=cut(self.operation.render(result), TEXT_CHARS, whole))],
            structured_content=within(structured, whole=whole),
            is_error=result.is_failure(),
        )

    def _in_its_words(self, error: HelmsmanError) -> HelmsmanError:
        """Return an error that names parameters as the tool does, in its text and in its details."""
        names = {name: field.alias for name, field in self.input_model.model_fields.items() if field.alias is not None}
        # The library says cwd, the tool workingDirectory.
        if "working_directory" in names:
            names["cwd"] = names["working_directory"]
        error = error.renamed(names)
        alias = names.get(str(error.details.get("parameter")))
        return error if alias is None else type(error)(error.message, **{**error.details, "parameter": alias})


def hints_of(nature: Nature) -> types.ToolAnnotations:
    """Return the hints of MCP about a tool's effects."""
    # A reading tool reaches no further than this machine, as clients understand the hint.
    if nature.reads:
        return types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    return types.ToolAnnotations(
        read_only_hint=False,
        destructive_hint=nature.destroys,
        idempotent_hint=nature.idempotent,
        open_world_hint=nature.reaches_out,
    )


# The model has read these texts at the first agent's tool.
def _type_alone(field: dict[str, Any]) -> dict[str, Any]:
    """Return the type of a parameter without its description and its parts."""
    texts = ("description", "properties", "additionalProperties")
    return {key: value for key, value in field.items() if key not in texts}


class Toolbox:
    """Tools a server offers."""

    def __init__(
        self,
        helm: HelmsmanService,
        elicitor: Elicitor,
        toolsets: Sequence[Sequence[ToolLike]],
        bus: SubscriptionBus,
    ) -> None:
        self._helm = helm
        self._elicitor = elicitor
        self._toolsets = toolsets
        self._bus = bus
        self._search = ToolSearch()
        tools = [tool for toolset in toolsets for tool in toolset]
        # A user may have given an agent the name of an unrelated tool. The unrelated tool wins.
        self._tools = {tool.name: tool for tool in tools} | {t.name: t for t in tools if _agent_of(t) is None}
        self._by_title = {
            _spelt(tool.name.replace(tool.agent, tool.agent_title, 1)): tool
            for tool in self._tools.values()
            if isinstance(tool, Tool) and tool.agent is not None
        }

    async def list(self, context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """Return the tools, or a part of them with a search for the rest, if they are many."""
        tools, _ = await self._list(context)
        return types.ListToolsResult(tools=[with_card(context, one) for one in tools])

    async def _list(self, context: Context) -> tuple[Sequence[types.Tool], Sequence[str]]:
        groups = await self._offered()
        return self._search.listed(client_of(context), groups, partial(self._listing, groups))

    async def _offered(self) -> Sequence[Sequence[str]]:
        """Return the names of the tools of each toolset. A tool of an agent is offered only if the agent is installed."""
        here: set[str | None] = {None}
        if any(_agent_of(tool) is not None for tool in self._tools.values()):
            # Without any agent, Codex's tools stay: their error says how to install one.
            here |= {agent.name for agent in await self._helm.agents_here()} or {CODEX}
        seen: set[str] = set()
        offered = []
        for toolset in self._toolsets:  # a tool may belong to several, and is offered with the first
            names = dict.fromkeys(tool.name for tool in toolset if _agent_of(self._tools[tool.name]) in here)
            offered.append([name for name in names if name not in seen])
            seen |= set(names)
        return offered

    def _listing(self, groups: Sequence[Sequence[str]], names: Sequence[str]) -> Sequence[types.Tool]:
        """Return the listing of some of the offered tools: beside each other, texts are not repeated."""
        tools = [self._tools[name] for name in names]
        first: dict[str, str] = {}
        for tool in tools:
            first.setdefault(_definition(tool), tool.name)
        hosts = sorted(self._helm.hosts.known())
        # Names of tools in descriptions must be of tools that this client has.
        said = partial(naming_only, {name for group in groups for name in group})
        known = {tool.name: tool for tool in tools if isinstance(tool, Tool)}
        listed = (_with_host(tool, _listed_beside(tool, first[_definition(tool)], known), hosts) for tool in tools)
        return [_in_words_of(one, said) for one in listed]

    async def _find(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Search all tools, and list what was found to this client from now on."""
        # Before the search, to see whether the list changes by it.
        groups, (before, hidden) = await self._offered(), await self._list(context)
        every = [tool for group in groups for name in group for tool in self._listing(groups, [name])]
        found = self._search.find(client_of(context), query_in(params), every, hidden)
        after, _ = await self._list(context)
        if [tool.name for tool in after] != [tool.name for tool in before]:
            await self._bus.publish(ToolsListChanged())
            # Clients of 2026-07-28 hear it by the bus.
            if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                await context.session.send_tool_list_changed()
        return found_result(found, hidden)

    def _named(self, name: str) -> ToolLike | None:
        """Return a tool by name, or by a common variant: an agent's title (`claude-code`), a primitive without its `_`."""
        # Earlier versions and other servers use these names.
        for spelt in (name, f"_{name}"):
            if (found := self._tools.get(spelt) or self._by_title.get(_spelt(spelt))) is not None:
                return found
        return None

    async def call(self, context: Context, params: types.CallToolRequestParams) -> CallOutcome:
        try:
            if params.name == FIND:
                return await self._find(context, params)
            if params.name == CALL:
                params = called_through(params)
        except HelmsmanError as error:
            return failed(error)
        tool = self._named(params.name)
        # Names of all tools help a model that made one up.
        if tool is None:
            names = [name for group in await self._offered() for name in group]
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}. Use one of {', '.join(names)}.")
        try:
            client = self._elicitor.client(context)
            if self._elicitor.channel is not None:
                self._elicitor.channel.meet(context, client)
            # All that the call does is on behalf of this client: the owner of sessions, and the audit log.
            with current().on_behalf_of(client).entered():
                outcome = await self._called_by(tool, ClientCall(self._helm, self._elicitor, context, params))
            return outcome if params.name == tool.name else _by_old_name(outcome, params.name, tool.name)
        except HelmsmanError as error:
            return failed(error)
        except (SystemExit, KeyboardInterrupt) as error:  # one call does not end the process of all
            log.exception("%s tried to end the process", params.name)
            raise MCPError(types.INTERNAL_ERROR, f"{params.name} failed: {type(error).__name__}.") from error

    async def _called_by(self, tool: ToolLike, call: CallContext) -> CallOutcome:
        numbered = current_call.get()
        # Arguments are rewritten to the machine's own ids before anything else looks at them.
        call = self._placed(tool, call)
        if numbered is None:
            return await self._called(tool, call)
        # From now on the call counts as at work, and is a suspect if the hub dies.
        numbered.take()
        nature = tool.operation.nature if isinstance(tool, Tool) else ACTS
        # Reading again is harmless.
        if nature.reads:
            return await self._called(tool, call)
        return await self._called_once(tool, call, numbered, nature)

    async def _called_once(
        self, tool: ToolLike, call: CallContext, numbered: NumberedCall, nature: Nature
    ) -> CallOutcome:
        """Carry out a call once. If an earlier hub has done so, return its answer if it is stored."""

        def stored(outcome: CallOutcome) -> str | None:
            # A deferred reply depends on this connection, and cannot be given again.
            if not isinstance(outcome, types.CallToolResult):
                return None
            return outcome.model_dump_json(by_alias=True, exclude_none=True)

        async def do() -> CallOutcome:
            outcome = await self._called(tool, call)
            # The session was begun by the earlier hub, or by this call: only now is its id known.
            if is_repeated() and isinstance(outcome, types.CallToolResult):
                session_id = (outcome.structured_content or {}).get("sessionId")
                if isinstance(session_id, str):  # unknown to this hub when the client attached: nothing was answered
                    await self._elicitor.attach_to(call.context, session_id)
            return outcome

        return await numbered.calls.once(
            numbered.id,
            tool.name,
            do,
            repeatable=nature.repeat != "never" or call.host is not None,  # the other hub deduplicates the call itself
            stored=stored,
            restored=types.CallToolResult.model_validate_json,
            failed=failed,
        )

    # --- other machines ----------------------------------------------------------------------------------------------

    def _placed(self, tool: ToolLike, call: CallContext) -> CallContext:
        """Return the call on the machine that it names, by `host` or by an id, with that machine's own ids."""
        links = self._helm.hosts
        arguments = dict(call.params.arguments or {})
        if not isinstance(tool, Tool) or not tool.takes_host:
            # Tools that work here only must not ignore a host silently.
            ids = (arguments.get(name) for name in (*NAMING, "session_id", "task_id"))
            is_meant = arguments.get("host") in links.known() if isinstance(arguments.get("host"), str) else False
            if is_meant or any(links.split(one)[0] for one in ids if isinstance(one, str) and ":" in one):
                instead = "Start work there with codex_start and its host, or at a terminal: helmsman --host NAME"
                raise InvalidInput(f"{tool.name} works on this machine only. {instead}", parameter="host")
            return call
        hosts = {arguments.pop("host", None)} - {None, ""}
        if isinstance(several := arguments.get("sessionIds"), list):
            split = [links.split(one) if isinstance(one, str) else (None, one) for one in several]
            arguments["sessionIds"] = [one for _, one in split]
            hosts |= {host for host, _ in split}
            # Sessions of this machine alone need no host.
            if len(hosts) == 1:
                hosts -= {None}
        for name in NAMING:
            if isinstance(reference := arguments.get(name), str):
                host, arguments[name] = links.split(reference)
                hosts |= {host} - {None}
        if not hosts:
            return call
        if len(hosts) > 1 or not isinstance(host := hosts.pop(), str):
            raise InvalidInput("host and the ids name different machines. Name one.", parameter="host")
        return replace(call, host=host, params=call.params.model_copy(update={"arguments": arguments}))

    async def _called(self, tool: ToolLike, call: CallContext) -> CallOutcome:
        if call.host is not None:
            return await self._called_elsewhere(tool, call)
        outcome = await tool.called(call)
        if not isinstance(tool, Tool) or not tool.takes_host or not _is_unknown(outcome):
            return outcome
        # Some models leave out what the id of a session on another machine begins with.
        named = {value for name in NAMING if isinstance(value := (call.params.arguments or {}).get(name), str)}
        hosts = [name for name, helm in self._helm.hosts.opened.items() if not named.isdisjoint(helm.sessions)]
        # Exactly one: with several it would be a guess.
        return outcome if len(hosts) != 1 else await self._called_elsewhere(tool, replace(call, host=hosts[0]))

    async def _called_elsewhere(self, tool: ToolLike, call: CallContext) -> CallOutcome:
        host = str(call.host)
        try:
            return await tool.called(replace(call, helm=await self._helm.hosts.get(host)))
        except HelmsmanError as error:
            return failed(error, host)
        except (TypeError, ValueError, KeyError, AttributeError):
            # Another version of Helmsman may answer in another form.
            log.exception("%s gave %s an invalid result", host, tool.name)
            return failed(HostUnreachable("Its answer is invalid. Install the same version of Helmsman there."), host)

    def input_schema(self, name: str) -> dict[str, Any] | None:
        tool = self._named(name)
        if tool is None:
            return None
        # The SDK validates arguments by this schema, so it must be the listed one.
        return _with_host(tool, tool.listed(), sorted(self._helm.hosts.known())).input_schema


def _by_old_name(outcome: CallOutcome, called: str, name: str) -> CallOutcome:
    """Add to a result that the tool has another name."""
    if not isinstance(outcome, types.CallToolResult):
        return outcome
    note = types.TextContent(type="text", text=f"{called} is deprecated: call {name}.")
    return outcome.model_copy(update={"content": [*outcome.content, note]})


def _agent_of(tool: ToolLike) -> str | None:
    return tool.agent if isinstance(tool, Tool) else None


def _definition(tool: ToolLike) -> str:
    return tool.definition if isinstance(tool, Tool) else tool.name


def _listed_beside(tool: ToolLike, first: str, known: Mapping[str, Tool]) -> types.Tool:
    if not isinstance(tool, Tool):
        return tool.listed()
    return tool.listed_beside(known) if first == tool.name else tool.listed_like(first)


def _with_host(tool: ToolLike, listed: types.Tool, hosts: Sequence[str]) -> types.Tool:
    """Return a tool's listing with a `host` parameter, if there are other machines."""
    if not hosts or not isinstance(tool, Tool) or not tool.takes_host:
        return listed
    schema = listed.input_schema
    host = {"type": "string", "enum": list(hosts), "description": "Do it on this other machine."}
    return listed.model_copy(update={"input_schema": schema | {"properties": schema["properties"] | {"host": host}}})


_TASK_PREFIX: Final = "T-"


async def _by_sessions(call: CallContext) -> dict[str, Any]:
    """Return the arguments of a call, with the id of a task replaced by the id of its session.

    Raises:
        InvalidInput: The task has no session.
    """
    arguments = dict(call.params.arguments or {})
    given = arguments.get("sessionId")
    if isinstance(given, str) and given.startswith(_TASK_PREFIX):
        task = await call.helm.tasks.find(given)
        if task.session_id is None:
            raise InvalidInput(f"Task {task.id} has no session. Give the id of a session.", parameter="sessionId")
        arguments["sessionId"] = task.session_id
    return arguments


def _is_unknown(outcome: CallOutcome) -> bool:
    """Return whether the result says that the session or task does not exist."""
    told = (outcome.meta or {}).get(ERROR_META) if isinstance(outcome, types.CallToolResult) else None
    return isinstance(told, dict) and told.get("code") in ("session_not_found", "task_not_found")


def _in_words_of(listed: types.Tool, said: Callable[[str], str]) -> types.Tool:
    return listed.model_copy(
        update={
            "description": said(listed.description or ""),
            "input_schema": with_descriptions(listed.input_schema, said),
            "output_schema": listed.output_schema and with_descriptions(listed.output_schema, said),
        }
    )


def _spelt(name: str) -> str:
    """Normalize the spelling of a name: Claude Code, claude-code, claude_code."""
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
