"""Drift of the Agent Client Protocol is noticed: what Helmsman relies on, and the schemas that its packages carry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import relied_on_acp
from tests.real_agents import CACHE

pytestmark = pytest.mark.matrix

_MODULES = CACHE / "node_modules"
SCHEMAS = {
    str(path.relative_to(_MODULES).parents[2]): path
    for path in sorted(_MODULES.glob("**/@agentclientprotocol/sdk/schema/v1/schema.json"))
}
"""The newest SDK, and those that adapters have of their own."""


class Schema:
    """A schema of the protocol, as far as the check needs it."""

    def __init__(self, path: Path) -> None:
        self._definitions: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["$defs"]

    def methods(self) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
        """Each method with the fields of its parameters and of its answer."""
        found: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        for name, definition in self._definitions.items():
            method = definition.get("x-method")
            if method is not None:
                asked, answered = found.get(method, (frozenset[str](), frozenset[str]()))
                fields = self.fields(definition)
                found[method] = (asked, answered | fields) if name.endswith("Response") else (asked | fields, answered)
        return found

    def updates(self) -> dict[str, frozenset[str]]:
        variants = self._definitions["SessionUpdate"]["oneOf"]
        return {one["properties"]["sessionUpdate"]["const"]: self.fields(one) for one in variants}

    def words(self, name: str) -> frozenset[str]:
        definition = self._definitions.get(name, {})
        branches = [*definition.get("oneOf", ()), *definition.get("anyOf", ())]
        return frozenset(one["const"] for one in branches if "const" in one)

    def of(self, name: str) -> frozenset[str]:
        return self.fields(self._definitions.get(name, {}))

    def fields(self, schema: Mapping[str, Any]) -> frozenset[str]:
        reference = schema.get("$ref")
        if reference is not None:
            return self.fields(self._definitions[reference.rpartition("/")[2]])
        fields = frozenset(schema.get("properties", {}))
        for union in ("oneOf", "anyOf", "allOf"):
            for branch in schema.get(union, ()):
                fields |= self.fields(branch)
        return fields


def changed(schema: Schema) -> Iterator[str]:
    """What is relied on and is not there, and words that nobody here knows."""
    methods, updates = schema.methods(), schema.updates()
    for method, used in relied_on_acp.METHODS.items():
        if method not in methods:
            yield f"{method} is gone"
            continue
        asked, answered = methods[method]
        yield from (f"{method}: the field {field} is gone" for field in used.fields if field not in asked)
        yield from (f"{method}: its answer has no {field}" for field in used.answer if field not in answered)
    yield from (f"{method} is now part of the protocol" for method in relied_on_acp.OUTSIDE if method in methods)
    for kind, fields in relied_on_acp.UPDATES.items():
        if kind not in updates:
            yield f"the update {kind} is gone"
            continue
        yield from (f"the update {kind}: the field {field} is gone" for field in fields if field not in updates[kind])
    for name, words in relied_on_acp.WORDS.items():
        found = schema.words(name)
        yield from (f"{name}: {word} is gone" for word in words if word not in found)
        yield from (f"{name}: {word} is new" for word in sorted(found - set(words)))
    for name, fields in relied_on_acp.FIELDS.items():
        yield from (f"{name}: the field {field} is gone" for field in fields if field not in schema.of(name))


@pytest.mark.parametrize("path", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_all_that_is_relied_on_is_in_the_protocol(path: Path) -> None:
    assert list(changed(Schema(path))) == []


def test_a_change_is_named(tmp_path: Path) -> None:
    path = next(iter(SCHEMAS.values()), None)
    if path is None:
        pytest.skip("The agents are not here: python scripts/fetch_agents.py")
    document = json.loads(path.read_text(encoding="utf-8"))
    definitions = document["$defs"]
    del definitions["PromptRequest"]["properties"]["prompt"]
    definitions["SessionUpdate"]["oneOf"] = definitions["SessionUpdate"]["oneOf"][1:]
    definitions["StopReason"]["oneOf"].append({"type": "string", "const": "tired"})
    (tmp_path / "schema.json").write_text(json.dumps(document), encoding="utf-8")
    assert list(changed(Schema(tmp_path / "schema.json"))) == [
        "session/prompt: the field prompt is gone",
        "the update user_message_chunk is gone",
        "StopReason: tired is new",
    ]
