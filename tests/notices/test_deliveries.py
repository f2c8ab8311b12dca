"""Each notice is sent at least once for each recipient, at most twice after a crash, and a dead way delays nobody."""

from __future__ import annotations

import sqlite3
import threading
from functools import partial
from pathlib import Path

import anyio
import pytest

from helmsman.notices.notifications import Notification
from helmsman.notices.store import Delivery, NoticeStore
from helmsman.store import open_store
from helmsman.tasks.registry import REGISTRY_NAME
from tests.notices.conftest import House, opened, webhook
from tests.notices.receivers import SECONDS, Received, Receiver

pytestmark = pytest.mark.anyio


def tell(house: House, about: str = "x") -> None:
    house.notifier.notify(Notification(kind="hub", about=about, title="Something is wrong"))


def is_tried(times: int, known: tuple[Delivery, ...]) -> bool:
    return bool(known) and (known[0].attempts, known[0].status) == (times, "pending")


def as_if_killed_while_sending(state_dir: Path) -> None:
    with sqlite3.connect(state_dir / "registry.sqlite3") as connection:
        connection.execute("UPDATE notice_deliveries SET status = 'sending'")


async def test_a_failed_delivery_is_repeated_with_backoff_and_then_given_up(
    state_dir: Path, receiver: Receiver
) -> None:
    receiver.answers = [503] * 8
    async with opened(state_dir, webhook(receiver)) as house:
        tell(house)
        for number, pause in enumerate((5, 15, 60, 300, 900, 1800, 3600), 1):
            await house.log(partial(is_tried, number))
            await house.settled()
            await house.pass_time(pause - 1)
            await house.settled()
            assert len(receiver.received) == number
            await house.pass_time(1)
        (failed,) = await house.delivered("failed")
        assert (failed.attempts, failed.is_doubtful) == (8, False)
        assert failed.note == "The server takes nothing now (HTTP 503)."
        assert len({one.headers["webhook-id"] for one in receiver.received}) == 1


async def test_a_delivery_loop_that_fails_for_no_known_reason_tries_again_later_and_later(
    state_dir: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[str] = []

    async def fail(recipient: str) -> None:
        failures.append(recipient)
        raise RuntimeError("nobody has thought of this")

    async def until_failed(times: int) -> None:
        with anyio.fail_after(SECONDS):
            while len(failures) < times:
                await anyio.sleep(0.01)

    async with opened(state_dir, webhook(receiver)) as house:
        with monkeypatch.context() as patched:
            patched.setattr(house.shared.notices, "next_for", fail)
            tell(house)
            for number, pause in enumerate((10, 20, 40), 1):
                await until_failed(number)
                await house.settled()
                await house.pass_time(pause - 1)
                await house.settled()
                assert len(failures) == number
                await house.pass_time(1)
            await until_failed(4)
        await house.pass_time(80)
        await house.delivered("sent")


async def test_a_delivery_that_may_have_arrived_is_repeated_once(state_dir: Path, receiver: Receiver) -> None:
    receiver.answers = [500, 500]
    async with opened(state_dir, webhook(receiver)) as house:
        tell(house)
        await house.log(lambda known: bool(known) and known[0].is_doubtful)
        await house.pass_time(5)
        await house.delivered("doubtful")
        await house.pass_time(10_000)
        await house.settled()
        assert [one.json["mayBeRepeated"] for one in receiver.received] == [False, True]


async def test_a_hub_that_is_killed_while_it_sends_leaves_it_to_the_next_which_sends_it_once(
    state_dir: Path, receiver: Receiver
) -> None:
    async with opened(state_dir, webhook(receiver)) as house:
        tell(house)
        await house.delivered("sent")
    as_if_killed_while_sending(state_dir)
    async with opened(state_dir, webhook(receiver)) as house:
        (sent,) = await house.delivered("sent")
        assert (sent.is_doubtful, sent.attempts) == (True, 2)
        assert [one.json["mayBeRepeated"] for one in await receiver.until(2)] == [False, True]
    as_if_killed_while_sending(state_dir)
    async with opened(state_dir, webhook(receiver)) as house:
        (doubtful,) = await house.delivered("doubtful")
        assert doubtful.note == "It was sent twice, and may not have arrived."
        assert len(receiver.received) == 2


async def test_a_dead_way_delays_no_other(state_dir: Path, receiver: Receiver) -> None:
    with Receiver() as stuck:
        go_on = threading.Event()

        def hold(_: Received) -> None:
            go_on.wait(SECONDS)

        stuck.before_answer = hold
        async with opened(state_dir, webhook(stuck, name="stuck"), webhook(receiver)) as house:
            for number in range(5):
                tell(house, str(number))
            await receiver.until(5)
            assert len(stuck.received) <= 1
            go_on.set()
            await stuck.until(5)


async def test_no_open_question_gives_way_to_other_news_or_to_more_questions(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.notices.store._MOST_WAITING", 3)
    monkeypatch.setattr("helmsman.notices.store._KEPT", 4)
    store = NoticeStore(open_store(state_dir / REGISTRY_NAME))
    for number in range(12):
        question = Notification(
            kind="question", about=f"question s q{number}", title="A question", question_id=f"q{number}"
        )
        assert await store.add(question, {"phone": store.clock()})
    first = await store.next_for("phone")
    assert first is not None
    assert await store.begin(first)
    await store.add_code(first, "digest", "approve")
    await store.finish(first, "sent")
    for number in range(8):
        await store.add(
            Notification(kind="hub", about=str(number), title="Something is wrong"), {"phone": store.clock()}
        )
    known = {one.notification.about: one.status for one in await store.log(100)}
    assert [known.get(f"question s q{number}") for number in range(12)] == ["sent", *["pending"] * 11]
    assert [about for about, status in known.items() if status == "pending"][:3] == ["7", "6", "5"]
    assert await store.code("digest") is not None
    for number in range(12):
        await store.drop(f"question s q{number}", "The question was closed before.")
    await store.add(Notification(kind="hub", about="last", title="Something is wrong"), {"phone": store.clock()})
    assert len(await store.log(100)) == 4
    assert await store.code("digest") is None


async def test_queued_and_remembered_deliveries_are_bounded_and_the_oldest_are_dropped(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.notices.store._MOST_WAITING", 3)
    monkeypatch.setattr("helmsman.notices.store._KEPT", 4)
    store = NoticeStore(open_store(state_dir / REGISTRY_NAME))
    for number in range(6):
        notification = Notification(kind="hub", about=str(number), title="Something is wrong")
        assert await store.add(notification, {"hook": store.clock()})
        assert await store.add(notification, {"hook": store.clock()}) is None, "the same is told once"
    known = await store.log(10)
    assert [(one.notification.about, one.status) for one in known] == [
        *(("5", "pending"), ("4", "pending"), ("3", "pending"), ("2", "dropped")),
    ]
    assert await store.pending() == 3
