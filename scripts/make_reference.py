"""Writes docs/reference.md from the code: every tool with its parameters, every setting and every error.

    python scripts/make_reference.py            write it
    python scripts/make_reference.py --check    only say whether it is up to date

What is in the page is what the code tells its users anyway: a tool's own schema, an error's own docstring, and for what a
setting may be, the sentence with which a wrong value is refused.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generated_page import write_or_check
from helmsman import errors
from helmsman.errors import HelmsmanError, InvalidSetting
from helmsman.mcp.compat_tools import compat_tools
from helmsman.mcp.router_tool import router_tools
from helmsman.mcp.server import toolset_tools
from helmsman.mcp.toolset import Tool
from helmsman.operations.schemas import listed_schema
from helmsman.operations.texts import rendered
from helmsman.settings import PROJECT_CAN, SETTINGS, TOOLSETS, Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.mcp.toolset import ToolLike

INTRODUCTION = """\
# Reference

Made by `scripts/make_reference.py` from the code, and checked against it by the tests. Change the code, then run
`make reference`.

[Tools](#tools) · [Settings](#settings) · [Errors](#errors)
"""

TOOLSET_TEXTS = {
    "sessions": "The default, explained in [mcp.md](mcp.md).",
    "agents": "The same for any agent, explained in [mcp.md](mcp.md#any-agent).",
    "extras": "The rest of what Codex can do, explained in [mcp.md](mcp.md#extras).",
    "capabilities": "Outcomes that Helmsman verifies, explained in [outcomes.md](outcomes.md). Without `sessions` "
    "and `agents` there is `agent_respond` too.",
    "compat": "The tools of the removed `codex mcp-server`: see [switching.md](switching.md); not together with `router`.",
    "router": "One tool that takes plain words, explained in [mcp.md](mcp.md#plain-words). Not together with `compat`. "
    "The tools whose names begin with `_` are listed with `--expose-primitives` only. Every other agent that is installed "
    "has `codex` and the local ones of these under its own name: `claude`, `_claude_local_run`.",
}
DEFAULTS_ELSEWHERE = {
    "codex_path": "found: on PATH, else the wheel `openai-codex-cli-bin`",
    "codex_home": "`~/.codex`",
    "claude_path": "found: `claude` on PATH",
    "claude_home": "`~/.claude`",
    "state_dir": "the platform's state directory",
    "allowed_roots": "anywhere",
    "default_model": "as Codex is configured",
    "default_profile": "none",
    "default_config": "none",
}
"""Defaults that depend on the machine, or that mean no value."""


def reference() -> str:
    """Return the expected page."""
    return "\n".join([INTRODUCTION, *_tools(), *_settings(), *_errors()]) + "\n"


# --- tools -----------------------------------------------------------------------------------------------------------


def _tools() -> Iterator[str]:
    offered: dict[str, Sequence[ToolLike]] = {
        **{name: toolset_tools(name, ("sessions",)) for name in ("sessions", "agents", "extras", "capabilities")},
        "compat": compat_tools(),
        "router": router_tools({"codex": "Codex"}, expose_primitives=True),
    }
    yield (
        "## Tools\n\n`helmsman serve --tools …` (`HELMSMAN_TOOLS`) chooses the toolsets. "
        "A parameter with a star must be given.\n"
    )
    for toolset in TOOLSETS:
        yield f"### Toolset `{toolset}`\n\n{TOOLSET_TEXTS[toolset]}\n"
        for tool in offered[toolset]:
            yield from _tool(tool)


def _tool(tool: ToolLike) -> Iterator[str]:
    listed = tool.listed()
    yield f"#### `{listed.name}`\n\n{_escaped(' '.join((listed.description or '').split()), bar=False)}\n"
    schema = listed.input_schema
    if isinstance(tool, Tool):
        schema = rendered(listed_schema(tool.input_model, "validation", in_full=True), tool.voice.render)
    if schema.get("properties"):
        required = set(schema.get("required", ()))
        yield "| parameter | type | meaning |\n| --- | --- | --- |"
        for name, field in schema["properties"].items():
            star = "*" if name in required else ""
            yield f"| `{name}`{star} | {_type(field, schema)} | {_escaped(_meaning(field))} |"
        yield ""
    else:
        yield "Takes no parameters.\n"
    fields = (listed.output_schema or {}).get("properties")
    if fields:
        yield f"Returns {', '.join(f'`{name}`' for name in fields)}.\n"


def _meaning(field: Mapping[str, Any]) -> str:
    text = str(field.get("description", ""))
    default = field.get("default")
    if default is None or default is False or default == "" or "Default" in text:
        return text
    return f"{text} Default: {default}."


def _type(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return a type in a few words; the schema itself has every detail."""
    if "$ref" in field:
        return _type(schema.get("$defs", {}).get(str(field["$ref"]).rsplit("/", 1)[-1], {}), schema)
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in field:
            parts = (_type(part, schema) for part in field[key] if part.get("type") != "null")
            return " or ".join(dict.fromkeys(parts))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), schema)}"
    if field.get("type") == "object" and field.get("properties"):
        return f"object: {', '.join(f'`{name}`' for name in field['properties'])}"
    named = field.get("type", "any")
    return " or ".join(map(str, named)) if isinstance(named, list) else str(named)


# --- settings, errors ------------------------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    yield (
        "## Settings\n\nFlags win, then the environment, then the project's `helmsman.toml`, then your own; "
        "[configuration.md](configuration.md) has the rest of that file. A project's file may only narrow; what it "
        "would widen is ignored, and `helmsman doctor` shows it.\n"
    )
    yield "| variable | key in `helmsman.toml` | default | may be | meaning | a project's file can |"
    yield "| --- | --- | --- | --- | --- | --- |"
    with tempfile.TemporaryDirectory() as nowhere:
        place = Path(nowhere)
        chosen = load_settings({}, {"HOME": nowhere}, place, user_file=place / "none.toml")
        meanings = _meanings()
        for key, setting in SETTINGS.items():
            default = DEFAULTS_ELSEWHERE.get(key) or _default(chosen, key)
            meaning, project = meanings[key.removesuffix("_ms")], PROJECT_CAN[setting.project]
            said = " | ".join(map(_escaped, (_allowed(setting.variable, place), meaning, project)))
            names = ", ".join(f"`{name}`" for name in (setting.variable, *setting.other_names))
            yield f"| {names} | `{key}` | {default} | {said} |"
    yield ""


def _meanings() -> dict[str, str]:
    """Return what each setting means: the beginning of the docstring below its field."""
    (declared,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(declared, ast.ClassDef)
    meanings = {}
    for field, text in itertools.pairwise(declared.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            first = inspect.cleandoc(str(text.value.value)).partition("\n\n")[0]
            meanings[ast.unparse(field.target)] = " ".join(first.split()).removesuffix(".")
    return meanings


def _default(settings: object, key: str) -> str:
    if key.endswith("_ms"):
        seconds = getattr(settings, key.removesuffix("_ms"))
        return "" if seconds is None else f"{seconds * 1000:.0f}"
    value = getattr(settings, key)
    if isinstance(value, bool):
        return str(int(value))
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _allowed(variable: str, place: Path) -> str:
    """Return the possible values of a setting, as in the error about an invalid one."""
    try:
        load_settings({}, {"HOME": str(place), variable: "\x01"}, place, user_file=place / "none.toml")
    except InvalidSetting as error:
        return error.message.partition("Set it to ")[2].rstrip(".")
    raise AssertionError(f"{variable} takes anything")


def _errors() -> Iterator[str]:
    yield (
        "## Errors\n\nThe library raises the class; MCP tools and `--json` give the code. Retryable: the same call may work "
        "later with nothing changed.\n"
    )
    yield "| code | class | meaning | retryable |\n| --- | --- | --- | --- |"
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, HelmsmanError):
            meaning = " ".join(_escaped((value.__doc__ or "").partition("\n\n")[0]).split())
            yield f"| `{value.code}` | `{value.__name__}` | {meaning} | {'yes' if value.retryable else ''} |"
    yield ""


def _escaped(text: str, *, bar: bool = True) -> str:
    """Escape a text for Markdown."""
    text = text.replace("<", "&lt;").replace("\n", " ")
    return text.replace("|", "\\|") if bar else text


if __name__ == "__main__":
    sys.exit(write_or_check("reference.md", reference()))
