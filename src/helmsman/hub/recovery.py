"""What goes on in keepers when a hub begins is followed again at once, whether or not anybody asks for it.

Turns have outlived the hub that began them. Their questions have deadlines, their tasks limits and ends that somebody is to
write down, and the hub stays for as long as they run.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.base.temporary import clear_abandoned
from helmsman.errors import HelmsmanError
from helmsman.settings import load_settings

if TYPE_CHECKING:
    from helmsman.hub.interface import OpenView
    from helmsman.steering.core import Steering
    from helmsman.steering.shared import Shared

log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""How many sessions are attached to at the same time: none is to wait for all others, nor a client for them."""


async def recover(shared: Shared, open_view: OpenView) -> None:
    """Attach to every turn that runs in a keeper. What is known of each, its task tells: see `helmsman.steering.terms`."""
    limiter = anyio.CapacityLimiter(_AT_ONCE)
    await anyio.to_thread.run_sync(clear_abandoned, shared.state_dir)
    try:
        settings = replace(load_settings({}, os.environ, shared.state_dir), state_dir=shared.state_dir)
        view = open_view(settings, env=dict(os.environ), shared=shared)
        running = await shared.ledger.registry(lambda registry: registry.running())
    except HelmsmanError as error:
        log.warning("what went on before is not looked at: %s", error)
        return
    async with view as helm, anyio.create_task_group() as attaching:
        for task in running:
            is_followed = task.owner is not None and task.owner.is_alive()  # by a service inside another process
            if task.session_id is not None and task.engine is not None and not is_followed:
                attaching.start_soon(_attach, helm, task.id, task.session_id, limiter)


async def _attach(helm: Steering, task_id: str, session_id: str, limiter: anyio.CapacityLimiter) -> None:
    async with limiter:
        try:
            await helm.session(session_id)
        except HelmsmanError as error:
            log.warning("session %s of task %s is not followed: %s", session_id, task_id, error)
