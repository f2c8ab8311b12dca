"""The schema of a model as clients get it: what one must read to call a tool and to understand its answer, and no more.

Clients put it into their model's context, in every conversation anew. Pydantic's own says much twice: a title that is the
name again, `anyOf … null` and `default: null` around whatever can be left out, a definition for what occurs once.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from pydantic import BaseModel

_DEFS: Final = "#/$defs/"


@cache
def listed_schema(
    model: type[BaseModel], mode: Literal["validation", "serialization"], *, in_full: bool = False
) -> dict[str, Any]:
    """Return the schema of what a tool takes (`validation`) or gives (`serialization`).

    It has no `$ref`: every definition stands where it is used, because some clients drop `$defs` and then refuse the whole
    listing (TypeScript SDK 1.22). In an answer it is described only where it first stands. A type that contains itself is
    listed down to its first repetition, which may be anything of its kind. Parameters that are marked as unlisted are left
    out, except `in_full`. Made once in a process: it takes long.
    """
    schema = model.model_json_schema(by_alias=True, mode=mode)
    properties = schema.get("properties", {})
    for name in [name for name, field in properties.items() if field.pop("unlisted", False) and not in_full]:
        del properties[name]
    definitions = {name: _for_callers(part) for name, part in schema.pop("$defs", {}).items()}
    return _shortened(schema, definitions, described=set(), takes=mode == "validation")


def _for_callers(definition: dict[str, Any]) -> dict[str, Any]:
    """Without the docstring of its class, which is for whoever reads the code."""
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
        schema = (_undescribed(found) if name in described and not takes else found) | schema
        definitions = definitions | {name: {"type": found.get("type", "object")}}  # where it contains itself
        described.add(name)
    schema.pop("title", None)
    if schema.get("additionalProperties") is True:
        del schema["additionalProperties"]
    if "default" in schema and not (takes and _is_worth_listing(schema["default"])):
        del schema["default"]
    if ("enum" in schema or "const" in schema) and not takes:
        schema.pop("type", None)  # the values say it; of what a tool takes some clients want to hear it all the same
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _shortened(schema[key], definitions, described=described, takes=takes)
    if "anyOf" in schema:
        schema["anyOf"] = [_shortened(part, definitions, described=described, takes=takes) for part in schema["anyOf"]]
    if "properties" in schema:
        required = [
            name for name in schema.get("required", ()) if takes or not _can_be_null(schema["properties"][name])
        ]  # what is None is left out of an answer
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
    """Whether one has to be told of a default. Of what is off, empty or nothing when it is left out, nobody has."""
    return default is not None and default is not False and default not in ([], {})


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of what can be left out: then it need not be null. (A null is taken, and never given.)"""
    parts = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    match parts:
        case []:
            return schema
        case [only]:
            return {**only, **rest}
        case _:
            return {"anyOf": parts, **rest}
