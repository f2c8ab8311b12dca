"""A token confirms the plan it was made for, for a time, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.router.route import LIFETIME, ConfirmedPlan, check, seal

KEY = b"k" * 32
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLAN = ConfirmedPlan(action="run", instruction="Fix the tests", mode="local", directory="/src/app")


def test_a_token_confirms_its_plan() -> None:
    check(seal(PLAN, KEY, NOW), PLAN, KEY, NOW + LIFETIME - timedelta(seconds=1))


@pytest.mark.parametrize(
    "change",
    [
        {"action": "cancel"},
        {"task_id": "T-local-1"},
        {"instruction": "Fix the tests "},
        {"mode": "cloud"},
        {"directory": "/src"},
    ],
)
def test_another_plan_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="does not confirm") as caught:
        check(seal(PLAN, KEY, NOW), replace(PLAN, **change), KEY, NOW)
    assert caught.value.details == {"reason": "other_plan"}


def test_words_cannot_move_from_one_part_of_the_plan_to_another() -> None:
    token = seal(ConfirmedPlan(action="run", instruction="a", mode="local"), KEY, NOW)
    with pytest.raises(InvalidInput, match="does not confirm"):
        check(token, ConfirmedPlan(action="run", instruction="alocal"), KEY, NOW)


def test_an_expired_token_is_refused() -> None:
    with pytest.raises(InvalidInput, match="good until 2026-03-01T12:10:00") as caught:
        check(seal(PLAN, KEY, NOW), PLAN, KEY, NOW + LIFETIME)
    assert caught.value.details == {"reason": "expired"}


def test_a_later_expiry_cannot_be_written_into_a_token() -> None:
    early, late = seal(PLAN, KEY, NOW), seal(PLAN, KEY, NOW + timedelta(days=1))
    forged = late[:12] + early[12:]
    assert forged != late
    with pytest.raises(InvalidInput):
        check(forged, PLAN, KEY, NOW + timedelta(hours=2))


def test_another_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="does not confirm"):
        check(seal(PLAN, KEY, NOW), PLAN, b"other", NOW)


@given(st.text(max_size=80) | st.text(max_size=80).map("C-".__add__))
def test_no_text_is_a_token_and_none_raises_anything_else(text: str) -> None:
    with pytest.raises(InvalidInput):
        check(text, PLAN, KEY, NOW)


@given(st.integers(0, 54), st.characters(codec="ascii"))
def test_a_token_with_any_character_changed_is_refused(place: int, character: str) -> None:
    token = seal(PLAN, KEY, NOW)
    altered = token[:place] + character + token[place + 1 :]
    if altered != token:
        with pytest.raises(InvalidInput):
            check(altered, PLAN, KEY, NOW)


def test_an_instruction_of_any_kind_can_be_sealed() -> None:
    plan = replace(PLAN, instruction="\ud800 \0 «ü» 🚢" * 1000)
    check(seal(plan, KEY, NOW), plan, KEY, NOW)
