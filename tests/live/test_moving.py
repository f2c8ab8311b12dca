"""Sessions of a real Codex that go from one machine to another: two homes, two repositories, two Helmsmen."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from helmsman import Session, load_settings
from helmsman.agents.codex.features import Version
from helmsman.agents.codex.storage import CodexTranscripts
from helmsman.agents.transcripts import TranscriptPart
from helmsman.base.process_ending import signal_all
from helmsman.base.processes import KILL, descendants
from helmsman.errors import CannotMove
from helmsman.service import HelmsmanService
from helmsman.steering.carrying import AWAY
from helmsman.steering.opening import Carried
from helmsman.testing import CodexHome, ScriptedModel, hang, make_repository, run, say
from helmsman.testing.binaries import codex_version
from helmsman.testing.home import HomeTemplates
from tests.carrying import carried, gathered
from tests.live.detached import Place, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rare,
    pytest.mark.skipif(os.name != "posix", reason="There are no supervisors here."),
]

SECONDS = 60


@dataclass
class Machine:
    """A home with its own repository. All it has stored is `parts`, in the order in which a database would give it."""

    home: CodexHome
    repo: Path
    codex: Path

    @asynccontextmanager
    async def helm(self) -> AsyncIterator[HelmsmanService]:
        settings = load_settings({"codex_path": str(self.codex), "detach": False}, self.home.env, self.repo)
        async with HelmsmanService(settings, env=self.home.env) as helm:
            yield helm


@pytest.fixture
def one(codex_home: CodexHome, git_repo: Path, codex_binary: Path) -> Machine:
    return Machine(codex_home, git_repo, codex_binary)


@pytest.fixture
def other(tmp_path: Path, codex_binary: Path, codex_home_templates: HomeTemplates, model: ScriptedModel) -> Machine:
    home = codex_home_templates.new_home(codex_binary, tmp_path / "other-home")
    version = codex_version(codex_binary)
    home.use_model(model.base_url, version)
    home.keep_quiet(version)
    return Machine(home, make_repository(tmp_path / "other-repo"), codex_binary)


async def ended(session: Session) -> Session:
    with anyio.fail_after(SECONDS):
        await session.wait(until="end")
    assert session.error is None
    return session


async def test_a_machine_is_killed_in_a_turn_and_another_continues_in_the_same_thread_with_its_own_policy(
    place: Place, other: Machine, model: ScriptedModel
) -> None:
    """The thread had full access and asked nobody. What the other machine is told is all it may do there."""
    model.on("begin", run("echo seen-on-one"), hang())
    order = {"prompt": "begin", "sandbox": "danger-full-access"}
    transcripts = CodexTranscripts(place.codex_home.path, place.binary.version)
    stored: dict[str, int] = {}
    parts: list[TranscriptPart] = []
    async with place.used_by_a_process(**order) as user:
        session_id = await user.says("session")
        with anyio.fail_after(SECONDS):
            while b"function_call_output" not in b"".join(part.data for part in parts):
                parts += (news := transcripts.tails(session_id, stored))
                stored |= {part.file: part.start + len(part.data) for part in news}
                await anyio.sleep(0.05)
        (record,) = place.records
        everything = {record.supervisor, record.child} | descendants(record.supervisor)
        signal_all(everything, KILL)
        await user.kill()
    await until(lambda: not any(process.is_alive() for process in everything))
    assert [part.data[-1:] for part in parts] == [b"\n"] * len(parts)

    outside = other.repo.parent / "outside"
    model.on("go on", run(f"pwd; touch {outside}; touch inside"), say("done"))
    async with other.helm() as helm:
        await (await carried(helm, session_id)).place(parts, other.repo)
        session = await ended(
            await helm.start("go on", cwd=other.repo, sandbox="read-only", carried=Carried(session_id))
        )
        assert session.id == session_id
        assert (session.state.sandbox, session.directory) == ("read-only", str(other.repo))
    told = json.dumps(model.requests[-1].body)
    assert "seen-on-one" in told
    assert str(other.repo) in model.requests[-1].tool_output
    assert "Read-only file system" in model.requests[-1].tool_output  # Codex tells no item of a command that fails so
    assert not outside.exists()
    assert not (other.repo / "inside").exists()


async def test_a_session_comes_back_to_a_machine_that_had_gone_another_way(
    one: Machine, other: Machine, model: ScriptedModel
) -> None:
    """It has the session loaded still, with a turn that counts nowhere. A name, a turn taken back and a fork come along."""
    for word in ("first", "second", "fenced", "third", "fork"):
        model.on(word, say(f"said {word}"))
    async with one.helm() as here, other.helm() as there:
        session = await ended(await here.start("first", cwd=one.repo))
        await here.extras.upkeep.rename(session.id, "A name")
        parts = await gathered(await carried(here, session.id))
        moved = await carried(there, session.id)
        await moved.place(parts, other.repo)
        await ended(await there.start("second", cwd=other.repo, carried=Carried(session.id)))
        info = there.agents["codex"].sessions(there.settings, None)
        assert info is not None
        assert (found := info.find(session.id)) is not None
        assert found.name == "A name"
        parts = sorted([*parts, *await gathered(moved)], key=lambda part: (part.file, part.start))
        await ended(await here.say(session.id, "fenced"))  # by a machine that does not know that it is out

        await (await carried(here, session.id)).place(parts, one.repo)
        await ended(await here.start("third", cwd=one.repo, carried=Carried(session.id)))
        told = json.dumps(model.requests[-1].body)
        assert ("said second" in told, "said fenced" in told) == (True, False)
        (away,) = (here.settings.state_dir / AWAY).glob("*/*.jsonl")
        assert "said fenced" in away.read_text(encoding="utf-8")

        parted = await ended(await here.start("first", cwd=one.repo))
        await ended(await parted.say("second"))
        whole = await gathered(await carried(here, parted.id))
        await here.extras.upkeep.roll_back(parted.id)
        both = await gathered(await carried(here, parted.id))
        assert len({part.file for part in both}) == 2
        await (await carried(there, parted.id)).place(both, other.repo)
        await ended(await there.start("third", cwd=other.repo, carried=Carried(parted.id)))
        told = json.dumps(model.requests[-1].body)
        assert ("said first" in told, "said second" in told) == (True, False)
        with pytest.raises(CannotMove, match="taken back to an earlier turn"):
            await (await carried(there, parted.id)).place(whole, other.repo)

        fork = await ended(await (await here.fork(session.id)).say("fork"))
        whole = await gathered(await carried(here, fork.id))
        own = [part for part in whole if fork.id in part.file]
        with pytest.raises(CannotMove, match="Not all files"):
            await (await carried(there, fork.id)).place(own, other.repo)
        await (await carried(there, fork.id)).place(whole, other.repo)
        await ended(await there.start("third", cwd=other.repo, carried=Carried(fork.id)))
        assert "said fork" in json.dumps(model.requests[-1].body)

    old = CodexTranscripts(one.home.path, Version.parse("0.130.0"))
    before = sorted((one.home.path / "sessions").rglob("*"))
    for wrong, why in (
        (whole, r"Codex 0\.130\.0 would damage"),
        ([whole[-1]._replace(start=1)], "lacks something"),
        ([whole[-1]._replace(file="../../x.jsonl")], "is not placed"),
    ):
        with pytest.raises(CannotMove, match=why):
            old.place(fork.id, wrong, directory=one.repo, away=one.repo)
    assert sorted((one.home.path / "sessions").rglob("*")) == before
