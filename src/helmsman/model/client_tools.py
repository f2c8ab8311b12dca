"""Functions of a program that the agent of a session may call: their descriptions and results."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from helmsman.base.structs import Value
from helmsman.errors import InvalidInput

ToolFunction: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[str]]
"""Takes the model's arguments and returns the text for the model. The model sees its exceptions too."""

# The names that model providers allow for functions.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolDefinition(Value, frozen=True, kw_only=True):
    """Definition of a function for the model. `input_schema` is the JSON schema of its arguments, an object."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


class ClientTool(Value, frozen=True, kw_only=True):
    """Function that a program offers to a session.

    It runs in the program, without a sandbox and without approval: offer only what the agent may do.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    run: ToolFunction

    @property
    def definition(self) -> ToolDefinition:
        return ToolDefinition(name=self.name, description=self.description, input_schema=self.input_schema)


class ToolResult(Value, frozen=True, kw_only=True):
    """Result of a call, for the model."""

    text: str
    success: bool = True


def definitions_of(tools: Sequence[ClientTool | ToolDefinition]) -> tuple[ToolDefinition, ...]:
    """Check functions and return their definitions for the agent.

    Raises:
        InvalidInput: A name, a description or a schema is invalid, or two have the same name.
    """
    definitions = tuple(tool.definition if isinstance(tool, ClientTool) else tool for tool in tools)
    for tool in definitions:
        if not _NAME.fullmatch(tool.name):
            raise _wrong(f"{tool.name!r} cannot be the name of a tool. Use up to 64 letters, digits, _ and -.")
        if not tool.description.strip():
            raise _wrong(f"The tool {tool.name} has no description. Say what it does: the model sees nothing else.")
        if tool.input_schema.get("type") != "object":
            raise _wrong(f"The input schema of the tool {tool.name} has to be of the type object.")
    if len({tool.name for tool in definitions}) < len(definitions):
        raise _wrong("Two tools have the same name. Give each its own.")
    return definitions


def functions_of(tools: Sequence[ClientTool | ToolDefinition]) -> dict[str, ToolFunction]:
    """Return the functions of this process by name. Definitions from other processes have no function."""
    return {tool.name: tool.run for tool in tools if isinstance(tool, ClientTool)}


async def result_of(function: ToolFunction, arguments: Mapping[str, Any]) -> ToolResult:
    """Call a function. An exception becomes a failed result. The text is always valid Unicode."""
    try:
        text, success = str(await function(arguments)), True
    except Exception as error:  # noqa: BLE001 - an error of the program is reported to the model
        # Half of a surrogate pair cannot be encoded, so it could not be sent to the agent.
        text, success = f"{type(error).__name__}: {error}", False
    return ToolResult(text=text.encode("utf-8", "backslashreplace").decode("utf-8"), success=success)


def _wrong(message: str) -> InvalidInput:
    return InvalidInput(message, parameter="tools")
