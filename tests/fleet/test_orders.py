"""What clients ask of the machine of a running task: carried out once, refused in its words, or taken back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from helmsman.errors import AnswerInvalid, FleetUnavailable, HelmsmanError, QuestionNotOpen, SessionIdle, Unsupported
from helmsman.fleet import client as fleet_client
from helmsman.fleet.owned_task import NotOwner, OwnedTask
from helmsman.fleet.queue import hand_over_tasks
from helmsman.model.answered_by import PROGRAM
from helmsman.model.questions import Prompt, Question
from tests.fleet.conftest import SECONDS, Fleet

pytestmark = pytest.mark.anyio

QUESTION = Question(
    asker="Codex",
    id="q",
    type="user_input",
    session_id="s",
    turn_id=None,
    prompts=(Prompt(text="?", options=("yes", "no")),),
)


@pytest.fixture
async def owned(fleet: Fleet) -> OwnedTask:
    """A task at work, on a machine that only has a row, which asks a question."""
    await fleet.start("work")
    [owned], _ = await OwnedTask.claim(fleet.client.database, await fleet.idle_worker("one"), 1)
    await owned.ask(QUESTION, 60)
    return owned


async def next_order(owned: OwnedTask) -> dict[str, Any]:
    with anyio.fail_after(SECONDS):
        while not (orders := (await owned.orders())["orders"]):
            await anyio.sleep(0.01)
    order: dict[str, Any] = orders[0]
    return order


_Do = Callable[[], Coroutine[Any, Any, None]]


async def outcome_of(ask: _Do, machine: _Do) -> type | None:
    """Return the error that a client gets while a machine does something."""
    found: list[type | None] = []

    async def client() -> None:
        try:
            await ask()
            found.append(None)
        except HelmsmanError as error:
            found.append(type(error))

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as both:
            both.start_soon(client)
            both.start_soon(machine)
    return found[0]


async def test_orders_reach_the_machine_once_and_its_refusals_come_back(fleet: Fleet, owned: OwnedTask) -> None:
    seen: list[tuple[str, Any]] = []

    async def refuse(code: str | None) -> None:
        order = await next_order(owned)
        assert [await owned.take_order(order["id"]) for _ in range(2)] == [True, False]
        seen.append((order["verb"], order["content"]))
        await owned.end_order(order["id"], None if code is None else {"code": code, "message": "no"})

    async def steer() -> None:
        await fleet.client.steer(owned.id, "and hurry")

    async def answer() -> None:
        await fleet.client.answer(owned.id, "q", ["yes"], PROGRAM)

    assert await outcome_of(steer, lambda: refuse(None)) is None
    assert await outcome_of(answer, lambda: refuse(None)) is None
    for error in (SessionIdle, Unsupported, QuestionNotOpen, AnswerInvalid):
        assert await outcome_of(answer, lambda code=error.code: refuse(code)) is error  # type: ignore[misc]
    answered = {"question": "q", "answers": ["yes"], "by": {"who": "program"}}
    assert seen == [("steer", {"text": "and hurry"}), *[("answer", answered)] * 5]
    assert (await owned.orders())["orders"] == []
    with pytest.raises(AnswerInvalid):
        await fleet.client.answer(owned.id, "q", ["perhaps"], PROGRAM)
    with pytest.raises(QuestionNotOpen):
        await fleet.client.answer(owned.id, "another", ["yes"], PROGRAM)


async def test_an_order_to_a_machine_that_lost_the_task_was_not_carried_out_or_that_is_unknown(
    fleet: Fleet, owned: OwnedTask
) -> None:
    async def steer() -> None:
        await fleet.client.steer(owned.id, "and hurry")

    async def lose(*, is_taken: bool) -> None:
        order = await next_order(owned)
        if is_taken:
            assert await owned.take_order(order["id"])
        await hand_over_tasks(fleet.client.database, owned.row["worker"])

    assert await outcome_of(steer, lambda: lose(is_taken=False)) is SessionIdle
    with pytest.raises(SessionIdle):
        await steer()
    [again], _ = await OwnedTask.claim(fleet.client.database, await fleet.idle_worker("two"), 1)
    owned.row = again.row
    assert await outcome_of(steer, lambda: lose(is_taken=True)) is FleetUnavailable


async def test_an_order_that_no_machine_takes_is_taken_back(
    fleet: Fleet, owned: OwnedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_client, "_ORDER_SECONDS", 0.2)
    with pytest.raises(FleetUnavailable, match="Nothing was sent"):
        await fleet.client.steer(owned.id, "and hurry")
    assert (await owned.orders())["orders"] == []


async def test_an_answer_does_not_reach_a_later_attempt_that_asks_by_the_same_id(
    fleet: Fleet, owned: OwnedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is lost after the client has seen the question, and before its answer is stored."""
    asked = await fleet.client.questions(owned.id)
    await hand_over_tasks(fleet.client.database, owned.row["worker"])
    [again], _ = await OwnedTask.claim(fleet.client.database, await fleet.idle_worker("two"), 1)
    await again.ask(QUESTION, 60)

    async def seen_before(_task_id: str) -> Any:
        return asked

    monkeypatch.setattr(fleet.client, "questions", seen_before)
    with anyio.fail_after(SECONDS), pytest.raises(QuestionNotOpen):
        await fleet.client.answer(owned.id, "q", ["yes"], PROGRAM)
    assert (await again.orders())["orders"] == []


async def test_an_order_that_was_not_carried_out_before_its_machine_was_lost_never_is(
    fleet: Fleet, owned: OwnedTask
) -> None:
    """The machine read it, and was held up: the client was told that nothing was sent, and may have sent it again."""
    orders: list[dict[str, Any]] = []

    async def lose() -> None:
        orders.append(await next_order(owned))
        await hand_over_tasks(fleet.client.database, owned.row["worker"])

    async def steer() -> None:
        await fleet.client.steer(owned.id, "and hurry")

    assert await outcome_of(steer, lose) is SessionIdle
    with pytest.raises(NotOwner):
        await owned.take_order(orders[0]["id"])
    taken = "select taken_at is not null as taken from helmsman.orders"
    assert await fleet.client.database.all(taken) == [{"taken": True}], "taken back by the client"
