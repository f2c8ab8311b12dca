"""Very many sessions, each stopped at a moment that chance decides (always the same chance): none is lost, nothing stays."""

from __future__ import annotations

import random
from collections import Counter

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import always, hang, run, say
from tests.faults.scene import SECONDS, Scene, bound

pytestmark = [pytest.mark.anyio, bound, pytest.mark.rare]

AT_ONCE = 10
SLOWEST = 0.3
"""No session is left alone for longer before it is stopped, but those whose end is waited for."""


async def test_a_hundred_sessions_are_stopped_at_random_and_each_tells_how_it_ended(scene: Scene) -> None:
    await stop_at_random(scene, 100)


async def stop_at_random(scene: Scene, sessions: int) -> None:
    chance = random.Random(sessions)
    scene.model.on("quick", always(say("Done.")))
    scene.model.on("patient", always(say("Done.")))
    scene.model.on("silent", always(hang()))
    scene.model.on("talks", always(say("Some", hang())))
    scene.model.on("works", run("sleep 1000"), always(hang()))
    prompts = [chance.choice(["quick", "patient", "silent", "talks", "works"]) for _ in range(sessions)]
    orders = [(prompt, SECONDS if prompt == "patient" else chance.uniform(0, SLOWEST)) for prompt in prompts]
    ends: Counter[str] = Counter()
    tasks: list[str] = []
    place = scene.repo.with_name("plain")  # in a repository Codex runs git for every session, for nothing here
    place.mkdir()

    async def work(helm: HelmsmanService) -> None:
        while orders:
            prompt, patience = orders.pop()
            session = await helm.start(prompt, cwd=place)
            await session.wait(until="end", timeout=patience)
            await session.interrupt()
            assert not session.state.is_running
            ends[session.status] += 1
            tasks.extend(session.task_ids)

    async with scene.helmsman() as helm:
        async with anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(work, helm)
        assert set(ends) == {"done", "interrupted"}
        assert ends.total() == len(set(tasks)) == sessions
        await helm.task_writer.write()
        known = await helm.task_writer.registry(lambda registry: [registry.get(task) for task in tasks])
        told = Counter(task.status for task in known if task is not None)
        assert (told["completed"], told["canceled"]) == (ends["done"], ends["interrupted"])
        with anyio.fail_after(SECONDS):
            await scene.next_session_works(helm)
