"""Our own values as JSON, and back."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.protocol import Capabilities, Capability
from helmsman.base.values import decoded, encoded
from helmsman.errors import InvalidInput, TooManySessions
from helmsman.model.events import CommandExecution, ItemEnded
from helmsman.model.options import SessionOptions, TurnLimits
from helmsman.settings import load_settings


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text \ud800",
        math.inf,
        [1, (2, 3), frozenset({"a"})],
        {"$": "not one of ours", "b": {"c": b"\x00\xff"}},
        Path("/somewhere"),
        datetime(2026, 1, 2, tzinfo=UTC),
        Capability.STEER,
        Capabilities("echo", "The echo", {Capability.STEER: "Codex can."}),
        SessionOptions(cwd=Path("/x"), config={"a": {"b": [1]}}, writable_roots=(Path("/y"),)),
        TurnLimits(1.5, math.inf),
        ItemEnded(session_id="s", turn_id="t", item=CommandExecution(id="i", command="ls", output="out", exit_code=0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert decoded(json.loads(json.dumps(encoded(value)))) == value


def test_settings_come_back_with_the_files_they_were_read_from(tmp_path: Path) -> None:
    (tmp_path / "helmsman.toml").write_text("max_sessions = 3\n", encoding="utf-8")
    settings = load_settings({"codex_home": str(tmp_path)}, {"HOME": str(tmp_path)}, tmp_path)
    assert decoded(json.loads(json.dumps(encoded(settings)))) == settings


def test_an_error_is_raised_again_as_what_it_was() -> None:
    error = decoded(json.loads(json.dumps(encoded(TooManySessions("Too many.", running=["a", "b"])))))
    assert isinstance(error, TooManySessions)
    assert (error.message, error.details) == ("Too many.", {"running": ["a", "b"]})
    assert type(decoded(encoded(InvalidInput("No.", parameter="cwd")))) is InvalidInput
    assert str(decoded(encoded(TypeError("no such argument")))) == "no such argument"


@dataclass(frozen=True)
class _Foreign:
    name: str


@pytest.mark.parametrize(
    "content",
    [
        {"$": "value", "of": "subprocess:Popen", "is": {"args": ["true"]}},
        {"$": "value", "of": "helmsman.base.values:Path", "is": {}},
        {"$": "value", "of": "helmsman.sessions.session:Session", "is": {}},
        {"$": "error", "of": "helmsman.settings:Settings", "is": "", "details": {}},
        {"$": "enum", "of": "helmsman.errors:HelmsmanError", "is": "x"},
        encoded(_Foreign("x")),
    ],
    ids=str,
)
def test_nothing_is_made_that_is_no_value_of_this_package(content: Any) -> None:
    with pytest.raises(ValueError, match=r"none of ours|no value"):
        decoded(content)


def test_what_is_no_value_needs_a_stand_in() -> None:
    with pytest.raises(TypeError, match="function"):
        encoded({"call": lambda: None})
    assert encoded([print], lambda value: {"$": "function", "name": value.__name__}) == [
        {"$": "function", "name": "print"}
    ]
    assert decoded([{"$": "function", "name": "print"}], lambda stand_in: stand_in["name"]) == ["print"]
