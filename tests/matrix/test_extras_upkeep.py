"""The upkeep of sessions and the account, on every supported Codex: it works, or is refused by naming who can."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from helmsman.agents.codex.agent import agent_in_use
from helmsman.agents.codex.features import Feature
from helmsman.agents.protocol import ConfigEdit
from helmsman.base.structs import replace
from helmsman.capabilities.configuration import value_at
from helmsman.errors import EngineRefused, RateLimitLow, Unsupported
from helmsman.model.events import ContextCompaction, UserMessage
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import CodexHome, ScriptedModel, always, hang, rate_limit, say
from tests.matrix.conftest import Verdict
from tests.shared_engine import SharedEngine, on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.matrix, pytest.mark.anyio, on_shared_engine]

SECONDS = 60


async def finished(session: Session) -> Session:
    assert await session.wait(until="end", timeout=SECONDS)
    return session


async def prompts(helm: HelmsmanService, session_id: str) -> list[str]:
    history = await helm.history(session_id)
    return [item.text for turn in history for item in turn.items if isinstance(item, UserMessage)]


async def made_elsewhere(shared: SharedEngine, directory: Path, *words: str) -> str:
    """A session with these turns, which no process has loaded."""
    shared.model.otherwise(always(say("ok")))
    async with HelmsmanService(shared.settings, env=shared.env) as helm:
        session = await finished(await helm.start(words[0], cwd=directory))
        for word in words[1:]:
            await finished(await session.say(word))
    return session.id


@pytest.fixture(scope="module")
async def three_turns(shared_engine: SharedEngine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The session that tests make forks of: that leaves it as it is."""
    return await made_elsewhere(shared_engine, tmp_path_factory.mktemp("forked"), "alpha", "beta", "gamma")


async def test_fork_from_a_turn(
    helm: HelmsmanService, model: ScriptedModel, three_turns: str, verdict: Verdict
) -> None:
    model.otherwise(always(say("ok")))
    whole = await finished(await helm.fork(three_turns, "delta"))
    assert await prompts(helm, whole.id) == ["alpha", "beta", "gamma", "delta"]
    if not (await agent_in_use(helm.settings, helm.environment)).can(Feature.FORK_AT_TURN):
        with pytest.raises(Unsupported, match=r"0\.143\.0 and newer") as refused:
            await helm.fork(three_turns, "delta", from_turn=1)
        verdict.refused(refused.value)
        return
    fork = await finished(await helm.fork(three_turns, "delta", from_turn=1))
    assert await prompts(helm, fork.id) == ["alpha", "delta"]
    assert "beta" not in model.requests[-1].user_texts


async def test_fork_that_waits_for_its_message(
    helm: HelmsmanService, shared_engine: SharedEngine, model: ScriptedModel, three_turns: str, verdict: object
) -> None:
    model.otherwise(always(say("ok")))
    async with HelmsmanService(shared_engine.settings, env=shared_engine.env) as another:
        fork = await another.fork(three_turns)
    assert (await finished(await helm.say(fork.id, "delta"))).result == "ok"
    assert model.requests[-1].user_texts == ("alpha", "beta", "gamma", "delta")


async def test_rollback(
    helm: HelmsmanService, shared_engine: SharedEngine, model: ScriptedModel, git_repo: Path, verdict: object
) -> None:
    session_id = await made_elsewhere(shared_engine, git_repo, "alpha", "beta", "gamma")
    async with HelmsmanService(shared_engine.settings, env=shared_engine.env) as another:
        await another.extras.upkeep.roll_back(session_id, 2)
        assert await prompts(another, session_id) == ["alpha"]
        await finished(await another.say(session_id, "delta"))
        assert list(model.requests[-1].user_texts) == ["alpha", "delta"]
    assert [info.session_id for info in (await helm.list(directory=git_repo))[0]] == [session_id]  # and so it stays
    await finished(await helm.say(session_id, "epsilon"))
    assert list(model.requests[-1].user_texts) == ["alpha", "delta", "epsilon"]


async def test_compact(
    helm: HelmsmanService, shared_engine: SharedEngine, folder: Path, model: ScriptedModel, verdict: Verdict
) -> None:
    session_id = await made_elsewhere(shared_engine, folder, "alpha")
    if not (await agent_in_use(helm.settings, helm.environment)).can(Feature.COMPACT):
        with pytest.raises(Unsupported, match=r"0\.96\.0 and newer") as refused:
            await helm.extras.upkeep.compact(session_id)
        verdict.refused(refused.value)
        assert (await helm.session(session_id)).status == "done"
        return
    session = await finished(await helm.extras.upkeep.compact(session_id))
    assert session.status == "done"
    assert any(isinstance(item, ContextCompaction) for item in session.items)


async def test_names_and_the_archive(
    helm: HelmsmanService, shared_engine: SharedEngine, folder: Path, model: ScriptedModel, verdict: object
) -> None:
    session_id = await made_elsewhere(shared_engine, folder, "alpha")
    upkeep = helm.extras.upkeep
    await upkeep.rename(session_id, "A name")
    assert [info.name for info in (await helm.list(directory=folder))[0]] == ["A name"]
    await upkeep.archive(session_id)
    assert (await helm.list(directory=folder))[0] == []
    await upkeep.unarchive(session_id)
    assert (await finished(await helm.say(session_id, "delta"))).result == "ok"


async def test_goal(
    helm: HelmsmanService,
    codex_version: tuple[int, int, int],
    model: ScriptedModel,
    folder: Path,
    verdict: Verdict,
) -> None:
    model.on("alpha", say("ok"), always(hang()))
    session = await finished(await helm.start("alpha", cwd=folder))
    try:
        goal = await helm.extras.upkeep.set_goal(session.id, "All tests pass")
    except Unsupported as refused:
        assert codex_version < (0, 145, 0)
        assert "0.128.0 and newer" in refused.message or "0.145.0" in refused.message  # noqa: PT017
        verdict.refused(refused)
        assert session.status == "done"
        return
    assert goal is not None
    assert (goal.objective, session.status) == ("All tests pass", "active")
    await session.interrupt()
    await helm.extras.upkeep.clear_goal(session.id)
    assert await helm.extras.upkeep.goal(session.id) is None
    assert (await finished(session)).status == "interrupted"


@on_its_own_engine
async def test_rate_limits_and_models(
    helm: HelmsmanService, model: ScriptedModel, folder: Path, verdict: object
) -> None:
    limits = rate_limit(90, window_minutes=300, resets_at=int(time.time()) + 3600), rate_limit(20, name="secondary")
    model.on("alpha", [say("ok"), *limits])
    assert [one.is_default for one in await helm.extras.account.models()].count(True) == 1
    session = await finished(await helm.start("alpha", cwd=folder, min_remaining_percent=50))
    assert any("Nothing is known" in note for note in session.notes)
    report = await helm.extras.account.read()
    assert [limit.remaining_percent for limit in report.limits] == [10, 80]
    assert report.large_task_fits == "uncertain"
    with pytest.raises(RateLimitLow):
        await helm.start("beta", cwd=folder, min_remaining_percent=50)


@on_its_own_engine
async def test_skills_and_configuration(
    helm: HelmsmanService, codex_home: CodexHome, folder: Path, verdict: object
) -> None:
    skill = codex_home.path / "skills" / "mine" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: mine\ndescription: Is mine.\n---\nDo it.\n", encoding="utf-8")
    found = {skill.name: skill for skill in (await helm.extras.account.skills(folder)).skills}
    assert (found["mine"].description, found["mine"].scope, found["mine"].path) == ("Is mine.", "user", str(skill))
    configuration = helm.extras.configuration
    verbose, quiet = (ConfigEdit(key="model_verbosity", value=value) for value in ("high", "low"))
    planned = await configuration.plan([verbose])
    assert (planned.file, planned.before) == (str(codex_home.config_path), {})
    assert await configuration.write(planned) is None
    with pytest.raises(EngineRefused, match="modified since"):  # what was shown then is not what is there
        await configuration.write(replace(planned, edits=(quiet,)))
    more = await configuration.plan([quiet, ConfigEdit(key="mcp_servers.a", value={"command": "true"})])
    assert more.before == {"model_verbosity": "high"}
    await configuration.write(more)
    config = await configuration.read(folder)
    assert config.values["model_verbosity"] == "low"
    assert value_at(config.values, "mcp_servers.a.command") == "true"
    await configuration.write(await configuration.plan([ConfigEdit(key="model_verbosity", value=None)]))
    assert "model_verbosity" not in codex_home.config_path.read_text(encoding="utf-8")
