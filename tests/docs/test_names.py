"""`docs/appendix/names.md`: every row of it is held to the code, so that whoever knows a name from elsewhere finds it here.

How a reference is written is said at the top of the page; `_exists` reads them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path
from typing import Any

import click
import pytest

import helmsman
from helmsman.cli.app import app
from helmsman.errors import InvalidSetting
from helmsman.mcp.compat_schema import BadArguments, read_codex, read_reply
from helmsman.mcp.compat_tools import compat_tools
from helmsman.mcp.router_tool import router_tools
from helmsman.mcp.toolset import Tool
from helmsman.model import events, questions
from helmsman.model.options import TurnOptions
from helmsman.operations.schemas import listed_schema
from helmsman.settings import OTHER_TABLES, SETTINGS, load_settings
from helmsman.tasks.model import Task
from tests.docs.pages import ROOT, read
from tests.listings import OFFERED, fields, listed_now

PAGE = ROOT / "docs" / "appendix" / "names.md"
OBSOLETE = "## Obsolete"
_SPAN = re.compile(r"`([^`]+)`")
_TOOL = re.compile(r"(?P<compat>compat:)?(?P<tool>_?(?:codex|claude|gemini)[\w-]*)(?P<rest>.*)")


def _rows(page: str) -> Iterator[tuple[str, str]]:
    for line in page.splitlines():
        if line.startswith("| ") and not line.startswith(("| ---", "| there |")):
            there, here = (cell.strip() for cell in line.strip("|").split(" | "))
            yield there, here


HELD, OLD = (list(_rows(part)) for part in read(PAGE).split(OBSOLETE))
REFERENCES = sorted({reference for _, here in HELD for reference in _SPAN.findall(here)})


# --- what the page says ----------------------------------------------------------------------------------------------


def test_every_row_has_a_name_and_a_place() -> None:
    assert len(HELD) > 300
    for there, here in [*HELD, *OLD]:
        assert _SPAN.findall(there), there
        assert here, there
    for there, here in HELD:
        assert _SPAN.findall(here), there
    for there, why in OLD:
        assert len(why.split()) > 4, there
        assert why.endswith("."), there


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_reference_leads_somewhere(reference: str) -> None:
    assert _exists(reference), f"{reference} leads nowhere."


def test_obsolete_names_are_not_used() -> None:
    tools = {*_listed(), *_compat()}
    for there, _ in OLD:
        for name in _SPAN.findall(there):
            assert name not in tools
            assert name not in _variables()


@pytest.mark.parametrize(
    "reference",
    [
        "codex_begin",
        "codex_start(directory)",
        "codex_status.answer",
        "codex_status.pendingQuestion.ids",
        "codex_status.status = finished",
        "codex_start(sandbox) = none",
        "compat:codex(folder)",
        "compat:codex-reply.text",
        "HELMSMAN_NOTHING",
        "HELMSMAN_ENGINE = cloud",
        "helmsman begin",
        "helmsman serve --port-number",
        "helmsman.toml:engines",
        "run_step(retries)",
        "Helmsman.begin",
        "Task.owner_name",
        "item:thought",
        "answer:perhaps",
        "codex:thread/begin",
        "nonsense",
    ],
)
def test_a_reference_to_nothing_is_noticed(reference: str) -> None:
    assert not _exists(reference)


# --- meaning of references -------------------------------------------------------------------------------------------


def _exists(reference: str) -> bool:
    kind, colon, rest = reference.partition(":")
    match kind if colon else "":
        case "codex":
            return re.search(rf"(?<![\w/]){re.escape(rest)}(?![\w/])", _codex_sources()) is not None
        case "item":
            return rest in _item_types()
        case "answer":
            return rest in {
                value for name, value in vars(questions).items() if name.isupper() and isinstance(value, str)
            }
        case "helmsman.toml":
            return rest in {*OTHER_TABLES, *SETTINGS}
        case _:
            pass
    name, _, value = reference.partition(" = ")
    if reference.startswith("helmsman "):
        return _is_command(reference.removesuffix(" …").split()[1:])
    if re.fullmatch(r"[A-Z0-9_]+", name):
        return name in _variables() and (not value or _is_allowed(name, value))
    if (found := _TOOL.fullmatch(name)) is not None:
        return _is_in_tool(found["tool"], found["rest"], value, compat=bool(found["compat"]))
    return _is_in_library(reference)


def _is_in_tool(tool: str, rest: str, value: str, *, compat: bool) -> bool:
    listed = _compat() if compat else _listed()
    if tool not in listed or not rest:
        return tool in listed
    part, path = ("inputSchema", rest[1:-1]) if rest.startswith("(") else ("outputSchema", rest[1:])
    if compat and part == "inputSchema":
        return _is_taken(tool, path)
    field = dict(fields(listed[tool][part])).get(tuple(path.split(".")))
    return field is not None and (not value or value in (*field.get("enum", ()), field.get("const")))


def _is_taken(tool: str, name: str) -> bool:
    """Whether compat knows an argument: it takes some that it does not list, as the original did."""
    try:
        (read_codex if tool == "codex" else read_reply)({"prompt": "x", name: "never" if "policy" in name else {}})
    except BadArguments as error:
        return "unknown field" not in str(error) and "must be provided" not in str(error)
    return True


def _is_command(words: list[str]) -> bool:
    command: click.Command | None = app
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command, words = command.get_command(click.Context(command), words[0]), words[1:]
    if command is None or not words:
        return command is not None
    return any(words[0] in (*option.opts, *option.secondary_opts) for option in command.params)


def _is_allowed(variable: str, value: str) -> bool:
    try:
        load_settings({}, {"HOME": "/nowhere", variable: value}, Path("/"), user_file=Path("/nowhere/none.toml"))
    except InvalidSetting:
        return False
    return True


def _is_in_library(reference: str) -> bool:
    name, _, parameter = reference.rstrip(")").partition("(")
    first, *rest = name.split(".")
    if first == "Task":
        return len(rest) == 1 and rest[0] in Task.__struct_fields__
    if first not in helmsman.__all__:
        return False
    found = reduce(lambda known, part: getattr(known, part, None), rest, getattr(helmsman, first))
    if found is None or not parameter:
        return found is not None
    return parameter in {*inspect.signature(found).parameters, *TurnOptions.__annotations__}


@cache
def _listed() -> dict[str, dict[str, Any]]:
    """Every tool, with all parameters that it accepts."""
    others = router_tools({"claude": "Claude Code", "gemini": "Gemini"}, expose_primitives=True)
    listed = listed_now() | {tool.name: tool.listed().model_dump(by_alias=True, mode="json") for tool in others}
    for tool in OFFERED:
        if isinstance(tool, Tool):
            listed[tool.name]["inputSchema"] = listed_schema(tool.input_model, "validation", in_full=True)
    return listed


@cache
def _compat() -> dict[str, Any]:
    return {tool.name: tool.listed().model_dump(by_alias=True, mode="json") for tool in compat_tools()}


@cache
def _variables() -> set[str]:
    """What Helmsman reads, and what its tests with an account do."""
    with_account = (ROOT / "tests" / "live" / "test_account.py").read_text(encoding="utf-8")
    return {
        *re.findall(r"\bCODEX_E2E\b", with_account),
        *(name for setting in SETTINGS.values() for name in (setting.variable, *setting.other_names)),
    }


@cache
def _item_types() -> set[str]:
    kinds = (one for one in vars(events).values() if isinstance(one, type) and issubclass(one, events.Item))
    return {kind.type for kind in kinds}


@cache
def _codex_sources() -> str:
    """Return all of Codex's names in its protocol, as they are spelled."""
    files = sorted((ROOT / "src" / "helmsman" / "agents" / "codex").rglob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8") for file in files)
