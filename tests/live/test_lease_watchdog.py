"""An engine on a lease: it lives as long as its holder goes on renewing, and not a moment longer."""

from __future__ import annotations

import os
import signal
import time

import pytest

from helmsman.agents.supervisor.process import surviving_descendants
from helmsman.base.processes import descendants
from helmsman.testing import ScriptedModel, run, say
from tests.live.detached import Place, until

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="There are no supervisors here.")]

LEASE = 2.0


@pytest.mark.long
@pytest.mark.parametrize(("number", "bound"), [(signal.SIGSTOP, LEASE + 2), (signal.SIGKILL, 1.5)])
async def test_when_its_holder_hangs_or_dies_it_is_killed_with_all_it_has_started(
    place: Place, model: ScriptedModel, number: signal.Signals, bound: float
) -> None:
    """Also what has left its process group; before that, it outlived its lease by being renewed."""
    away = "setsid sh -c 'trap \"\" TERM; touch away; sleep 1000' > /dev/null 2>&1 &"
    model.on("go", run(f"{away} sleep {LEASE + 0.5}; touch outlived; sleep 1000"), say("never"))
    order = {"prompt": "go", "sandbox": "danger-full-access", "lease": str(LEASE)}
    async with place.used_by_a_process(**order) as user:
        await user.says("session")
        (record,) = place.records
        await until((place.repo / "outlived").exists)
        assert (place.repo / "away").exists()
        below = descendants(record.supervisor)
        assert len(below) >= 4  # Codex, the shell, what the shell waits for, what got away
        user.signal(number)
        stopped_at = time.monotonic()
        await until(lambda: not any(one.is_alive() for one in below))
        took = time.monotonic() - stopped_at
        await until(lambda: not record.is_supervised)
        assert not surviving_descendants(record.directory)
    assert took < bound
    because = (record.directory.parent / "last-exit.log").read_text(encoding="utf-8")
    assert ("not renewed for 2 s" if number == signal.SIGSTOP else "its holder has ended") in because
