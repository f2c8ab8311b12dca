from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, SessionBusy, SessionNotFound, Unsupported
from helmsman.model.events import ContextCompaction, TurnEnded, UserMessage
from helmsman.model.options import ReviewTarget
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings, load_settings
from helmsman.testing import CodexHome, ScriptedModel, always, hang, say
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.anyio, on_shared_engine]

UNKNOWN = "01a1ddf0-ca70-74e1-932e-ae2da7c7e29c"


async def settled(session: Session) -> Session:
    assert await session.wait(until="end", timeout=30)
    return session


@pytest.fixture
async def three_turns(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> Session:
    """A session in which three messages were answered."""
    for word in ("alpha", "beta", "gamma"):
        model.on(word, say(f"answer {word}"))
    session = await settled(await helm.start("alpha", cwd=folder))
    for word in ("beta", "gamma"):
        await settled(await session.say(word))
    return session


async def prompts(helm: HelmsmanService, session_id: str) -> list[str]:
    history = await helm.history(session_id)
    return [item.text for turn in history for item in turn.items if isinstance(item, UserMessage)]


@pytest.fixture
def elsewhere(settings: Settings, codex_home: CodexHome) -> HelmsmanService:
    """Another Helmsman, which has not seen any session yet."""
    return HelmsmanService(settings, env=codex_home.env)


# --- forks -----------------------------------------------------------------------------------------------------------


async def test_a_fork_from_an_earlier_turn_shares_what_was_before(
    helm: HelmsmanService, model: ScriptedModel, three_turns: Session
) -> None:
    model.on("other", say("another way"))
    fork = await settled(await helm.fork(three_turns.id, "other", from_turn=2))
    assert fork.id != three_turns.id
    assert await prompts(helm, fork.id) == ["alpha", "beta", "other"]
    assert "gamma" not in model.requests[-1].user_texts
    assert await prompts(helm, three_turns.id) == ["alpha", "beta", "gamma"]
    assert fork.task_ids


async def test_a_fork_may_name_its_turn_by_id_and_wait_for_its_message(
    helm: HelmsmanService, three_turns: Session
) -> None:
    first = (await helm.history(three_turns.id))[0]
    fork = await helm.fork(three_turns.id, from_turn=first.id)
    assert fork.status == "done"
    assert await prompts(helm, fork.id) == ["alpha"]


async def test_a_fork_from_a_turn_that_is_not_there_is_refused(helm: HelmsmanService, three_turns: Session) -> None:
    known = set(helm.sessions)
    for which in (0, 4, "4", "no-such-turn", -1):
        with pytest.raises(InvalidInput, match="number from 1 to 3"):
            await helm.fork(three_turns.id, "other", from_turn=which)
    assert set(helm.sessions) == known


# --- rollback --------------------------------------------------------------------------------------------------------


async def test_the_last_turns_are_forgotten(helm: HelmsmanService, model: ScriptedModel, three_turns: Session) -> None:
    await helm.extras.upkeep.roll_back(three_turns.id, 2)
    assert three_turns.result == "answer alpha"
    assert three_turns.turn_count == 1
    model.on("again", say("ok"))
    await settled(await three_turns.say("again"))
    assert "beta" not in model.requests[-1].user_texts
    assert await prompts(helm, three_turns.id) == ["alpha", "again"]


@on_its_own_engine
async def test_a_session_taken_back_is_listed_once_and_keeps_its_beginning(
    helm: HelmsmanService, elsewhere: HelmsmanService, three_turns: Session
) -> None:
    await helm.extras.upkeep.roll_back(three_turns.id)
    (info,) = (await elsewhere.list())[0]
    assert (info.session_id, info.first_prompt) == (three_turns.id, "alpha")


@on_its_own_engine
async def test_a_session_of_another_process_is_taken_back(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.otherwise(always(say("ok")))
    async with HelmsmanService(settings, env=codex_home.env) as first:
        session = await settled(await first.start("alpha", cwd=folder))
        await settled(await session.say("beta"))
    async with HelmsmanService(settings, env=codex_home.env) as second:
        await second.extras.upkeep.roll_back(session.id)
        assert await prompts(second, session.id) == ["alpha"]


@on_its_own_engine
@pytest.mark.matrix(changed_in=["0.148.0", "0.155.0"])
async def test_another_process_is_not_shown_what_was_forgotten(
    elsewhere: HelmsmanService, helm: HelmsmanService, three_turns: Session
) -> None:
    await helm.extras.upkeep.roll_back(three_turns.id, 2)
    await helm.task_writer.write()
    async with elsewhere:
        session = await elsewhere.session(three_turns.id)
        assert (session.result, session.status) == ("answer alpha", "done")


async def test_more_turns_than_there_are_cannot_be_forgotten(helm: HelmsmanService, three_turns: Session) -> None:
    for turns, sentence in ((4, "has 3 turns"), (0, "from 1 on"), (-1, "from 1 on")):
        with pytest.raises(InvalidInput, match=sentence):
            await helm.extras.upkeep.roll_back(three_turns.id, turns)
    assert await prompts(helm, three_turns.id) == ["alpha", "beta", "gamma"]


# --- compaction ------------------------------------------------------------------------------------------------------


async def test_a_compaction_is_a_turn_and_a_task(
    helm: HelmsmanService, model: ScriptedModel, three_turns: Session
) -> None:
    model.otherwise(say("a summary"))
    known = list(three_turns.task_ids)
    await helm.extras.upkeep.compact(three_turns.id)
    assert len(three_turns.task_ids) == len(known) + 1
    await settled(three_turns)
    assert three_turns.status == "done"
    assert any(isinstance(item, ContextCompaction) for item in three_turns.items)
    task = (await helm.tasks.of_sessions([three_turns.id]))[three_turns.id][0]
    assert (task.instruction, task.status) == ("Compact the history", "completed")


async def test_a_compaction_is_interrupted(helm: HelmsmanService, model: ScriptedModel, three_turns: Session) -> None:
    model.otherwise(always(hang()))
    await helm.extras.upkeep.compact(three_turns.id)
    assert three_turns.state.is_running
    with anyio.fail_after(30):
        await three_turns.interrupt()
        await settled(three_turns)
    assert three_turns.status == "interrupted"


# --- names and the archive -------------------------------------------------------------------------------------------


@on_its_own_engine
async def test_a_name_shows_in_the_list_and_in_the_session(helm: HelmsmanService, three_turns: Session) -> None:
    await helm.extras.upkeep.rename(three_turns.id, "  The parser ")
    assert three_turns.state.name == "The parser"
    assert [info.name for info in (await helm.list())[0]] == ["The parser"]


async def test_an_invalid_name_is_refused(helm: HelmsmanService, three_turns: Session) -> None:
    for name in ("", "  ", "two\nlines", "x" * 201):
        with pytest.raises(InvalidInput, match="name"):
            await helm.extras.upkeep.rename(three_turns.id, name)
    assert three_turns.state.name is None


@on_its_own_engine
async def test_an_archived_session_is_forgotten_and_comes_back(
    helm: HelmsmanService, model: ScriptedModel, three_turns: Session
) -> None:
    upkeep = helm.extras.upkeep
    await upkeep.archive(three_turns.id)
    assert three_turns.id not in helm.sessions
    assert (await helm.list())[0] == []
    assert [info.archived for info in (await helm.list(include_archived=True))[0]] == [True]
    for refused in (upkeep.archive, upkeep.compact, upkeep.roll_back):
        with pytest.raises(InvalidInput, match="is archived"):
            await refused(three_turns.id)
    with pytest.raises(InvalidInput, match="is archived"):
        await upkeep.rename(three_turns.id, "name")
    await upkeep.unarchive(three_turns.id)
    with pytest.raises(InvalidInput, match="is not archived"):
        await upkeep.unarchive(three_turns.id)
    assert [info.archived for info in (await helm.list())[0]] == [False]
    model.on("back", say("yes"))
    session = await settled(await helm.say(three_turns.id, "back"))
    assert session.result == "yes"
    assert "gamma" in model.requests[-1].user_texts


@pytest.mark.matrix
async def test_an_archived_session_continues_only_when_it_is_back(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("hello", say("hi"))
    session = await settled(await helm.start("hello", cwd=folder))
    await helm.extras.upkeep.archive(session.id)
    requests = len(model.requests)
    target = ReviewTarget(kind="custom", value="Look at everything")
    for goes_on in (
        lambda: helm.say(session.id, "more"),
        lambda: helm.fork(session.id, "more"),
        lambda: helm.extras.upkeep.set_goal(session.id, "more"),
        lambda: helm.extras.upkeep.goal(session.id),
        lambda: helm.extras.upkeep.clear_goal(session.id),
        lambda: helm.extras.reviews.start(target, session_id=session.id),
    ):
        with pytest.raises(InvalidInput, match="is archived"):
            await goes_on()
    assert len(model.requests) == requests
    assert (await helm.extras.upkeep.unarchive(session.id)).status == "done"


@on_its_own_engine
async def test_a_session_with_a_waiting_message_is_not_archived(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("hello", say("hi"), say("done"))
    model.on("hang", hang())
    async with HelmsmanService(replace(settings, max_sessions=1), env=codex_home.env) as helm:
        session = await settled(await helm.start("hello", cwd=folder))
        other = await helm.start("hang", cwd=folder)
        await helm.say(session.id, "hello", when_busy="queue")
        with pytest.raises(SessionBusy):
            await helm.extras.upkeep.archive(session.id)
        await helm.interrupt(session.id)
        await other.interrupt()


@on_its_own_engine
async def test_a_session_taken_back_is_archived_whole(helm: HelmsmanService, three_turns: Session) -> None:
    await helm.extras.upkeep.roll_back(three_turns.id)
    await helm.extras.upkeep.archive(three_turns.id)
    assert (await helm.list())[0] == []
    assert [info.session_id for info in (await helm.list(include_archived=True))[0]] == [three_turns.id]


# --- goals -----------------------------------------------------------------------------------------------------------


async def test_a_goal_is_worked_on_turn_after_turn_each_a_task_until_it_is_cleared(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("hello", say("hi"), say("a first step"), say("a second", gate, " step"), always(say("more")))
    session = await settled(await helm.start("hello", cwd=folder))
    upkeep = helm.extras.upkeep
    assert await upkeep.goal(session.id) is None
    goal = await upkeep.set_goal(session.id, "All tests pass")
    assert goal is not None
    assert (goal.objective, goal.status) == ("All tests pass", "active")
    with anyio.fail_after(30):
        await gate.reached()
    with pytest.raises(SessionBusy):
        await upkeep.set_goal(session.id, "Another")
    await upkeep.clear_goal(session.id)
    assert await upkeep.goal(session.id) is None
    gate.release()
    await settled(session)
    assert session.result == "a second step"
    with anyio.fail_after(30):
        while len(session.task_ids) < 3 or helm.task_writer.running_task(session.id) is not None:
            await anyio.sleep(0.01)  # tasks are registered in parallel with turns
    await helm.task_writer.write()
    tasks = (await helm.tasks.of_sessions([session.id]))[session.id]
    assert [task.instruction for task in tasks] == ["Work towards the goal: All tests pass"] * 2 + ["hello"]
    assert {task.status for task in tasks} == {"completed"}


async def test_however_many_goals_were_set_before_each_turn_is_one_task(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    upkeep = helm.extras.upkeep
    model.on("hello", say("hi"), always(hang()))
    model.on("other", say("hi"), say("a first step"), say("a second", gate, " step"), always(hang()))
    first = await settled(await helm.start("hello", cwd=folder))
    await upkeep.set_goal(first.id, "First")
    await upkeep.clear_goal(first.id)
    await first.interrupt()
    session = await settled(await helm.start("other", cwd=folder))
    await upkeep.set_goal(session.id, "Second")
    with anyio.fail_after(30):
        await gate.reached()
        while helm.task_writer.running_task(session.id) is None:
            await anyio.sleep(0.01)  # tasks are registered in parallel with turns
    await session.interrupt()
    await helm.task_writer.write()
    tasks = (await helm.tasks.of_sessions([session.id]))[session.id]
    assert [task.instruction for task in tasks] == ["Work towards the goal: Second"] * 2 + ["other"]


async def test_an_interrupt_ends_the_work_on_a_goal(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    model.on("hello", say("hi"), always(hang()))
    session = await settled(await helm.start("hello", cwd=folder))
    await helm.extras.upkeep.set_goal(session.id, "All tests pass")
    assert session.state.is_running
    await session.interrupt()
    await settled(session)
    assert session.status == "interrupted"
    assert (await helm.extras.upkeep.goal(session.id)) is not None


@on_its_own_engine
async def test_a_message_to_a_session_with_a_goal_is_its_own_turn_and_the_goal_continues_after_it(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    gate = model.gate()
    model.on("hello", say("hi"), always(hang()))
    async with HelmsmanService(settings, env=codex_home.env) as first:
        session = await settled(await first.start("hello", cwd=folder))
        await first.extras.upkeep.set_goal(session.id, "All tests pass")
    model.on("question", say("answer"), say("towards ", gate, "the goal"), always(hang()))
    async with HelmsmanService(settings, env=codex_home.env) as second:
        results: list[str | None] = []
        second.listen(lambda session, event: results.append(session.result) if isinstance(event, TurnEnded) else None)
        again = await second.say(session.id, "question")
        with anyio.fail_after(30):
            await gate.reached()
        assert results[-1] == "answer"
        assert again.state.is_running
        goal = await second.extras.upkeep.goal(session.id)
        assert goal is not None
        assert goal.status == "active"
        await again.interrupt()


@on_its_own_engine
async def test_a_session_with_a_goal_is_compacted_while_the_goal_waits(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path
) -> None:
    model.on("hello", say("hi"), always(hang()))
    async with HelmsmanService(settings, env=codex_home.env) as first:
        session = await settled(await first.start("hello", cwd=folder))
        await first.extras.upkeep.set_goal(session.id, "All tests pass")
    model.otherwise(always(say("a summary")))
    async with HelmsmanService(settings, env=codex_home.env) as second:
        compacted = await settled(await second.extras.upkeep.compact(session.id))
        assert any(isinstance(item, ContextCompaction) for item in compacted.items)
        goal = await second.extras.upkeep.goal(session.id)
        assert goal is not None
        assert goal.status == "paused"


async def test_an_invalid_goal_is_refused(helm: HelmsmanService, three_turns: Session) -> None:
    for goal in ("", "  ", "x" * 4001):
        with pytest.raises(InvalidInput, match="goal"):
            await helm.extras.upkeep.set_goal(three_turns.id, goal)
    assert await helm.extras.upkeep.goal(three_turns.id) is None


# --- what cannot be --------------------------------------------------------------------------------------------------


async def test_a_busy_session_is_left_alone(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    gate = model.gate()
    model.on("work", say("at ", gate, "work"))
    session = await helm.start("work", cwd=folder)
    with anyio.fail_after(30):
        await gate.reached()
    upkeep = helm.extras.upkeep
    for refused in (upkeep.roll_back, upkeep.compact, upkeep.archive):
        with pytest.raises(SessionBusy):
            await refused(session.id)
    with pytest.raises(SessionBusy):
        await upkeep.set_goal(session.id, "Be done")
    await upkeep.rename(session.id, "At work")
    assert session.status == "active"
    gate.release()
    assert (await settled(session)).result == "at work"


async def test_a_session_that_is_not_there_is_not_found(helm: HelmsmanService) -> None:
    upkeep = helm.extras.upkeep
    for refused in (upkeep.roll_back, upkeep.compact, upkeep.archive, upkeep.unarchive, upkeep.goal, upkeep.clear_goal):
        with pytest.raises(SessionNotFound, match=UNKNOWN):
            await refused(UNKNOWN)


@on_its_own_engine
async def test_the_exec_engine_says_that_it_cannot(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    model.on("hello", say("hi"))
    settings = load_settings({"codex_path": str(codex_binary), "engine": "exec"}, codex_home.env, tmp_path)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await settled(await helm.start("hello", cwd=git_repo))
        upkeep = helm.extras.upkeep
        for refused in (upkeep.roll_back, upkeep.compact, upkeep.archive, upkeep.goal, upkeep.clear_goal, helm.fork):
            with pytest.raises(Unsupported, match="app-server"):
                await refused(session.id)
        with pytest.raises(Unsupported, match="app-server"):
            await helm.extras.account.models()
        assert session.status == "done"
