"""The clock of a question: it stands still while somebody shows it, is shared among processes, and always ends."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.approvals.deadline import LEASE_SECONDS, LONGEST_SECONDS, Closing, Deadline, TimeLeft, countdown
from helmsman.model.questions import Prompt, Question

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

QUESTION = Question(
    id="q_1",
    type="command_approval",
    session_id="s",
    turn_id="t",
    prompts=(Prompt(text="Run it?", options=("approve",)),),
)


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


# --- the arithmetic --------------------------------------------------------------------------------------------------


def test_time_runs_while_nobody_looks() -> None:
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
def test_it_never_grows_and_loses_exactly_the_time_nobody_showed_it(moves: list[tuple[float, str, str]]) -> None:
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


# --- one question in several processes -------------------------------------------------------------------------------


async def test_who_opens_it_later_finds_the_clock_as_it_is(state_dir: Path, clock: Clock) -> None:
    first = Deadline(state_dir, QUESTION, 300, clock)
    await first.open()
    clock.now += 100
    second = Deadline(state_dir, QUESTION, 9999, clock)
    await second.open()
    assert second.as_dict() == {"secondsLeft": 200, "paused": False}


async def test_who_comes_back_to_a_question_that_everybody_left_has_the_whole_time(
    state_dir: Path, clock: Clock
) -> None:
    await Deadline(state_dir, QUESTION, 300, clock).open()
    (file,) = (state_dir / "questions").glob("*.json")
    os.utime(file, (0, file.stat().st_mtime - 3600))
    clock.now += 3600
    back = Deadline(state_dir, QUESTION, 300, clock)
    await back.open()
    assert back.as_dict() == {"secondsLeft": 300, "paused": False}
    os.utime(file, (0, file.stat().st_mtime - 3600))
    clock.now += LONGEST_SECONDS
    late = Deadline(state_dir, QUESTION, 300, clock)
    await late.open()
    assert late.as_dict()["secondsLeft"] == 0


async def test_what_one_process_shows_stands_still_in_the_others(state_dir: Path) -> None:
    first, second = Deadline(state_dir, QUESTION, 0.2), Deadline(state_dir, QUESTION, 0.2)
    await first.open()
    await second.open()
    async with second.shown():
        with anyio.fail_after(5):
            while not first.is_paused:
                first._read_again()
                await anyio.sleep(0.01)
        with anyio.move_on_after(0.5) as waiting:
            await first.passed()
        assert waiting.cancelled_caught
    with anyio.fail_after(5):
        await first.passed()


async def test_it_counts_as_shown_only_while_it_is_visible(state_dir: Path) -> None:
    deadline = Deadline(state_dir, QUESTION, 60)
    await deadline.open()
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


async def test_who_answered_is_told_to_the_others_and_the_first_one_counts(state_dir: Path) -> None:
    first, second = Deadline(state_dir, QUESTION, 60), Deadline(state_dir, QUESTION, 60)
    await first.open()
    await second.open()
    assert second.closing() is None
    assert await first.close(Closing("approve", "person", "dashboard", None))
    assert not await second.close(Closing("deny", "deadline", None, "nobody answered in 1 min"))
    assert second.closing() == Closing("approve", "person", "dashboard", None)


async def test_an_answer_that_did_not_fit_closes_nothing(state_dir: Path) -> None:
    first, second = Deadline(state_dir, QUESTION, 60), Deadline(state_dir, QUESTION, 60)
    await first.open()
    await second.open()
    await first.close(Closing("revise", "person", None, None))
    await first.reopen()
    assert second.closing() is None
    assert await second.close(Closing("deny", "person", None, None))


async def test_an_answer_on_disk_has_no_secrets_and_is_for_the_user_alone(state_dir: Path) -> None:
    deadline = Deadline(state_dir, QUESTION, 60)
    await deadline.open()
    await deadline.close(Closing("deny", "person", None, "OPENAI_API_KEY=sk-proj-abcdefghijklmnop0123456789"))
    (file,) = (state_dir / "questions").glob("*.json")
    assert "abcdefghijklmnop" not in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_records_that_nobody_needs_are_removed(state_dir: Path) -> None:
    deadline = Deadline(state_dir, QUESTION, 60)
    await deadline.open()
    await deadline.forget()
    assert not list((state_dir / "questions").glob("*.json"))
    await deadline.open()
    await deadline.close(Closing("deny", "person", None, None))
    (file,) = (state_dir / "questions").glob("*.json")
    os.utime(file, (0, 0))
    other = Question(id="q_2", type="user_input", session_id="s", turn_id="t", prompts=())
    await Deadline(state_dir, other, 60).open()
    assert not file.exists()


@pytest.mark.parametrize("written", ["", "[]", "{}", '{"left": "x"}', '{"left": 1, "at": 1, "end": 1, "leases": 7}'])
async def test_nonsense_on_disk_is_not_believed(state_dir: Path, written: str) -> None:
    deadline = Deadline(state_dir, QUESTION, 60)
    await deadline.open()
    (file,) = (state_dir / "questions").glob("*.json")
    file.write_text(written, encoding="utf-8")
    fresh = Deadline(state_dir, QUESTION, 60)
    await fresh.open()
    assert fresh.as_dict() == {"secondsLeft": 60, "paused": False}
    assert fresh.closing() is None


async def test_a_clock_of_before_the_last_boot_is_not_believed(state_dir: Path, clock: Clock) -> None:
    await Deadline(state_dir, QUESTION, 60, clock).open()
    clock.now = 5
    fresh = Deadline(state_dir, QUESTION, 60, clock)
    await fresh.open()
    assert fresh.as_dict() == {"secondsLeft": 60, "paused": False}


async def test_without_a_state_directory_each_process_keeps_time_for_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    deadline = Deadline(tmp_path / "file" / "state", QUESTION, 0.1)
    await deadline.open()
    async with deadline.shown():
        await _until_paused(deadline, True)
    with anyio.fail_after(5):
        await deadline.passed()
    assert await deadline.close(Closing("deny", "deadline", None, None))
    assert deadline.closing() is None


async def test_it_says_the_time_of_who_opened_it_first(state_dir: Path, clock: Clock) -> None:
    first, second = (Deadline(state_dir, QUESTION, timeout, clock) for timeout in (30, 300))
    await first.open()
    await second.open()
    clock.now += 31
    assert second.seconds == 0
    assert second.why_over() == "nobody answered in 30 s"


async def test_it_says_which_time_was_up(state_dir: Path, clock: Clock) -> None:
    deadline = Deadline(state_dir, QUESTION, 300, clock)
    assert deadline.why_over() == "nobody answered in 5 min"
    clock.now += LONGEST_SECONDS
    assert deadline.why_over() == "nobody answered in 24 h"
    assert json.loads(json.dumps(deadline.as_dict())) == {"secondsLeft": 0, "paused": False}
