"""What goes on in keepers when a hub begins is followed again at once, whether or not anybody asks for it.

Turns have outlived the hub that began them. Their questions have deadlines, their tasks limits and ends that somebody is to
write down, and the hub stays for as long as they run.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from helmsman.errors import HelmsmanError
from helmsman.service import Helmsman
from helmsman.settings import load_settings

if TYPE_CHECKING:
    from helmsman.steering.shared import Shared

log = logging.getLogger(__name__)


async def recover(shared: Shared) -> None:
    """Attach to every turn that runs in a keeper. What is known of each, its task tells: see `helmsman.steering.terms`."""
    try:
        settings = replace(load_settings({}, os.environ, shared.state_dir), state_dir=shared.state_dir)
        helm = Helmsman(settings, env=dict(os.environ), shared=shared)
        running = await shared.ledger.registry(lambda registry: registry.running())
    except HelmsmanError as error:
        log.warning("what went on before is not looked at: %s", error)
        return
    async with helm:
        for task in running:
            is_followed = task.owner is not None and task.owner.is_alive()  # by a service inside another process
            if task.session_id is None or task.engine is None or is_followed:
                continue
            try:
                await helm.session(task.session_id)
            except HelmsmanError as error:
                log.warning("session %s of task %s is not followed: %s", task.session_id, task.id, error)
