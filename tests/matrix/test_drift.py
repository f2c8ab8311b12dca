"""Drift is noticed: what Helmsman relies on, compared with the schema each Codex generates of itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.codex.features import Feature, Version
from helmsman.testing import CodexHome
from tests.matrix import relied_on

pytestmark = pytest.mark.matrix


class Schema:
    """The generated schema, as far as the check needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def methods(self, file: str) -> dict[str, frozenset[str]]:
        """The methods of a kind of message, each with the fields of its params."""
        document = self._read(f"{file}.json")
        return {
            branch["properties"]["method"]["enum"][0]: self._fields(branch["properties"].get("params", {}), document)
            for branch in document["oneOf"]
        }

    def answer(self, name: str) -> frozenset[str]:
        document = self._read(f"v2/{name}.json")
        return self._fields(document, document)

    def items(self) -> dict[str, frozenset[str]]:
        document = self._read("ServerNotification.json")
        variants = document["definitions"]["ThreadItem"]["oneOf"]
        return {one["properties"]["type"]["enum"][0]: frozenset(one["properties"]) for one in variants}

    def _read(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self._folder / name).read_text(encoding="utf-8"))
        return document

    def _fields(self, schema: Mapping[str, Any], document: Mapping[str, Any]) -> frozenset[str]:
        reference = schema.get("$ref")
        if reference is not None:
            return self._fields(document["definitions"][reference.rpartition("/")[2]], document)
        fields = frozenset(schema.get("properties", {}))
        for union in ("oneOf", "anyOf", "allOf"):
            for branch in schema.get(union, ()):
                fields |= self._fields(branch, document)
        return fields


@pytest.fixture(scope="module")
def schema(codex_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Schema:
    place = tmp_path_factory.mktemp("drift")
    folder = place / "schema"
    env = CodexHome(place / "home").env
    for flags in (["--experimental"], []):  # the oldest has only one schema, and no such flag
        argv = [str(codex_binary), "app-server", "generate-json-schema", *flags, "--out", str(folder)]
        if subprocess.run(argv, env=env, capture_output=True, timeout=60, check=False).returncode == 0:
            return Schema(folder)
    pytest.fail("This Codex generates no schema")


def has(feature: Feature | relied_on.Since | None, version: Version) -> bool:
    return feature is None or feature.is_in(version)


def missing(
    uses: Mapping[str, Any], found: Mapping[str, frozenset[str]], version: Version, schema: Schema
) -> Iterator[str]:
    """What is relied on and not there, and what the feature table says is not there and is."""
    for method, used in uses.items():
        if not has(used.feature, version):
            if method in found:
                yield f"{method} is there, but {used.feature} says this version has it not"
            continue
        if method not in found:
            yield f"{method} is gone"
            continue
        fields = [*used.fields, *(field for field, feature in used.feature_fields if has(feature, version))]
        yield from (f"{method}: the field {field} is gone" for field in fields if field not in found[method])
        answer = schema.answer(used.answer) if used.answer is not None else frozenset[str]()
        yield from (f"{method}: its answer has no {field}" for field in used.answer_fields if field not in answer)


@pytest.mark.parametrize(
    ("file", "uses"),
    [
        ("ClientRequest", relied_on.REQUESTS),
        ("ServerNotification", relied_on.NOTIFICATIONS),
        ("ServerRequest", relied_on.QUESTIONS),
    ],
    ids=["requests", "notifications", "questions"],
)
def test_every_method_and_field_relied_on_is_there(
    schema: Schema, codex_version: tuple[int, int, int], file: str, uses: Mapping[str, Any]
) -> None:
    assert list(missing(uses, schema.methods(file), Version(*codex_version), schema)) == []


def test_every_item_relied_on_is_there(schema: Schema) -> None:
    found = schema.items()
    gone = [
        f"{kind}.{field}"
        for kind, fields in relied_on.ITEMS.items()
        for field in fields
        if field not in found.get(kind, frozenset())
    ]
    assert gone == []
