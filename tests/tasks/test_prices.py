"""What tokens cost: known models, unknown ones, and the user's own prices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.errors import InvalidSetting
from helmsman.model.events import Usage
from helmsman.settings import ConfigFile
from helmsman.tasks.prices import PUBLISHED, Price, Prices

MILLION = 1_000_000
counts = st.integers(0, 10**9)


def file(prices: Any, *, trusted: bool = True) -> ConfigFile:
    return ConfigFile(Path("/home/me/helmsman.toml"), {"prices": prices}, trusted)


def test_cached_tokens_are_part_of_the_input_and_cheaper() -> None:
    usage = Usage(
        input_tokens=MILLION, cached_input_tokens=MILLION // 2, output_tokens=MILLION, reasoning_output_tokens=MILLION
    )
    assert Prices().cost("gpt-5.3-codex", usage) == pytest.approx(1.75 / 2 + 0.175 / 2 + 14)


@pytest.mark.parametrize("model", [None, "", "gpt-99", "gpt-5.3-codex-2030-01-01", "GPT-5", "mock-model"])
def test_an_unknown_model_has_no_price_and_none_is_guessed(model: str | None) -> None:
    assert Prices().cost(model, Usage(input_tokens=5)) is None


def test_no_tokens_cost_nothing() -> None:
    assert Prices().cost("gpt-5", Usage()) == 0


def test_a_price_of_ones_own_wins_over_the_published_one_and_leaves_the_others() -> None:
    prices = Prices.load(
        [file({"gpt-5": {"input": 2, "cached_input": 1.5, "output": 3}, "mine": {"input": 1, "output": 1}})]
    )
    assert prices.by_model["gpt-5"] == Price(2, 1.5, 3)
    assert prices.by_model["mine"] == Price(1, 1, 1)
    assert prices.by_model["gpt-5-codex"] == PUBLISHED["gpt-5-codex"]


def test_the_file_that_wins_comes_first() -> None:
    winner, other = file({"m": {"input": 1, "output": 1}}), file({"m": {"input": 2, "output": 2}})
    assert Prices.load([winner, other]).by_model["m"].input == 1


def test_a_repository_cannot_make_tokens_free() -> None:
    hostile = file(
        {"gpt-5": {"input": 0, "cached_input": 0, "output": 0}, "gpt-99": {"input": 0, "output": 0}}, trusted=False
    )
    assert Prices.load([hostile]).by_model == PUBLISHED


def test_a_repository_cannot_stop_helmsman_with_a_broken_table() -> None:
    assert Prices.load([file("free", trusted=False)]).by_model == PUBLISHED


@pytest.mark.parametrize(
    ("prices", "named"),
    [
        ("free", "prices"),
        ({"m": 3}, 'prices."m"'),
        ({"m": {"input": 1}}, "output"),
        ({"m": {"input": 1, "output": 1, "cache": 1}}, "cache"),
        ({"m": {"input": "1", "output": 1}}, 'prices."m".input'),
        ({"m": {"input": -1, "output": 1}}, 'prices."m".input'),
        ({"m": {"input": True, "output": 1}}, 'prices."m".input'),
        ({"m": {"input": 1, "output": float("nan")}}, 'prices."m".output'),
        ({"m": {"input": 1, "output": float("inf")}}, 'prices."m".output'),
        ({"m": {"input": 1, "output": 10**400}}, 'prices."m".output'),
    ],
)
def test_a_table_that_is_no_price_is_refused_by_file_and_key(prices: Any, named: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Prices.load([file(prices)])
    assert named in str(caught.value)
    assert "helmsman.toml" in str(caught.value)


def test_every_published_price_is_plausible() -> None:
    for model, price in PUBLISHED.items():
        assert 0 < price.cached_input <= price.input < price.output, model


@given(counts, counts, counts, counts, counts, counts)
def test_the_cost_of_a_sum_is_the_sum_of_the_costs(a: int, b: int, c: int, d: int, e: int, f: int) -> None:
    one, two = Usage(a + b, b, c), Usage(d + e, e, f)
    price = PUBLISHED["gpt-5"]
    assert price.of(one + two) == pytest.approx(price.of(one) + price.of(two))


def test_more_cached_tokens_than_input_are_never_a_refund() -> None:
    assert PUBLISHED["gpt-5"].of(Usage(input_tokens=10, cached_input_tokens=10**9)) > 0
