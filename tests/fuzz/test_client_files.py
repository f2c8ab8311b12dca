"""The editors of clients' configuration files: one value changes, every other character stays."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import tomlkit
from hypothesis import assume, given
from hypothesis import strategies as st

from helmsman.clients.json_file import JsonFile, NotReadable
from helmsman.clients.toml_file import TomlFile
from tests.fuzz.effort import fuzzed

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
NAMES = TEXTS | st.sampled_from(["mcpServers", "helmsman", "servers", "//", "/*", "a.b", '"'])
SCALARS = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)
ENTRY = {"command": "helmsman", "args": ["serve"], "env": {"A": "1"}}

BLANKS = st.sampled_from(["", "", " ", "\n", "\t", "\n  ", "\r\n"])
COMMENTS = st.sampled_from(["", "", "", '// a " } ]\n', "/* b , { */", "//\n"])


@st.composite
def json_with_comments(draw: st.DrawFn, value: Any) -> str:
    """A value as a person may have written it."""

    def gap() -> str:
        return draw(BLANKS) + draw(COMMENTS) + draw(BLANKS)

    def separated(parts: list[str]) -> str:
        has_trailing_comma = draw(st.booleans())
        return ",".join(parts) + ("," + gap() if parts and has_trailing_comma else "")

    def written(value: Any) -> str:
        if isinstance(value, dict):
            members = [
                f"{gap()}{json.dumps(key, ensure_ascii=draw(st.booleans()))}{gap()}:{gap()}{written(item)}{gap()}"
                for key, item in value.items()
            ]
            return "{" + (separated(members) or gap()) + "}"
        if isinstance(value, list):
            return "[" + (separated([f"{gap()}{written(item)}{gap()}" for item in value]) or gap()) + "]"
        return json.dumps(value)

    return gap() + written(value) + gap()


@fuzzed(150)
@given(OBJECTS, st.data())
def test_a_file_with_comments_is_read_as_it_is_meant(content: dict[str, Any], data: st.DataObject) -> None:
    assert JsonFile(data.draw(json_with_comments(content)), comments=True).value == content


@fuzzed(150)
@given(OBJECTS, NAMES, st.data())
def test_an_entry_in_a_file_with_comments_changes_nothing_else(
    content: dict[str, Any], name: str, data: st.DataObject
) -> None:
    place: tuple[str, ...] = ("mcpServers", name) if isinstance(content.get("mcpServers", {}), dict) else (name,)
    file = JsonFile(data.draw(json_with_comments(content)), comments=True)
    changed = file.with_value(place, ENTRY)
    wanted = {**content}
    if len(place) == 2:
        wanted["mcpServers"] = {**content.get("mcpServers", {}), name: ENTRY}
    else:
        wanted[name] = ENTRY
    assert changed.value == wanted
    if file.source(place) is None:
        assert changed.without(place).value in (content, {**content, "mcpServers": {}})
    else:
        source = file.source(place)
        assert source is not None
        assert changed.with_source(place, source).text == file.text
    taken = file.without(place).value
    expected = {**content}
    if len(place) == 2 and "mcpServers" in content:
        expected["mcpServers"] = {key: item for key, item in content["mcpServers"].items() if key != name}
    elif len(place) == 1:
        expected.pop(name, None)
    assert taken == expected


@fuzzed(300)
@given(st.text(st.sampled_from('{}[]",:/*\\\n\t a1-.eE+utfnrl\ufeff'), max_size=40), st.booleans())
def test_any_text_is_read_as_json_reads_it_or_refused(text: str, comments: bool) -> None:
    try:
        value = JsonFile(text, comments=comments).value
    except NotReadable:
        value = None
    try:
        expected = json.loads(text.removeprefix("\ufeff"))
    except ValueError:
        expected = None
    if isinstance(expected, dict):
        assert value == expected
    elif not comments:
        assert value is None


TOML_SCALARS = st.booleans() | st.integers(-(10**6), 10**6) | TEXTS
TOML_NAMES = st.sampled_from(["mcp_servers", "model", "a", "b c", "helmsman", "x.y", '"', "é"])
TABLES = st.recursive(
    TOML_SCALARS,
    lambda inner: st.lists(TOML_SCALARS, max_size=3) | st.dictionaries(TOML_NAMES, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def toml_files(draw: st.DrawFn) -> str:
    """A file as a person may have it: comments and blank lines between the lines, either kind of line end."""
    content = draw(st.dictionaries(TOML_NAMES.filter(lambda name: name != "mcp_servers"), TABLES, max_size=4))
    servers = draw(
        st.dictionaries(st.sampled_from(["other", "b c"]), st.dictionaries(TOML_NAMES, TOML_SCALARS, max_size=2))
    )
    text = tomlkit.dumps({**content, **({"mcp_servers": servers} if servers else {})})
    lines: list[str] = []
    for line in text.split("\n"):
        lines += draw(st.lists(st.sampled_from(["", "# [not.a.table]", "# a = 'b", "  "]), max_size=1))
        lines.append(line + draw(st.sampled_from(["", "", "  # said"])))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return newline.join(lines) + draw(st.sampled_from(["", newline]))


@fuzzed(200)
@given(toml_files())
def test_a_table_put_into_a_toml_file_comes_out_again_to_the_last_character(text: str) -> None:
    file = TomlFile(text)
    place = ("mcp_servers", "helmsman")
    assume(file.source(place) is None)
    changed = file.with_value(place, ENTRY)
    content = tomllib.loads(text)
    assert changed.value == {**content, "mcp_servers": {**content.get("mcp_servers", {}), "helmsman": ENTRY}}
    assert all(line in changed.text for line in text.split("\n"))
    back = changed.without(place)
    assert back.value in (content, {**content, "mcp_servers": {}})
    assert back.text in (text, text + "\n", text + "\r\n")
