from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.testing.toml_writer import to_toml

TEXT = st.text(st.characters(codec="utf-8"))
VALUES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
TABLES = st.recursive(
    st.dictionaries(TEXT, VALUES | st.lists(VALUES)),
    lambda inner: st.dictionaries(TEXT, VALUES | inner | st.lists(inner)),
)


@given(TABLES)
def test_what_is_written_is_read_back_the_same(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_plain_settings_come_before_tables() -> None:
    written = to_toml({"features": {"goals": False}, "model": "m"})

    assert written == 'model = "m"\n\n[features]\ngoals = false\n'


def test_what_toml_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be written"):
        to_toml({"a": None})
