"""Messages into a running turn on another machine, delivered at most once."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.base.concurrency import sleep_until
from helmsman.errors import FleetRefused, FleetUnavailable, SessionIdle, Unsupported
from helmsman.fleet.rows import clean_text
from helmsman.fleet.values import refuse_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.fleet.client import FleetClient

_STEER_SECONDS: Final = 30.0
_STEER: Final = """
    with sent as (
        insert into helmsman.messages (id, task, epoch, text)
        select %(id)s, id, epoch, %(text)s from helmsman.tasks where id = %(task)s and status = 'working'
        on conflict do nothing returning id
    ),
    told as (
        select helmsman.tell_worker(worker, id) from helmsman.tasks where id = %(task)s and status = 'working'
    )
    select (select count(*) from told) as told,
        exists (select from sent) or exists (select from helmsman.messages where id = %(id)s) as is_sent
"""
_STEERED: Final = """
    select message.taken_at, message.ended_at, message.refused,
        task.status = 'working' and task.epoch = message.epoch as is_open
    from helmsman.messages message join helmsman.tasks task on task.id = message.task where message.id = %(id)s
"""
_WITHDRAW: Final = """
    update helmsman.messages set taken_at = clock_timestamp() where id = %(id)s and taken_at is null returning id
"""


async def steer(client: FleetClient, task_id: str, text: str) -> None:
    """Put a message into the turn of a task. Returns when its agent has it.

    Raises:
        SessionIdle: No turn runs, or it ended before the message came; it was not sent.
        FleetUnavailable: Its machine did not say within half a minute what became of it.
        InvalidInput: It holds a secret, which would be stored; it was not sent.
    """
    refuse_secrets(text)
    message = {"id": uuid.uuid4().hex, "task": task_id, "text": clean_text(text)}
    sent = await client.one(_STEER, message)
    with anyio.move_on_after(_STEER_SECONDS):
        while sent is not None and sent["is_sent"]:
            changed = client.watch(task_id)
            row = await client.one(_STEERED, message)
            if row is not None and row["ended_at"] is not None:
                _raise_refusal(row["refused"])
                return
            if row is None or not row["is_open"]:
                if row is not None and row["taken_at"] is not None:
                    raise _unknown(task_id)
                break
            await sleep_until(changed, 1.0)
        raise SessionIdle(f"No turn of task {task_id} runs now. Send it as a new message instead.")
    if await client.one(_WITHDRAW, message) is not None:
        raise FleetUnavailable(f"The machine of task {task_id} does not answer. The message was not sent; try again.")
    raise _unknown(task_id)


def _unknown(task_id: str) -> FleetUnavailable:
    return FleetUnavailable(f"It is unknown whether the agent of task {task_id} has the message. Look at its status.")


def _raise_refusal(refused: Mapping[str, Any] | None) -> None:
    """Raise the agent's refusal of a message as the same error as on its machine."""
    if refused is not None:
        kinds = {kind.code: kind for kind in (SessionIdle, Unsupported)}
        raise kinds.get(str(refused.get("code")), FleetRefused)(str(refused.get("message")))
