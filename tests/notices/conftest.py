"""A hub's service without its process, on a clock that the test moves, and who is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import load_settings
from helmsman.hub.notifier import Notifier
from helmsman.hub.scheduler import Scheduler
from helmsman.notices.config import NotifySettings, Recipient
from helmsman.notices.store import Delivery
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.steering.recovery import Recovery, WaitingTasks
from helmsman.steering.shared import Shared
from helmsman.store.database import Fence
from tests.notices.receivers import SECONDS, NtfyServer, Receiver
from tests.played import PlayedAgent, PlayedEngine
from tests.schedules.test_scheduler import Clock


class House:
    """A hub's service without its process. `settings` say who is told."""

    def __init__(
        self, shared: Shared, helm: HelmsmanService, clock: Clock, agent: PlayedAgent, notifier: Notifier
    ) -> None:
        self.shared, self.helm, self.clock, self.agent, self.notifier = shared, helm, clock, agent, notifier

    @property
    def engine(self) -> PlayedEngine:
        return self.agent.engines[-1]

    async def start(self, directory: Path, prompt: str = "Fix the login test") -> Session:
        return await self.helm.start(prompt, cwd=directory)

    async def ask(self, directory: Path) -> Session:
        """A session with an open question."""
        session = await self.start(directory)
        self.engine.ask()
        assert session.questions
        return session

    async def pass_time(self, seconds: float) -> None:
        """Let time pass from the moment at which the notifier has read what was asked."""
        await self.shared.task_writer.write()
        with anyio.fail_after(SECONDS):
            await self.notifier.settings()
            await self.notifier.settings()
        self.clock.move(self.clock.now + timedelta(seconds=seconds))

    async def log(self, is_so: Callable[[tuple[Delivery, ...]], bool]) -> tuple[Delivery, ...]:
        """What is known of all deliveries, newest first, once that is so."""
        with anyio.fail_after(SECONDS):
            while not is_so(known := await self.shared.notices.log(100)):
                await anyio.sleep(0.01)
        return known

    async def delivered(self, *statuses: str) -> tuple[Delivery, ...]:
        """All deliveries, once there are these."""
        return await self.log(lambda known: sorted(one.status for one in known) == sorted(statuses))

    async def settled(self) -> None:
        """Wait until all that has happened was looked at."""
        await self.shared.task_writer.write()
        with anyio.fail_after(SECONDS):
            while await self.shared.notices.due():
                await anyio.sleep(0.01)
            await self.notifier.settings()
            await self.notifier.settings()


@asynccontextmanager
async def opened(state_dir: Path, *to: Recipient, clock: Clock | None = None, **more: Any) -> AsyncIterator[House]:
    chosen = load_settings({"default_agent": "played", "state_dir": str(state_dir)}, {}, state_dir)
    agent, clock = PlayedAgent(), clock or Clock()
    settings = more.pop("settings", lambda: NotifySettings(to, **more))

    def replaced(epoch: int) -> None:
        raise AssertionError(epoch)

    async with Shared(state_dir, [agent], fence=Fence(1, replaced)) as shared:
        waiting_tasks = WaitingTasks(shared, HelmsmanService)
        recovery = Recovery(shared, waiting_tasks)
        shared.schedules.clock = shared.notices.clock = clock
        scheduler = Scheduler(shared, waiting_tasks, clock.sleep)
        notifier = Notifier(shared, load=settings, sleep=clock.sleep)
        for run in (recovery.run, scheduler.run, notifier.run):
            shared.tasks.start_soon(run)
        async with HelmsmanService(chosen, shared=shared) as helm:
            await notifier.settings()
            yield House(shared, helm, clock, agent, notifier)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    place = tmp_path / "state"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "site"
    place.mkdir()
    return place


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def ntfy() -> Iterator[NtfyServer]:
    with NtfyServer() as server:
        yield server


def webhook(receiver: Receiver, **more: Any) -> Recipient:
    return Recipient(**{"name": "hook", "way": "webhook", "url": f"{receiver.url}/hook", **more})


def by_ntfy(server: NtfyServer, **more: Any) -> Recipient:
    given = {"name": "phone", "way": "ntfy", "url": server.url, "topic": "mine", "secret": server.token}
    return Recipient(**{**given, "is_full": True, "answers": True, "reply_topic": "mine-replies", **more})
