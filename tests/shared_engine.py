"""One Codex for the tests of a module: a home, a scripted model and an engine, where each test has sessions of its own.

To start a Codex takes as long as most tests take otherwise. A module asks for the shared one with `pytestmark`, or a single
test with a decorator, both `on_shared_engine`; then the fixtures `model`, `codex_home`, `settings` and `helm` are those of
the shared Codex. A test that changes the configuration, counts what is in the home, or kills its engine has its own: it is
not marked, or it is marked `on_its_own_engine`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from helmsman import load_settings
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.steering.shared import Shared
from helmsman.testing import CodexHome, HomeTemplates, ScriptedModel, leaks
from helmsman.testing.binaries import codex_version

on_shared_engine = pytest.mark.usefixtures("shared_engine")
on_its_own_engine = pytest.mark.usefixtures("own_engine")

_SECONDS = 30


@dataclass(frozen=True)
class SharedEngine:
    """A Codex that runs, and what a client to it needs."""

    model: ScriptedModel
    home: CodexHome
    env: Mapping[str, str]
    settings: Settings
    sessions: Shared

    def client(self, settings: Settings | None = None) -> HelmsmanService:
        """A Helmsman on this engine. Settings that make a difference to engines would give it another one."""
        return HelmsmanService(settings or self.settings, env=self.env, shared=self.sessions)

    async def stop_what_runs(self) -> None:
        """For the next test: nothing of this one speaks to the model any more."""
        with anyio.fail_after(_SECONDS):
            for session in list(self.sessions.session_registry.at_work.values()):
                await session.interrupt()


@pytest.fixture
def own_engine() -> None:
    """Asked for by a test that shares no engine."""


@pytest.fixture(scope="module")
async def shared_engine(
    codex_binary: Path, codex_home_templates: HomeTemplates, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SharedEngine]:
    folder = tmp_path_factory.mktemp("shared")
    version = codex_version(codex_binary)
    marker = uuid.uuid4().hex
    before = leaks.child_processes()
    home = codex_home_templates.new_home(codex_binary, folder / "home")
    home.keep_quiet(version)
    env = home.env | {leaks.MARKER_VARIABLE: marker}
    settings = load_settings({"codex_path": str(codex_binary), "detach": False}, env, folder)
    async with ScriptedModel() as model:
        home.use_model(model.base_url, version)
        async with Shared(settings.state_dir) as sessions:
            shared = SharedEngine(model, home, env, settings, sessions)
            async with shared.client() as first:
                await first.engine()  # before the first test, whose processes are looked at
                yield shared
    if left := leaks.wait_until_gone(marker, before):
        circumstances = leaks.report(left)
        leaks.end(left)
        pytest.fail(f"The tests on a shared engine left processes behind:\n{circumstances}", pytrace=False)


def shared_by(request: pytest.FixtureRequest) -> SharedEngine | None:
    """The engine that this test shares with others, if it does."""
    if "shared_engine" not in request.fixturenames or "own_engine" in request.fixturenames:
        return None
    shared: SharedEngine = request.getfixturevalue("shared_engine")
    return shared


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Iterator[ScriptedModel]:
    if (shared := shared_by(request)) is None:
        yield request.getfixturevalue("model")
        return
    shared.model.forget()
    yield shared.model
    if shared.model.problems:
        pytest.fail("The scripted model had problems:\n" + "\n".join(shared.model.problems), pytrace=False)


@pytest.fixture
def codex_home(
    request: pytest.FixtureRequest, codex_binary: Path, codex_home_templates: HomeTemplates, model: ScriptedModel
) -> CodexHome:
    shared = shared_by(request)
    home: CodexHome = request.getfixturevalue("codex_home") if shared is None else shared.home
    return home


@pytest.fixture
def settings(request: pytest.FixtureRequest, codex_binary: Path, codex_home: CodexHome, tmp_path: Path) -> Settings:
    if (shared := shared_by(request)) is not None:
        return shared.settings
    return load_settings({"codex_path": str(codex_binary), "detach": False}, codex_home.env, tmp_path)


@pytest.fixture
async def helm(
    request: pytest.FixtureRequest, settings: Settings, codex_home: CodexHome, model: ScriptedModel
) -> AsyncIterator[HelmsmanService]:
    if (shared := shared_by(request)) is None:
        async with HelmsmanService(settings, env=codex_home.env) as helm:
            yield helm
        return
    async with shared.client(settings) as helm:
        yield helm
        await shared.stop_what_runs()
