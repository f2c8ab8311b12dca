"""Words in transcripts: one index for all clients, for the user alone, which forgets a session with it."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.capabilities import search
from helmsman.errors import InvalidInput
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.store.search_index import IndexedSession, SearchIndex
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import CodexHome, ScriptedModel, run, say

pytestmark = pytest.mark.anyio

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
SECONDS = 30


async def found(helm: HelmsmanService, words: str) -> list[str]:
    return [one.session.session_id for one in (await helm.extras.search.find(words)).found]


async def told(helm: HelmsmanService, prompt: str, folder: Path) -> Session:
    session = await helm.start(prompt, cwd=folder)
    with anyio.fail_after(SECONDS):
        await session.wait()
    return session


async def test_words_of_a_transcript_find_its_session_and_are_gone_with_it(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = say(f"The Grösse was off by one; 解析器已修复. I used OPENAI_API_KEY={SECRET} for it.")
    model.on("parser", run("echo quicksilver"), answer)
    model.on("sail", say("Sewn with a marlinspike."))
    index = settings.state_dir / "search.sqlite3"
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        parser = await told(helm, "Mend the parser", folder)
        sail = await told(helm, "Mend the sail", folder)
        assert await found(helm, "mend") == [sail.id, parser.id]
        for words in ("grosse", "quicksil", '"off by one"', "解析器", parser.id[:13], f"parser {folder.name}"):
            assert await found(helm, words) == [parser.id], words
        assert await found(helm, "parser marlinspike") == []
        result = await helm.extras.search.find("marlin")
        assert result.unread is None
        assert result.found[0].excerpt[1] == "marlin"
        assert "Sewn with a marlinspike." in "".join(result.found[0].excerpt)
        assert await found(helm, SECRET) == []
        for file in settings.state_dir.glob("search.sqlite3*"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert SECRET.encode() not in file.read_bytes()
        with pytest.raises(InvalidInput):
            await helm.extras.search.find(" ->")

        await helm.extras.upkeep.archive(sail.id)
        assert await found(helm, "marlinspike") == []
        assert len((await helm.extras.search.find("marlinspike", include_archived=True)).found) == 1
        info = await helm.agent_records.find(sail.id)
        assert info is not None
        assert info.path is not None
        info.path.unlink()
        assert await found(helm, "mend") == [parser.id]
        assert b"marlinspike" not in index.read_bytes()

    narrow = replace(settings, allowed_roots=(tmp_path / "elsewhere",))
    SearchIndex(settings.state_dir).put([IndexedSession("gone", "", 0.0, "", "belaying")])
    async with HelmsmanService(narrow, env=codex_home.env) as helm:
        assert await found(helm, "mend") == []
        assert b"belaying" not in index.read_bytes(), "it forgets, although it may not see all that is there"
    assert parser.id in SearchIndex(settings.state_dir).stamps()

    index.write_bytes(b"nonsense" * 1000)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        assert await found(helm, "quicksilver") == [parser.id]

    monkeypatch.setattr(search, "has_full_text", lambda: False)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        assert await found(helm, "quicksilver parser") == [parser.id]
        assert await found(helm, "marlinspike") == []


async def test_sessions_that_helmsman_ran_are_searched_in_the_log_and_forgotten_with_it(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.on("sail", say("Sewn with a marlinspike."))
    read: list[str] = []
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        codex = helm.agent_records.indexes_for(helm.settings, helm.environment)["codex"]
        monkeypatch.setattr(codex, "history", lambda info: read.append(info.session_id))
        sail = await told(helm, "Mend the sail", folder)
        assert await found(helm, "marlinspike") == [sail.id]
        model.on("rope", say("Spliced with a fid."))
        await sail.say("Mend the rope")
        with anyio.fail_after(SECONDS):
            await sail.wait()
        assert await found(helm, "marlinspike fid") == [sail.id]
        assert read == []

    index = settings.state_dir / "search.sqlite3"
    later = datetime.now(UTC) + timedelta(days=100)
    registry = Registry(settings.state_dir / REGISTRY_NAME, clock=lambda: later)
    assert registry.compact().sessions == 1
    registry.close()
    assert SearchIndex(settings.state_dir).stamps() == {}
    assert b"marlinspike" not in index.read_bytes()
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        assert await found(helm, "marlinspike") == [sail.id], "the agent itself still has it"
