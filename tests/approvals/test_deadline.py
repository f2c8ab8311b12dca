"""Tests of a question's deadline: paused while the question is shown, and always finite."""

from __future__ import annotations

import json
import time

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.approvals.deadline import LEASE_SECONDS, LONGEST_SECONDS, Deadline, TimeLeft, countdown

pytestmark = pytest.mark.anyio


class Clock:
    """Monotonic clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


# --- the arithmetic --------------------------------------------------------------------------------------------------


def test_time_runs_while_the_question_is_off_screen() -> None:
    left = TimeLeft.new(300, 0)
    assert (left.seconds(100), left.is_paused(100), left.runs_out()) == (200, False, 300)


def test_it_stands_still_for_the_length_of_a_lease_and_no_longer() -> None:
    left = TimeLeft.new(300, 0).shown("page", 100)
    assert (left.seconds(100 + LEASE_SECONDS), left.is_paused(100 + LEASE_SECONDS - 1)) == (200, True)
    assert (left.seconds(100 + LEASE_SECONDS + 50), left.is_paused(100 + LEASE_SECONDS)) == (150, False)
    assert left.runs_out() == 300 + LEASE_SECONDS


def test_it_runs_again_when_the_last_of_those_who_show_it_stops() -> None:
    left = TimeLeft.new(300, 0).shown("page", 100).shown("prompt", 101).hidden("page", 102)
    assert left.is_paused(103)
    left = left.hidden("prompt", 110)
    assert (left.is_paused(110), left.seconds(120)) == (False, 190)


def test_a_lease_cannot_be_had_over_and_over_beyond_24_hours() -> None:
    left, now = TimeLeft.new(300, 0), 0.0
    while now < LONGEST_SECONDS:
        left, now = left.shown("client", now), now + LEASE_SECONDS / 2
    assert (left.seconds(now), left.is_paused(now), left.runs_out()) == (0, False, LONGEST_SECONDS)


def test_a_longer_timeout_ends_after_24_hours_too() -> None:
    assert TimeLeft.new(30 * 24 * 3600, 0).runs_out() == LONGEST_SECONDS


def test_many_viewers_cannot_fill_the_record() -> None:
    left = TimeLeft.new(300, 0)
    for number in range(10_000):
        left = left.shown(str(number), 0)
    assert len(left.leases) <= 100


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.sampled_from("ab"), st.sampled_from(["shown", "hidden", "look"])), max_size=30
    )
)
def test_it_never_grows_and_loses_exactly_the_time_off_screen(moves: list[tuple[float, str, str]]) -> None:
    left, now, expected = TimeLeft.new(10_000, 0), 0.0, 10_000.0
    until: dict[str, float] = {}
    for pause, viewer, move in moves:
        shown_until = max(until.values(), default=now)
        expected -= max(0.0, now + pause - max(now, shown_until))
        now += pause
        if move == "shown":
            left = left.shown(viewer, now)
            until[viewer] = now + LEASE_SECONDS
        elif move == "hidden":
            left = left.hidden(viewer, now)
            until.pop(viewer, None)
        assert left.seconds(now) == pytest.approx(expected)


def test_the_countdown_is_a_sentence() -> None:
    assert countdown(270, paused=False) == "Denied in 4 min 30 s unless answered."
    assert countdown(59.6, paused=True) == "1 min left to answer, paused while it is on screen."


# --- one question ----------------------------------------------------------------------------------------------------


async def test_its_time_does_not_run_out_while_it_is_shown_and_watchers_are_notified() -> None:
    deadline, told = Deadline(TimeLeft.new(0.2, time.monotonic())), list[bool]()
    deadline.watchers["a program"] = lambda: told.append(deadline.is_paused)
    async with deadline.shown():
        await _until_paused(deadline, True)
        with anyio.move_on_after(0.5) as waiting:
            await deadline.passed()
        assert waiting.cancelled_caught
    with anyio.fail_after(5):
        await deadline.passed()
    assert (told[0], told[-1]) == (True, False)


async def test_a_copy_passes_on_what_it_shows() -> None:
    original = Deadline(TimeLeft.new(60, time.monotonic()))
    copy = Deadline(original.time_left, pass_on=original.lease)
    async with copy.shown():
        await _until_paused(original, True)
    assert not original.is_paused


async def test_it_counts_as_shown_only_while_it_is_visible() -> None:
    deadline = Deadline(TimeLeft.new(60, time.monotonic()))
    visible = [True]
    async with deadline.shown(lambda: visible[0]):
        await _until_paused(deadline, True)
        visible[0] = False
        await _until_paused(deadline, False)
        visible[0] = True
        await _until_paused(deadline, True)
    assert not deadline.is_paused


async def _until_paused(deadline: Deadline, wanted: bool) -> None:
    with anyio.fail_after(10):
        while deadline.is_paused is not wanted:
            await anyio.sleep(0.01)


def test_the_next_hub_counts_from_when_it_was_asked_and_leaves_a_minute_within_24_hours() -> None:
    assert TimeLeft.new(300, 7000, 100).seconds(7000) == 200
    assert TimeLeft.new(300, 7000, 3600).seconds(7000) == 60
    assert TimeLeft.new(3, 7000, 3600).seconds(7000) == 3
    assert TimeLeft.new(300, 7000, LONGEST_SECONDS - 10).seconds(7000) == 10


def test_it_says_which_time_was_up(clock: Clock) -> None:
    deadline = Deadline(TimeLeft.new(300, clock()), clock=clock)
    assert deadline.why_over() == "no answer in 5 min"
    clock.now += LONGEST_SECONDS
    assert deadline.why_over() == "no answer in 24 h"
    assert json.loads(json.dumps(deadline.as_dict())) == {"secondsLeft": 0, "paused": False}
