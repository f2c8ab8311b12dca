"""Values as plain JSON and back, by their declared types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from helmsman.base.processes import Process
from helmsman.base.structs import SecretValue, Value, pack, replace, unpack, unpack_if_valid


class Part(Value, frozen=True):
    name: str
    size: int = 0


class Whole(Value, frozen=True, kw_only=True):
    made_in: Path
    parts: tuple[Part, ...] = ()
    made_at: datetime | None = None
    took: timedelta | None = None
    owner: Process | None = None
    words: frozenset[str] = frozenset()
    data: bytes = b""
    more: Mapping[str, Any] | None = None


WHOLE = Whole(
    made_in=Path("/work"),
    parts=(Part("a", 1), Part("b")),
    made_at=datetime(2026, 1, 2, tzinfo=UTC),
    took=timedelta(seconds=1.5),
    owner=Process(7, "then"),
    words=frozenset({"x"}),
    data=b"\x00\xff",
    more={"n": [1, None]},
)


def test_a_value_is_unpacked_as_it_was_packed() -> None:
    assert unpack(json.loads(json.dumps(pack(WHOLE))), Whole) == WHOLE


def test_packed_names_are_camel_case_and_defaults_are_left_out() -> None:
    assert pack(Whole(made_in=Path("/work"), parts=(Part("b"),))) == {"madeIn": "/work", "parts": ({"name": "b"},)}


@pytest.mark.parametrize("content", [None, [], {}, {"madeIn": 1}, {"madeIn": "/work", "parts": [{"name": None}]}])
def test_content_of_another_form_is_refused(content: Any) -> None:
    with pytest.raises(ValueError):
        unpack(content, Whole)
    assert unpack_if_valid(content, Whole) is None


def test_an_invalid_value_is_not_packed() -> None:
    with pytest.raises(TypeError, match="object is no value"):
        pack({"here": object()})


def test_a_copy_has_other_fields() -> None:
    assert replace(WHOLE, parts=()).parts == ()
    assert replace(WHOLE, parts=()).made_in == WHOLE.made_in


def test_secrets_are_not_shown() -> None:
    class Login(SecretValue, frozen=True):
        secrets: ClassVar[tuple[str, ...]] = ("token",)
        name: str
        token: str

    assert "hidden" not in repr(Login("me", "hidden"))
    assert "name='me'" in repr(Login("me", "hidden"))
