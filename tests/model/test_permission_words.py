from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.model.question_text import permission_words


def _entry(access: str, path: dict[str, Any]) -> dict[str, Any]:
    return {"fileSystem": {"entries": [{"access": access, "path": path}]}}


@pytest.mark.parametrize(
    ("granted", "words"),
    [
        ({"network": {"enabled": True}}, ["network access"]),
        ({"network": None, "fileSystem": None}, []),
        ({"network": {"enabled": False}}, []),
        ({"fileSystem": {"read": ["/"], "write": ["/"]}}, ["read everything", "write anywhere"]),
        ({"fileSystem": {"read": None, "write": ["/a b", "/c"]}}, ['write to "/a b"', "write to /c"]),
        (_entry("write", {"type": "path", "path": "/x"}), ["write to /x"]),
        (_entry("write", {"type": "path", "path": "//"}), ["write anywhere"]),
        (_entry("write", {"type": "special", "value": {"kind": "root"}}), ["write anywhere"]),
        (_entry("read", {"type": "special", "value": {"kind": "root"}}), ["read everything"]),
        (_entry("deny", {"type": "glob_pattern", "pattern": "**/.env"}), ["no access to whatever matches **/.env"]),
        (_entry("write", {"type": "special", "value": {"kind": "slash_tmp"}}), ["write to /tmp"]),
        (
            _entry("write", {"type": "special", "value": {"kind": "project_roots", "subpath": ".git"}}),
            ["write to the project's own directories, in there .git"],
        ),
        # What Codex says twice is told once.
        (
            {"fileSystem": {"write": ["/x"], "entries": [{"access": "write", "path": {"type": "path", "path": "/x"}}]}},
            ["write to /x"],
        ),
    ],
)
def test_permissions_are_reported_in_words(granted: Any, words: list[str]) -> None:
    assert permission_words(granted) == words


@pytest.mark.parametrize(
    "granted",
    [
        {"macos": {"accessibility": True, "marker": 1}},
        {"network": {"enabled": True, "marker": ["example.com"]}},
        {"fileSystem": {"marker": 3}},
        {"fileSystem": {"entries": [{"access": "marker", "path": {"type": "path", "path": "/x"}}]}},
        {"fileSystem": {"entries": [{"access": "write", "path": {"type": "marker"}}]}},
        {"fileSystem": {"entries": [{"access": "write", "path": {"type": "path", "path": "/x"}, "marker": True}]}},
        {"fileSystem": {"entries": [{"access": "write", "path": {"type": "special", "value": {"kind": "marker"}}}]}},
        {"fileSystem": {"write": "marker"}},
        "marker",
    ],
)
def test_unknown_permissions_are_shown_as_received(granted: Any) -> None:
    assert "marker" in " ".join(permission_words(granted))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.sampled_from(["network", "fileSystem", "macos"]), _JSON) | _JSON)
def test_no_permissions_whatever_raise_or_break_a_line(granted: Any) -> None:
    assert not [words for words in permission_words(granted) if "\n" in words]
