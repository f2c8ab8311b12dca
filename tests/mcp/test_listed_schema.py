"""How tools are listed: in few words, with every name they ever had, and so that a null is as good as nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from pydantic import Field

from helmsman.mcp.primitives import PRIMITIVES
from helmsman.mcp.toolset import Tool
from helmsman.operations.schemas import listed_schema
from helmsman.shapes.contract import Input, Output
from tests.listings import AT_MOST, OFFERED, counts, fields, listed_before, listed_now

PRIMITIVE_NAMES = {
    "_codex_local_run",
    "_codex_local_exec",
    "_codex_local_resume",
    "_codex_local_status",
    "_codex_local_wait",
    "_codex_local_cancel",
    "_codex_local_results",
    "_codex_cloud_submit",
    "_codex_cloud_status",
    "_codex_cloud_wait",
    "_codex_cloud_cancel",
    "_codex_cloud_results",
    "_codex_cloud_list_tasks",
    "_codex_cloud_list_environments",
    "_codex_cloud_github_setup",
}
READING = {name for name in PRIMITIVE_NAMES if name.endswith(("_status", "_wait", "_tasks", "_environments", "_setup"))}
READING |= {"_codex_local_results"}
"""Those that change nothing. What a cloud task gave can be applied."""

BEFORE = [tool for tools in listed_before().values() for tool in tools]


@pytest.mark.parametrize(("toolset", "tokens"), counts().items(), ids=counts())
def test_a_listing_is_a_quarter_shorter_than_it_was(toolset: str, tokens: tuple[int, int]) -> None:
    now, before = tokens
    assert now / before <= AT_MOST, toolset


@pytest.mark.parametrize("before", BEFORE, ids=lambda tool: tool["name"])
def test_no_name_is_lost_and_none_means_something_else(before: dict[str, Any]) -> None:
    now = listed_now()[before["name"]]
    tool = next(tool for tool in OFFERED if tool.name == before["name"])
    assert isinstance(tool, Tool)
    accepted = listed_schema(tool.input_model, "validation", in_full=True)
    for part in ("inputSchema", "outputSchema"):
        known = dict(fields(accepted if part == "inputSchema" else now[part]))
        for path, field in fields(before[part]):
            assert path in known, path
            assert _kinds(field) == _kinds(known[path]), path
            assert set(field.get("enum", ())) <= set(known[path].get("enum", ())), path
            for bound in ("minimum", "maximum", "exclusiveMinimum"):
                assert field.get(bound) == known[path].get(bound), path
    assert set(now["inputSchema"].get("required", ())) <= set(before["inputSchema"].get("required", ()))
    assert set(now["outputSchema"].get("required", ())) >= set(before["outputSchema"].get("required", ()))
    assert (before["title"], before["annotations"]) == (now["title"], now["annotations"]) or (
        before["name"] == "_codex_cloud_cancel"  # it keeps a reason now
    )


def _kinds(field: Any) -> set[str]:
    """What a value may be. An enumeration is one of words here, whether or not that is said."""
    if "anyOf" in field:
        return {kind for part in field["anyOf"] for kind in _kinds(part)} - {"null"}
    return {field.get("type", "string" if "enum" in field or "const" in field else "any")}


@pytest.mark.parametrize("tool", OFFERED, ids=lambda tool: tool.name)
def test_a_listed_tool_says_nothing_twice(tool: Any) -> None:
    listed = tool.listed()
    for schema in (listed.input_schema, listed.output_schema):
        assert schema["type"] == "object"
        parts = list(_parts(schema))
        assert not any(isinstance(part.get("title"), str) for part in parts)
        assert {"type": "null"} not in parts
        assert None not in [part.get("default", 0) for part in parts]
        assert not [part for part in parts if "$ref" in part or "$defs" in part], "some clients cannot follow them"


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and all schemas in it."""
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    for part in inner:
        yield from _parts(part)


@pytest.mark.parametrize("tool", OFFERED, ids=lambda tool: tool.name)
def test_a_null_is_as_good_as_an_argument_that_is_left_out(tool: Any) -> None:
    schema = tool.listed().input_schema
    properties = schema["properties"]
    one = {name: field.get("enum", ["x"])[0] for name, field in properties.items()}
    is_list = {name for name, field in properties.items() if field.get("type") == "array"}
    needed = {name: ["x"] if name in is_list else one[name] for name in schema.get("required", ())}
    if tool.name == "codex":
        needed = {"request": "fix the parser"}
    read = partial(tool.input_model.read, whole="arguments")
    nothing = {name: None for name in properties if name not in needed}
    assert read(needed | nothing) == read(needed)
    assert read(needed | nothing).model_fields_set == read(needed).model_fields_set
    for name in (name for name, field in properties.items() if "properties" in field):
        assert read(needed | {name: dict.fromkeys(properties[name]["properties"])})


@pytest.mark.parametrize("primitive", PRIMITIVES, ids=lambda primitive: primitive.name)
def test_a_primitive_explains_itself(primitive: Any) -> None:
    tool = primitive.listed()
    takes, gives = tool.input_schema, tool.output_schema
    assert tool.title
    assert len(tool.description) > 100
    for what in (r"\blike (?!_codex)", r"\bReturns\b", r"\bNot (?:for|while|an|a|all)\b"):  # analogy, answer, when not
        assert re.search(what, tool.description), what
    assert takes["additionalProperties"] is False
    for name, field in takes["properties"].items():
        assert len(field["description"]) > 15, name
    assert "status" in gives["properties"] or tool.name.endswith(("_tasks", "_environments", "_setup"))
    assert tool.annotations.read_only_hint is (tool.name in READING)
    stops_nothing = tool.name == "_codex_cloud_cancel"  # nobody can: it keeps the reason and tells where a person can
    assert tool.annotations.destructive_hint is (None if tool.name in READING else not stops_nothing)
    assert tool.annotations.open_world_hint is not None


def test_there_are_fifteen_primitives() -> None:
    assert {primitive.name for primitive in PRIMITIVES} == PRIMITIVE_NAMES


def test_a_wait_has_the_documented_defaults() -> None:
    times = ("timeout_sec", "initial_delay_sec", "poll_interval_sec")
    taken = {one.name: one.listed().input_schema["properties"] for one in PRIMITIVES}
    for tool, defaults in {"_codex_local_wait": (300, 0, 5), "_codex_cloud_wait": (300, 2, 5)}.items():
        assert tuple(taken[tool][name].get("default") for name in times) == defaults


class Node(Output):
    """A tree of any depth, at the top of the module: only there can it refer to itself."""

    name: str
    below: list[Node] = Field(default_factory=list)


def test_a_type_that_contains_itself_is_listed_down_to_its_first_repetition() -> None:
    class Forest(Output):
        tree: Node

    leaf = {"type": "array", "items": {"type": "object"}}
    node = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "below": leaf},
        "required": ["name"],
    }
    forest = {"type": "object", "properties": {"tree": node}, "required": ["tree"]}
    assert listed_schema(Forest, "serialization") == forest
    assert listed_schema(Node, "serialization") == node


def test_optional_fields_lose_null_and_definitions_are_inlined() -> None:
    class Leaf(Output):
        name: str = Field(description="What it is called.")
        size: int | None = None

    class Tree(Output):
        """Two leaves, and one."""

        first: Leaf
        others: list[Leaf]
        maybe: list[int | None] | None = None
        always: int | None

    class Basket(Input):
        trees: dict[str, int] | None = None
        colour: str = "green"

    def leaf(**said: str) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"name": {"type": "string", **said}, "size": {"type": "integer"}},
            "required": ["name"],
        }

    assert listed_schema(Tree, "serialization") == {
        "type": "object",
        "description": "Two leaves, and one.",
        "properties": {
            "first": leaf(description="What it is called."),
            "others": {"type": "array", "items": leaf()},
            "maybe": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
            "always": {"type": "integer"},
        },
        "required": ["first", "others"],
    }
    assert listed_schema(Basket, "validation") == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "trees": {"type": "object", "additionalProperties": {"type": "integer"}},
            "colour": {"type": "string", "default": "green"},
        },
    }
