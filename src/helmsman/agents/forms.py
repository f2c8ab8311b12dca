"""Forms that MCP servers and agents ask users to fill in: a flat JSON schema, a prompt for each field."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from helmsman.base.json_values import mapping, optional_text, sequence, texts
from helmsman.errors import AnswerInvalid
from helmsman.model.questions import Prompt

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from helmsman.model.questions import Choice


def form_prompts(params: Mapping[str, Any]) -> list[Prompt]:
    """Return a prompt for each field: a boolean, a choice or free text."""
    prompts: list[Prompt] = []
    for name, schema in _fields(params).items():
        choices = _choices(schema)
        label, hint = optional_text(schema.get("title")) or name, optional_text(schema.get("description"))
        said = f"{label}: {hint}" if hint else label
        if schema.get("type") == "array" and (several := _choices(mapping(schema.get("items")))):
            said += f" (one or more of, separated by commas: {', '.join(several)})"
        titles = {value: title for value, title in choices.items() if title != value}
        prompts.append(Prompt(text=said, options=tuple(choices), key=name, descriptions=titles))
    return prompts


def form_content(params: Mapping[str, Any], choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the values of a form, from a choice for each field.

    Raises:
        AnswerInvalid: One does not have the type of its field.
    """
    needed = texts(mapping(params.get("requestedSchema")).get("required"))
    content: dict[str, Any] = {}
    for (name, schema), choice in zip(_fields(params).items(), choices, strict=True):
        text = choice.in_full
        # Optional fields without a value are left out: an empty text may be invalid.
        if text or name in needed:
            content[name] = _field_value(name, schema, text)
    return content


def _fields(params: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    properties = mapping(mapping(params.get("requestedSchema")).get("properties"))
    return {name: mapping(schema) for name, schema in properties.items()}


def _choices(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that a form field allows, each with its title; empty if it accepts any text."""
    if schema.get("type") == "boolean":
        return {"true": "true", "false": "false"}
    titled = [mapping(one) for one in sequence(schema.get("oneOf")) or sequence(schema.get("anyOf"))]
    if titled:
        return {str(one["const"]): str(one.get("title")) for one in titled if "const" in one}
    values, names = sequence(schema.get("enum")), sequence(schema.get("enumNames"))
    titles = names if len(names) == len(values) else values
    return {str(value): str(title) for value, title in zip(values, titles, strict=True)}


def _field_value(name: str, schema: Mapping[str, Any], text: str) -> Any:
    kind = schema.get("type")
    try:
        match kind:
            case "integer":
                return int(text)
            case "number":
                return _finite(text)
            case "boolean":
                return {"true": True, "false": False}[text]
            case "array":
                return _several(text, _choices(mapping(schema.get("items"))))
            case _:
                return text
    except (ValueError, KeyError):
        raise AnswerInvalid(f"{text!r} is not a valid {kind} for {name!r}. Give a value of that type.") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("JSON has no such number")
    return value


def _several(text: str, offered: Collection[str]) -> list[str]:
    """Return the values in a list with commas. Offered values may have commas themselves."""
    if not offered:
        return [part.strip() for part in text.split(",") if part.strip()]
    values: list[str] = []
    while text := text.lstrip(", "):
        begins = (
            one for one in offered if one and text.removeprefix(one).lstrip()[:1] in ("", ",") and text.startswith(one)
        )
        value = max(begins, key=len, default=None)
        if value is None:
            raise ValueError("it was not offered")
        values.append(value)
        text = text.removeprefix(value)
    return values
