"""Schemas of tools for clients, reduced to what is needed to call a tool and to understand its answer.

Clients put them into their model's context in every conversation. Pydantic's own schemas are redundant: a title that
repeats the name, `anyOf … null` and `default: null` for every optional field, a definition for a type that occurs once.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from pydantic import BaseModel

_DEFS: Final = "#/$defs/"


# Tools are listed on every connection, and their models never change while the process runs.
@cache
def listed_schema(
    model: type[BaseModel], mode: Literal["validation", "serialization"], *, in_full: bool = False
) -> dict[str, Any]:
    """Return the schema of a tool's input (`validation`) or output (`serialization`).

    It has no `$ref`: definitions are inlined, because some clients drop `$defs` and then refuse the whole listing
    (TypeScript SDK 1.22). In an output, only the first occurrence has a description. A recursive type is expanded down
    to its first repetition, which then accepts anything. Unlisted parameters are left out, except with `in_full`.
    Cached, because it is slow.
    """
    schema = model.model_json_schema(by_alias=True, mode=mode)
    properties = schema.get("properties", {})
    # `options` of a start tool names these. They cost each conversation tokens and are rarely used.
    for name in [name for name, field in properties.items() if field.pop("unlisted", False) and not in_full]:
        del properties[name]
    definitions = {name: _for_callers(part) for name, part in schema.pop("$defs", {}).items()}
    return _shortened(schema, definitions, described=set(), takes=mode == "validation")


def _for_callers(definition: dict[str, Any]) -> dict[str, Any]:
    """Remove the docstring of the class, which is for developers."""
    return {key: part for key, part in definition.items() if key != "description"}


def _undescribed(definition: dict[str, Any]) -> dict[str, Any]:
    fields = {name: _for_callers(field) for name, field in definition.get("properties", {}).items()}
    return definition | {"properties": fields} if fields else definition


def _shortened(
    schema: dict[str, Any], definitions: dict[str, Any], *, described: set[str], takes: bool
) -> dict[str, Any]:
    """Return a schema (not: a table of schemas) in its short form, with the definitions that it refers to.

    `described` collects the names of the definitions that stand in it.
    """
    schema = dict(schema)
    if "$ref" in schema:
        name = schema.pop("$ref").removeprefix(_DEFS)
        found = definitions[name]
        # The second occurrence costs tokens and adds nothing. Inputs keep theirs: a model fills them in one by one.
        schema = (_undescribed(found) if name in described and not takes else found) | schema
        definitions = definitions | {name: {"type": found.get("type", "object")}}  # where it contains itself
        described.add(name)
    # Pydantic derives titles from names.
    schema.pop("title", None)
    # The default of JSON Schema.
    if schema.get("additionalProperties") is True:
        del schema["additionalProperties"]
    # Defaults of outputs tell nothing: an answer has the field or it does not.
    if "default" in schema and not (takes and _is_worth_listing(schema["default"])):
        del schema["default"]
    if ("enum" in schema or "const" in schema) and not takes:
        schema.pop("type", None)  # implied by the values; for inputs, some clients require it
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _shortened(schema[key], definitions, described=described, takes=takes)
    if "anyOf" in schema:
        schema["anyOf"] = [_shortened(part, definitions, described=described, takes=takes) for part in schema["anyOf"]]
    if "properties" in schema:
        required = [
            name for name in schema.get("required", ()) if takes or not _can_be_null(schema["properties"][name])
        ]  # None is left out of an answer
        if required:
            schema["required"] = required
        else:
            schema.pop("required", None)
        schema["properties"] = {
            name: _shortened(
                part if name in required else _without_null(part), definitions, described=described, takes=takes
            )
            for name, part in schema["properties"].items()
        }
    return schema


def _can_be_null(schema: dict[str, Any]) -> bool:
    return {"type": "null"} in schema.get("anyOf", ())


def _is_worth_listing(default: Any) -> bool:
    """Return whether a default is worth listing. False, empty and missing are the expected defaults."""
    return default is not None and default is not False and default not in ([], {})


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an optional field without null, which is accepted but never returned."""
    parts = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    match parts:
        case []:
            return schema
        case [only]:
            return {**only, **rest}
        case _:
            return {"anyOf": parts, **rest}
