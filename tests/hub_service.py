"""A hub in a test's own process, with one client: its engines outlive it, and the next one takes over what it left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from helmsman.agents.protocol import Agent
from helmsman.agents.supervisor.client import Owner
from helmsman.hub.client import HubClient
from helmsman.hub.scheduler import Scheduler
from helmsman.hub.service_client import ServiceClient
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.steering.recovery import Recovery, WaitingTasks
from helmsman.steering.shared import Shared
from helmsman.store import open_store
from helmsman.store.database import Fence
from helmsman.tasks.registry import REGISTRY_NAME


@asynccontextmanager
async def hub_service(
    settings: Settings, env: Mapping[str, str], agents: Iterable[Agent] = ()
) -> AsyncIterator[HelmsmanService]:
    """The client's Helmsman. Several may follow each other, as hubs do."""
    epoch = open_store(settings.state_dir / REGISTRY_NAME).newest_epoch() + 1
    fence = Fence(epoch, lambda _: None)
    async with Shared(settings.state_dir, agents, owner=Owner(epoch), fence=fence) as shared:
        waiting_tasks = WaitingTasks(shared, HelmsmanService)
        recovery = Recovery(shared, waiting_tasks)
        shared.tasks.start_soon(recovery.run)
        shared.tasks.start_soon(Scheduler(shared, waiting_tasks).run)
        async with HelmsmanService(settings, env=env, shared=shared) as helm:
            yield helm


def hub_of(helm: ServiceClient) -> HubClient:
    """The hub that this one asks for everything."""
    assert isinstance(helm._backend, HubClient)
    return helm._backend
