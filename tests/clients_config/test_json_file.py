"""Values go into a JSON file and come out again, and nothing else in it moves."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.clients.json_file import JsonFile, NotReadable

ENTRY = {"command": "/bin/helmsman", "args": ["serve"], "env": {"A": "1"}}

COMMENTED = """\
// what I use
{
    /* the servers,
       in order */
    "mcpServers": {
        "one": { "command": "x", "args": [] }, // the first
        "two": {"url": "http://a//b"} // "quoted": {
    },
    "other": [1, 2, /* three */ 3,],
}
"""

STYLES = [
    "{}",
    "{ }\n",
    '{"mcpServers":{}}',
    '{"mcpServers": {"a": {"command": "x"}}, "z": null}',
    '{\n  "z": 1\n}',
    '{\n\t"mcpServers": {\n\t\t"a": {}\n\t}\n}\n',
    '{\r\n  "mcpServers": {\r\n    "a": {}\r\n  }\r\n}\r\n',
    '\ufeff{\n  "mcpServers": {}\n}\n',
    '{\n  "mcpServers": {\n    "a": {"x": 1}, "b": {"y": 2}\n  }\n}',
    COMMENTED,
    '{\n  "mcpServers": {\n    "a": {},\n    // nothing more\n  },\n}\n',
    '{\n  "mcpServers": {\n    "a": {} // no more\n    // at all\n  }\n}\n',
]


@pytest.mark.parametrize("text", STYLES)
def test_an_added_entry_can_be_removed_to_the_last_character(text: str) -> None:
    before = JsonFile(text, comments=True)
    path = ("mcpServers", "helmsman")
    had_servers = "mcpServers" in before.value
    empty = before.source(("mcpServers",)) if before.value.get("mcpServers") == {} else None

    added = before.with_value(path, ENTRY)
    assert added.value == before.value | {"mcpServers": {**before.value.get("mcpServers", {}), "helmsman": ENTRY}}
    removed = added.without(path if had_servers else path[:1])
    if empty is not None:
        removed = removed.with_source(("mcpServers",), empty)
    assert removed.text == text.replace("{ }", "{}")


@pytest.mark.parametrize("text", STYLES)
def test_every_comment_and_every_other_line_stays(text: str) -> None:
    added = JsonFile(text, comments=True).with_value(("mcpServers", "helmsman"), ENTRY)
    for comment in re.findall(r"//[^\r\n\"]*$|/\*.*?\*/", text, re.MULTILINE):
        assert comment in added.text
    assert ("\r\n" in text) == ("\r\n" in added.text)
    assert added.text.count("\r\n") in (0, added.text.count("\n"))


def test_an_entry_is_written_in_the_manner_of_the_file() -> None:
    added = JsonFile('{\n    "mcpServers": {\n        "a": {}\n    }\n}\n').with_value(("mcpServers", "b"), ENTRY)
    assert added.text == (
        '{\n    "mcpServers": {\n        "a": {},\n        "b": {\n            "command": "/bin/helmsman",\n'
        '            "args": ["serve"],\n            "env": {\n                "A": "1"\n            }\n'
        "        }\n    }\n}\n"
    )
    assert JsonFile('{"a": {"b": 1}}').with_value(("a", "c"), [1]).text == '{"a": {"b": 1, "c": [1]}}'


def test_replacing_a_value_keeps_the_comments_around_it() -> None:
    file = JsonFile(COMMENTED, comments=True)
    assert file.source(("mcpServers", "one", "command")) == '"x"'
    changed = file.with_value(("mcpServers", "one", "command"), "y")
    assert changed.text == COMMENTED.replace('"command": "x"', '"command": "y"')
    assert changed.with_source(("mcpServers", "one", "command"), '"x"').text == COMMENTED


def test_a_comment_above_a_removed_value_swallows_nothing() -> None:
    file = JsonFile('{"a": {\n  // about b\n  "b": 1, "c": 2 }}', comments=True)
    assert file.without(("a", "b")).value == {"a": {"c": 2}}
    last = JsonFile('{\n  "a": 1, // one\n  // two\n  "b": 2 }', comments=True).without(("b",))
    assert last.value == {"a": 1}
    assert "// two" in last.text


def test_of_two_members_with_one_name_the_last_counts() -> None:
    file = JsonFile('{"a": {"x": 1}, "a": {"y": 2}}')
    assert file.with_value(("a", "z"), 3).value == {"a": {"y": 2, "z": 3}}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "line 1, column 1: Expecting value"),
        ("[]", "line 1, column 1: Expecting an object"),
        ('{\n  "a": 1\n  "b": 2\n}', "line 3, column 3: Expecting ',' delimiter"),
        ('{"a": 1} x', "line 1, column 10: Extra data"),
        ("{'a': 1}", "line 1, column 2: Expecting property name"),
        ('{"a" 1}', "line 1, column 6: Expecting ':' delimiter"),
        ('{"a": [1 2]}', "line 1, column 10: Expecting ',' delimiter"),
        ('{"a": "x\ny"}', "line 1, column 9: Invalid control character"),
        ('{"a": "\\q"}', "line 1, column 8: Invalid \\escape"),
        ('{"a": tru}', "line 1, column 7: Expecting value"),
        ('{"a": 1,}', "line 1, column 9"),
        ("// x\n{}", "line 1, column 1: Expecting value"),
        ('{"a":' * 100_000, "too many levels"),
    ],
)
def test_an_invalid_json_is_refused_with_its_place(text: str, where: str) -> None:
    with pytest.raises(NotReadable, match=re.escape(where)):
        _ = JsonFile(text).value


def test_an_open_comment_is_refused() -> None:
    with pytest.raises(NotReadable, match="Extra data"):
        _ = JsonFile("{} /* x", comments=True).value


def test_a_value_that_is_no_object_takes_no_key() -> None:
    with pytest.raises(NotReadable, match="line 1, column 7 is not an object"):
        JsonFile('{"a": 1}').with_value(("a", "b"), 1)
    with pytest.raises(NotReadable, match=r"there is no a\.b"):
        JsonFile('{"a": {}}').with_source(("a", "b"), "1")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=4)


@given(objects, st.sampled_from([None, 2, 4, "\t"]), st.text(max_size=5), objects)
def test_any_file_is_read_as_json_does_and_changed_in_one_place(
    content: dict[str, Any], indent: int | str | None, key: str, value: dict[str, Any]
) -> None:
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    file = JsonFile(text)
    assert file.value == content
    changed = file.with_value((key,), value)
    assert json.loads(changed.text) == content | {key: value}
    if key in content:
        source = file.source((key,))
        assert source is not None
        assert changed.with_source((key,), source).text == text
    else:
        assert changed.without((key,)).text == text
