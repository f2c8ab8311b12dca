"""When a schedule is due."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.structs import pack, unpack
from helmsman.errors import InvalidInput
from helmsman.schedules.when import When, local_timezone, parse_when

BERLIN = "Europe/Berlin"
MONDAY = datetime(2026, 11, 16, 7, 30, tzinfo=UTC)


def times(when: When, after: datetime, number: int) -> list[str]:
    """When it is due, on the clocks of its time zone."""
    found = []
    for _ in range(number):
        following = when.next_after(after)
        assert following is not None
        after = following
        found.append(f"{after.astimezone(ZoneInfo(when.timezone)):%a %d %b %H:%M %z}")
    return found


@pytest.mark.parametrize(
    ("said", "due"),
    [
        ({"at": "tomorrow 6:00"}, "Tue 17 Nov 06:00 +0100"),
        ({"at": "tomorrow at 6:00"}, "Tue 17 Nov 06:00 +0100"),
        ({"at": "in 90 minutes"}, "Mon 16 Nov 10:00 +0100"),
        ({"at": "in 1h 30m"}, "Mon 16 Nov 10:00 +0100"),
        ({"at": "in 1 hour and 30 mins"}, "Mon 16 Nov 10:00 +0100"),
        ({"at": "in 5400 seconds"}, "Mon 16 Nov 10:00 +0100"),
        ({"at": "8:00"}, "Tue 17 Nov 08:00 +0100"),
        ({"at": "9:00"}, "Mon 16 Nov 09:00 +0100"),
        ({"at": "Friday 18:30"}, "Fri 20 Nov 18:30 +0100"),
        ({"at": "mon, 7:00"}, "Mon 23 Nov 07:00 +0100"),
        ({"at": "2027-01-31 09:00"}, "Sun 31 Jan 09:00 +0100"),
        ({"at": "2027-01-31T09:00:00+03:00"}, "Sun 31 Jan 07:00 +0100"),
        ({"at": "2027-03-28 02:30"}, "Sun 28 Mar 03:30 +0200"),  # the clocks skip that half hour
        ({"every": "2h"}, "Mon 16 Nov 10:30 +0100"),
        ({"every": "1d 12 hours"}, "Tue 17 Nov 20:30 +0100"),
        ({"cron": "0 7 * * 1-5"}, "Tue 17 Nov 07:00 +0100"),
        ({"cron": "  0 7  * * MON "}, "Mon 23 Nov 07:00 +0100"),
    ],
)
def test_common_words_for_times_are_understood(said: dict[str, Any], due: str) -> None:
    when = parse_when(MONDAY, timezone=BERLIN, **said)
    assert times(when, MONDAY, 1) == [due]
    assert unpack(json.loads(json.dumps(pack(when))), When) == when


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({}, "one way"),
        ({"cron": "* * * * *", "every": "1h"}, "one way"),
        ({"cron": "often"}, "five fields"),
        ({"cron": "* * * * * *"}, "number of fields"),
        ({"cron": "61 * * * *"}, "bad minute"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"every": "now and then"}, "no interval"),
        ({"every": "1 month"}, "no interval"),
        ({"every": "3 moons"}, "no interval"),
        ({"every": "5s"}, "a minute"),
        ({"every": "0h"}, "a minute"),
        ({"every": "99999999999999999999d"}, "no interval"),
        ({"at": "soon"}, "no time"),
        ({"at": "2027-01-31"}, "no time"),
        ({"at": "20270131"}, "no time"),
        ({"at": "in 1 month"}, "no time"),
        ({"at": "9999-12-31T23:59:59-14:00"}, "no time"),
        ({"at": "0001-01-01T00:00:00+14:00"}, "no time"),
        ({"at": "25:00"}, "no time"),
        ({"at": "2020-01-01 09:00"}, "past"),
        ({"at": "today 6:00"}, "past"),
        ({"at": "noon", "timezone": "Mars/Olympus"}, "no time zone"),
    ],
)
def test_invalid_times_are_refused_with_examples_of_valid_ones(said: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        parse_when(MONDAY, **{"timezone": BERLIN, **said})


def test_a_time_in_the_hour_that_summer_time_skips_comes_right_after_it_and_one_that_comes_twice_once() -> None:
    when = parse_when(MONDAY, cron="30 2 * * *", timezone=BERLIN)
    spring, autumn = datetime(2027, 3, 27, 12, tzinfo=UTC), datetime(2027, 10, 30, 12, tzinfo=UTC)
    assert times(when, spring, 2) == ["Sun 28 Mar 03:00 +0200", "Mon 29 Mar 02:30 +0200"]
    assert times(when, autumn, 2) == ["Sun 31 Oct 02:30 +0200", "Mon 01 Nov 02:30 +0100"]


def test_an_interval_is_real_time_whatever_the_clocks_do() -> None:
    when = parse_when(datetime(2027, 3, 27, 11, tzinfo=UTC), every="1d", timezone=BERLIN)
    assert times(when, when.since, 2) == ["Sun 28 Mar 13:00 +0200", "Mon 29 Mar 13:00 +0200"]


CRON_LINES = ["*/7 * * * *", "0 * * * *", "30 2 * * *", "15 6 1 * *", "0 0 * * SUN", "5 1-4 * 3,10 *"]


@given(
    said=st.sampled_from([{"cron": line} for line in CRON_LINES] + [{"every": "90m"}, {"every": "1d"}]),
    zone=st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
    day=st.integers(0, 800),
    second=st.integers(0, 86399),
)
def test_the_next_time_is_the_last_one_until_the_one_after_it(
    said: dict[str, Any], zone: str, day: int, second: int
) -> None:
    when = parse_when(datetime(2026, 1, 1, tzinfo=UTC), timezone=zone, **said)
    moment = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(days=day, seconds=second)
    following = [moment]
    for _ in range(3):
        due = when.next_after(following[-1])
        assert due is not None
        following.append(due)
    assert all(earlier < later for earlier, later in pairwise(following))
    for due, later in pairwise(following[1:]):
        assert when.last_until(due) == due
        assert when.last_until(later - timedelta(seconds=1)) == due


def test_the_time_zone_is_that_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    assert local_timezone() == "Asia/Kolkata"
    monkeypatch.setenv("TZ", "CET-1CEST")  # a rule without a name: nobody could say later what it meant
    assert local_timezone() == "UTC"
