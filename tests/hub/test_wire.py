"""Arguments and results of calls between a program and the hub, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from helmsman.agents.protocol import Capabilities, Capability
from helmsman.base.structs import pack, unpack
from helmsman.errors import CheckRefused, HelmsmanError, InvalidInput, TooManySessions
from helmsman.git.diff import FileStat
from helmsman.git.tree_changes import TreeDiff
from helmsman.hub.verbs import VERBS
from helmsman.hub.wire import (
    RESULT,
    function_types,
    pack_error,
    pack_value,
    parameters_of,
    type_of,
    unpack_error,
    unpack_value,
)
from helmsman.model.events import CommandExecution, ItemEnded
from helmsman.model.options import Placement, ReviewTarget, SessionOptions, TurnKind, TurnLimits
from helmsman.settings import Settings, load_settings


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("text \ud800", str),
        (math.inf, float),
        ({"b": {"c": [1, "2"]}}, Mapping[str, Any]),
        (datetime(2026, 1, 2, tzinfo=UTC), datetime),
        (b"\x00\xff", bytes),
        (Capabilities("echo", "The echo", {Capability.STEER: "Codex can."}), Capabilities),
        (SessionOptions(cwd=Path("/x"), config={"a": {"b": [1]}}, writable_roots=(Path("/y"),)), SessionOptions),
        (TurnLimits(1.5, math.inf), TurnLimits),
        (ReviewTarget(kind="base", value="main"), TurnKind),
        (Placement(labels=("gpu",), delay=2.0), Placement | None),
        (TreeDiff(patch=b"\xff", files=(FileStat(path="a", kind="added", added=1, removed=None),), stat=""), TreeDiff),
        (ItemEnded(session_id="s", turn_id="t", item=CommandExecution(id="i", command="ls", exit_code=0)), ItemEnded),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_as_it_was(value: Any, kind: Any) -> None:
    assert unpack_value(json.loads(json.dumps(pack_value(value))), kind) == value


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_and_result_of_a_verb_can_be_sent(verb: str) -> None:
    for name in (*parameters_of(verb), RESULT):
        kind = type_of(verb, name)
        if function_types(kind) is None:
            msgspec.json.Decoder(kind, dec_hook=lambda _kind, part: part)


def test_settings_come_back_with_the_files_they_were_read_from(tmp_path: Path) -> None:
    (tmp_path / "helmsman.toml").write_text("max_sessions = 3\n", encoding="utf-8")
    settings = load_settings({"codex_home": str(tmp_path)}, {"HOME": str(tmp_path)}, tmp_path)
    assert unpack(json.loads(json.dumps(pack(settings))), Settings) == settings


def test_an_error_is_raised_again_as_what_it_was() -> None:
    def again(error: Exception) -> Exception:
        return unpack_error(json.loads(json.dumps(pack_error(error))))

    error = again(TooManySessions("Too many.", running=["a", "b"]))
    assert isinstance(error, TooManySessions)
    assert (error.message, error.details) == ("Too many.", {"running": ["a", "b"]})
    assert type(again(InvalidInput("No.", parameter="cwd"))) is InvalidInput
    assert type(again(CheckRefused("No."))) is CheckRefused
    assert repr(again(TypeError("no such argument"))) == repr(TypeError("no such argument"))
    assert type(unpack_error({"code": "of a later version", "message": "No."})) is HelmsmanError


def test_a_function_is_sent_as_a_number_and_nothing_else_without_a_type() -> None:
    assert pack_value([print], lambda function: len(function.__name__)) == [5]
    with pytest.raises(TypeError, match="no value"):
        pack_value({"call": print})
    with pytest.raises(TypeError, match="no value"):
        pack_value([object()], lambda _function: 1)
