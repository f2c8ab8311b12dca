"""The bare methods of the app-server that Helmsman offers beside turns, on every supported Codex."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.agents.codex.engine import AppServerEngine
from helmsman.agents.codex.features import Feature
from helmsman.errors import EngineRefused, HelmsmanError, InvalidInput, SessionNotFound, Unsupported
from helmsman.model.events import ContextCompaction, Event, ItemEnded, Review, SessionRenamed, TurnEnded
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.service import HelmsmanService
from helmsman.testing import CodexHome, ScriptedModel, always, say
from tests.engines import start_turn
from tests.shared_engine import on_shared_engine

pytestmark = [pytest.mark.matrix, pytest.mark.anyio, on_shared_engine]


class Watched:
    """A session and the events that came of it."""

    def __init__(self, engine: AppServerEngine, session_id: str) -> None:
        self.id = session_id
        self.events: list[Event] = []
        self._changed = anyio.Event()
        engine.attach(session_id, self._take)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, kind: type[Event], count: int = 1) -> None:
        with anyio.fail_after(30):
            while sum(isinstance(event, kind) for event in self.events) < count:
                self._changed = anyio.Event()
                await self._changed.wait()

    def items(self, kind: type[ContextCompaction | Review]) -> list[ContextCompaction | Review]:
        return [event.item for event in self.events if isinstance(event, ItemEnded) and isinstance(event.item, kind)]


@pytest.fixture
async def engine(helm: HelmsmanService, model: ScriptedModel) -> AppServerEngine:
    model.otherwise(always(say("done")))
    engine = await helm.engine()
    assert isinstance(engine, AppServerEngine)
    return engine


async def one_turn(engine: AppServerEngine, directory: Path) -> Watched:
    opened = await start_turn(engine, SessionOptions(cwd=directory), TurnInput(text="hello"))
    session = Watched(engine, opened.session_id)
    await session.until(TurnEnded)
    return session


async def test_the_handshake_tells_the_version(engine: AppServerEngine) -> None:
    assert engine.version == engine.binary.version


async def test_threads_are_read_named_and_archived(
    engine: AppServerEngine, git_repo: Path, codex_home: CodexHome, codex_version: tuple[int, int, int]
) -> None:
    session = await one_turn(engine, git_repo)
    api = engine.api
    assert session.id in await api.loaded_threads()
    assert (await api.read_thread(session.id)).id == session.id
    (turn,) = await engine.history(session.id)
    assert {item.type for item in turn.items} >= {"user_message", "agent_message"}
    await engine.rename(session.id, "A name")
    if codex_version >= (0, 115, 0):  # the oldest does not tell
        await session.until(SessionRenamed)
    await engine.archive(session.id)
    (archived,) = codex_home.path.glob(f"archived_sessions/**/rollout-*{session.id}.jsonl")
    await engine.unarchive(session.id)
    assert not archived.exists()
    assert list(codex_home.path.glob(f"sessions/**/rollout-*{session.id}.jsonl"))


async def test_an_archived_session_says_so_or_is_not_found(engine: AppServerEngine, folder: Path) -> None:
    session = await one_turn(engine, folder)
    await engine.archive(session.id)
    try:
        await engine.api.resume_thread(session.id, {"sandbox": "read-only", "approvalPolicy": "on-request"})
    except (InvalidInput, SessionNotFound) as error:
        assert session.id in error.message  # noqa: PT017 - some versions resume it


async def test_a_session_is_compacted(engine: AppServerEngine, folder: Path) -> None:
    session = await one_turn(engine, folder)
    if not engine.binary.can(Feature.COMPACT):
        with pytest.raises(Unsupported, match="compact"):
            await engine.compact(session.id)
        return
    await engine.compact(session.id)
    await session.until(TurnEnded, 2)
    assert session.items(ContextCompaction)


async def test_codex_reviews(engine: AppServerEngine, git_repo: Path) -> None:
    session = await one_turn(engine, git_repo)
    target = {"type": "custom", "instructions": "look at it"}
    assert await engine.api.begin_turn("review/start", threadId=session.id, target=target)
    await session.until(TurnEnded, 2)
    assert session.items(Review)


async def test_a_session_is_let_go_of(engine: AppServerEngine, folder: Path) -> None:
    session = await one_turn(engine, folder)
    if engine.binary.can(Feature.UNSUBSCRIBE):
        await engine.api.call("thread/unsubscribe", threadId=session.id)
    else:
        with pytest.raises(Unsupported, match="does not know thread/unsubscribe"):
            await engine.api.call("thread/unsubscribe", threadId=session.id)


async def test_models_account_and_configuration_are_reported(engine: AppServerEngine, folder: Path) -> None:
    models = await engine.models()
    assert [model.id for model in models if model.is_default]
    assert all(model.efforts for model in models)
    account = await engine.api.account()
    assert (account.kind, account.requires_login) == (None, False)
    assert (await engine.api.config(folder)).values["model_provider"] == "scripted"
    with pytest.raises(EngineRefused, match="authentication"):
        await engine.api.call("account/rateLimits/read")


async def test_a_method_this_codex_does_not_know_is_unsupported(engine: AppServerEngine) -> None:
    with pytest.raises(HelmsmanError) as caught:
        await engine.api.call("no/such/method")
    assert caught.value.code == "unsupported"
