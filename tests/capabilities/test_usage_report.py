"""Tests that sums are equal for every grouping and order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.capabilities.usage_report import GroupBy, Spending, merged, parse_since, report
from helmsman.errors import InvalidInput
from helmsman.model.events import Usage
from helmsman.tasks.prices import Price, Prices

GROUPS: list[GroupBy] = ["day", "model", "directory", "session", "agent"]
PRICES = Prices({"cheap": Price(1.0, 0.1, 10.0), "dear": Price(100.0, 50.0, 1000.0)})
COUNTS = st.integers(0, 10_000_000)
SPENDINGS = st.lists(
    st.builds(
        Spending,
        st.sampled_from(["codex", "claude"]),
        st.sampled_from([None, "s1", "s2", "s3"]),
        st.sampled_from([None, "/src/a", "/src/b"]),
        st.sampled_from([None, "cheap", "dear", "nobody's"]),
        st.floats(0, 4e9),
        st.just(1),
        COUNTS,
        COUNTS,
        COUNTS,
        COUNTS,
        st.none() | st.floats(0, 1000),
    )
)


@given(SPENDINGS, st.sampled_from(GROUPS), st.randoms())
def test_the_groups_add_up_to_the_total_in_any_order(
    spendings: list[Spending], group_by: GroupBy, random: object
) -> None:
    told = report(spendings, group_by, PRICES)
    total = told.total
    assert total.usage.counts == sum((spending.usage for spending in spendings), Usage()).counts
    assert total.turns == len(spendings)
    assert total.sessions == len({spending.session_id for spending in spendings})
    together = merged(told.groups)
    assert (together.usage, together.turns, together.unpriced_tokens) == (
        total.usage,
        total.turns,
        total.unpriced_tokens,
    )
    assert together.cost_usd == pytest.approx(total.cost_usd)
    assert len({group.key for group in told.groups}) == len(told.groups)
    shuffled = list(spendings)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = report(shuffled, group_by, PRICES)
    assert [(group.key, group.usage) for group in again.groups] == [(group.key, group.usage) for group in told.groups]


@given(SPENDINGS)
def test_every_grouping_has_the_same_total(spendings: list[Spending]) -> None:
    first, *others = (report(spendings, group_by, PRICES).total for group_by in GROUPS)
    for other in others:
        assert (other.usage, other.turns, other.sessions) == (first.usage, first.turns, first.sessions)
        assert other.unpriced_tokens == first.unpriced_tokens
        assert other.cost_usd == pytest.approx(first.cost_usd)


@given(SPENDINGS, st.datetimes(datetime(1971, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_before_and_since_make_the_whole(spendings: list[Spending], time: datetime) -> None:
    since = report(spendings, "model", PRICES, since=time).total.usage
    before = report([one for one in spendings if one.at < time.timestamp()], "model", PRICES).total.usage
    assert since + before == report(spendings, "model", PRICES).total.usage


def test_cost_is_reported_where_a_price_is_known_and_what_it_leaves_out_is_said() -> None:
    spendings = [
        Spending("codex", "s", "/src", "cheap", 0.0, 1, 1_000_000, 0, 1_000_000, 0),
        Spending("codex", "s", "/src", "nobody's", 0.0, 1, 7, 0, 3, 0),
    ]
    told = report(spendings, "model", PRICES)
    assert [(group.key, group.cost_usd, group.unpriced_tokens) for group in told.groups] == [
        ("cheap", pytest.approx(11.0), 0),
        ("nobody's", None, 10),
    ]
    assert told.total.cost_usd == pytest.approx(11.0)
    assert told.total.unpriced_tokens == 10
    assert told.unpriced_models == ("nobody's",)


def test_a_cost_that_the_agent_reports_wins_and_the_rest_is_priced() -> None:
    spendings = [
        Spending("claude", "s", "/src", "cheap", 0.0, 1, 1_000_000, 0, 0, 0, 0.25),
        Spending("claude", "s", "/src", "cheap", 0.0, 1, 1_000_000, 0, 0, 0),
        Spending("opencode", "t", "/src", "nobody's", 0.0, 1, 7, 0, 3, 0, 0.5),
        Spending("codex", "u", "/src", "cheap", 0.0, 1, 2_000_000, 0, 0, 0),
    ]
    told = report(spendings, "agent", PRICES)
    assert [(group.key, group.turns) for group in told.groups] == [("claude", 2), ("codex", 1), ("opencode", 1)]
    assert [group.cost_usd for group in told.groups] == pytest.approx([1.25, 2.0, 0.5])
    assert told.unpriced_models == ()
    assert report(spendings, "model", PRICES, agent="opencode").total.cost_usd == pytest.approx(0.5)


def test_days_are_in_order_and_the_rest_by_what_it_spent() -> None:
    day = 86400.0
    spendings = [Spending("codex", "s", f"/{at}", "cheap", at * day + day / 2, 1, at, 0, 0, 0) for at in (3, 1, 2)]
    assert [group.usage.input_tokens for group in report(spendings, "day", PRICES).groups] == [1, 2, 3]
    assert [group.usage.input_tokens for group in report(spendings, "directory", PRICES).groups] == [3, 2, 1]


NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("24h", NOW - timedelta(hours=24)),
        (" 7d ", NOW - timedelta(days=7)),
        ("2W", NOW - timedelta(weeks=2)),
        ("2026-11-01T09:30:00Z", datetime(2026, 11, 1, 9, 30, tzinfo=UTC)),
        ("2026-11-01", datetime(2026, 11, 1).astimezone()),
    ],
)
def test_a_time_is_understood_as_people_write_it(text: str, time: datetime) -> None:
    assert parse_since(text, NOW) == time


@pytest.mark.parametrize("text", ["", "yesterday", "7", "d", "-7d", "999999w", "2026-13-01", "7d\n7d"])
def test_an_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidInput, match="Use one such as"):
        parse_since(text, NOW)
