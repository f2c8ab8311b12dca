"""What a tool is, how it is listed, and how a call becomes a result.

A tool is a value: its name, its texts, its input and output models, and the function that does it. Errors on purpose
(`HelmsmanError`, wrong arguments) become results with `isError` and the code in their structured content; protocol errors
are for protocol mistakes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from helmsman.base.shortening import TEXT_CHARS, cut, session_file, within
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.shapes.contract import Input, Output, which_names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp.server.context import ServerRequestContext

    from helmsman.mcp.doors import Doors
    from helmsman.service import Helmsman

log = logging.getLogger(__name__)

InputT = TypeVar("InputT", bound=Input)

CallOutcome = types.CallToolResult | types.InputRequiredResult | dict[str, Any]
"""A result, a request for input, or (as it goes over the wire) the handle of a task."""


READS: Final = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
ACTS: Final = types.ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
)
STOPS: Final = types.ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)


@dataclass(frozen=True, slots=True)
class CallContext:
    """One call of a tool: whom to ask, and the request it came with."""

    helm: Helmsman
    doors: Doors
    context: ServerRequestContext[Any, Any]
    params: types.CallToolRequestParams


class Offered(Protocol):
    """What a server can offer: something with a name that can be listed and called."""

    @property
    def name(self) -> str: ...

    def listed(self) -> types.Tool: ...

    async def called(self, call: CallContext) -> CallOutcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[InputT]):
    """`run` does it, asks for input, or hands out a task; `in_words` is the short text beside the structured content.

    However much a model or a command wrote, an answer has a size: what is too long is cut here, and says where the whole is.
    """

    name: str
    title: str
    description: str
    takes: type[InputT]
    gives: type[Output]
    annotations: types.ToolAnnotations
    run: Callable[[CallContext, InputT], Awaitable[Output | types.InputRequiredResult | dict[str, Any]]]
    in_words: Callable[[Any], str]

    def listed(self) -> types.Tool:
        return types.Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=_without_titles(self.takes.model_json_schema(by_alias=True)),
            output_schema=_without_titles(self.gives.model_json_schema(by_alias=True, mode="serialization")),
            annotations=self.annotations,
        )

    async def called(self, call: CallContext) -> CallOutcome:
        try:
            result = await self.run(call, _arguments(self.takes, call.params.arguments))
        except HelmsmanError as error:
            return failed(error)
        if not isinstance(result, Output):
            return result
        structured = result.as_dict()
        whole = session_file(structured["sessionId"]) if "sessionId" in structured else ""
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=cut(self.in_words(result), TEXT_CHARS, whole))],
            structured_content=within(structured, whole=whole),
            is_error=result.is_failure(),
        )


class Toolbox:
    """The tools a server offers."""

    def __init__(self, helm: Helmsman, doors: Doors, tools: Sequence[Offered]) -> None:
        self._helm = helm
        self._doors = doors
        self._tools = {tool.name: tool for tool in tools}

    @cached_property
    def _listing(self) -> Sequence[types.Tool]:
        """Made when it is first asked for: the schemas take longer than all else that a client's first reply waits for."""
        return [tool.listed() for tool in self._tools.values()]

    async def list(
        self, _context: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(self._listing))

    async def call(self, context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams) -> CallOutcome:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}. Use one of {', '.join(self._tools)}.")
        return await tool.called(CallContext(self._helm, self._doors, context, params))

    def input_schema(self, name: str) -> dict[str, Any] | None:
        return next((tool.input_schema for tool in self._listing if tool.name == name), None)


def _without_titles(schema: Any) -> Any:
    """A schema without the titles that pydantic makes of the names: they say nothing, and every client reads them."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_without_titles(item) for item in schema] if isinstance(schema, list) else schema


def failed(error: HelmsmanError) -> types.CallToolResult:
    """An error as the result of a call."""
    return types.CallToolResult(
        is_error=True,
        content=[types.TextContent(type="text", text=f"{error.code}: {cut(error.message, TEXT_CHARS)}")],
        structured_content=within(error.as_dict()),
    )


def _arguments(takes: type[InputT], arguments: dict[str, Any] | None) -> InputT:
    try:
        return takes.model_validate(arguments or {}, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "arguments"
        raise InvalidInput(f"{name}: {first['msg']}. {which_names(takes, name)}", parameter=name) from None
