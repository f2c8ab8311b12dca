"""Tests of `[budget]`: allowed values, and restrictions for projects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helmsman.base.budget import Budget
from helmsman.errors import InvalidSetting

FILE = Path("/home/me/.config/helmsman/helmsman.toml")


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("none", "budget"),
        ([1], "budget"),
        ({"week_usd": 5}, "week_usd"),
        ({"day_usd": 0}, "budget.day_usd"),
        ({"day_usd": -1}, "budget.day_usd"),
        ({"day_usd": 0.001}, "budget.day_usd"),
        ({"day_usd": float("nan")}, "budget.day_usd"),
        ({"day_usd": float("inf")}, "budget.day_usd"),
        ({"day_usd": 10**400}, "budget.day_usd"),
        ({"day_usd": True}, "budget.day_usd"),
        ({"day_usd": "10"}, "budget.day_usd"),
        ({"task_tokens": 0}, "budget.task_tokens"),
        ({"task_tokens": 1.5}, "budget.task_tokens"),
        ({"task_tokens": 10**16}, "budget.task_tokens"),
    ],
)
def test_an_invalid_budget_is_refused_by_file_and_key(table: Any, named: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Budget.read(table, FILE)
    assert named in caught.value.message
    assert str(FILE) in caught.value.message


def test_the_smaller_of_two_holds_and_one_holds_where_the_other_says_nothing() -> None:
    own = Budget.read({"day_usd": 10, "task_usd": 5}, FILE)
    asked = Budget.read({"day_usd": 20, "task_usd": 1, "project_day_tokens": 100}, FILE)
    assert own.narrowed(asked).amounts() == {"task_usd": 1, "project_day_tokens": 100, "day_usd": 10}
