"""Fixtures for tests that run a real Codex on a scripted model.

Load them in a conftest: `pytest_plugins = ["helmsman.testing.plugin"]`.

A test marked `matrix` that uses `codex_binary`, directly or indirectly, runs once on each available Codex
(`helmsman.testing.codex_versions`); other tests run on one. A test that depends on changes in certain versions names
them, `matrix(changed_in=["0.163.0"])`: it runs on the oldest, the newest, and both sides of each change.
"""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helmsman.agents.supervisor.records import read_records
from helmsman.testing import leaks
from helmsman.testing.agents import agent_environment
from helmsman.testing.binaries import VersionNumbers, codex_version, codex_versions, installed_codex, versions_around
from helmsman.testing.fake_acp_agent import FakeAcpAgent
from helmsman.testing.home import CodexHome, HomeTemplates, mcp_server
from helmsman.testing.hubs import end_hub, hub_pid
from helmsman.testing.model import ScriptedModel
from helmsman.testing.repository import make_repository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "matrix: runs on every Codex version of the matrix")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("matrix")
    if "codex_binary" in metafunc.fixturenames and mark is not None:
        versions = codex_versions()
        if "changed_in" in mark.kwargs:
            versions = versions_around(mark.kwargs["changed_in"], versions)
        # Run all tests of a module on one version before the next, so that shared fixtures are made once per version.
        metafunc.parametrize("codex_binary", versions.values(), ids=versions.keys(), scope="module")


@pytest.fixture(scope="session")
def codex_binary() -> Path:
    """Return the Codex binary under test: HELMSMAN_TEST_CODEX, or the one of the wheel `openai-codex-cli-bin`."""
    binary = installed_codex()
    if binary is None:
        pytest.skip("There is no Codex: set HELMSMAN_TEST_CODEX or install openai-codex-cli-bin.")
    return binary


@pytest.fixture(name="codex_version")
def _codex_version(codex_binary: Path) -> VersionNumbers:
    """Return the version of the binary under test: `if codex_version < (0, 115, 0): …`."""
    return codex_version(codex_binary)


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    """Yield a scripted model. The test fails if its script has a problem that the test did not clear."""
    async with ScriptedModel() as model:
        yield model
    # After the test: the agent has seen an error, but the mistake is in the script.
    if model.problems:
        pytest.fail("The scripted model had problems:\n" + "\n".join(model.problems), pytrace=False)


@pytest.fixture(scope="session")
def codex_home_templates(tmp_path_factory: pytest.TempPathFactory) -> HomeTemplates:
    """Homes in which each binary has already created its databases."""
    return HomeTemplates(tmp_path_factory.mktemp("codex-home-templates"))


@pytest.fixture
def codex_home(
    tmp_path: Path, codex_binary: Path, model: ScriptedModel, codex_home_templates: HomeTemplates
) -> Iterator[CodexHome]:
    """Yield a fresh CODEX_HOME and HOME, configured for the scripted model. A hub started in it must have ended."""
    home = codex_home_templates.new_home(codex_binary, tmp_path / "home")
    version = codex_version(codex_binary)
    home.use_model(model.base_url, version)
    home.keep_quiet(version)
    yield home
    state_dir = Path(home.env["HELMSMAN_STATE_DIR"])
    # A hub that survives the test would serve the next one with old settings.
    if hub_pid(state_dir) is not None:
        end_hub(state_dir)
        pytest.fail("The test left a hub behind.", pytrace=False)


@pytest.fixture
def agent_env(tmp_path: Path, model: ScriptedModel) -> Callable[[str], dict[str, str]]:
    """Return the environment for an agent with the scripted model and a separate home: `agent_env("qwen")`."""
    return lambda agent: {**os.environ, **agent_environment(agent, model.address, tmp_path / f"{agent}-home")}


@pytest.fixture
def fake_acp_agent(tmp_path: Path) -> FakeAcpAgent:
    """Return a scripted agent of the Agent Client Protocol."""
    return FakeAcpAgent(tmp_path / "fake-acp-agent")


@pytest.fixture
def detached_engines(codex_home: CodexHome) -> Iterator[Path]:
    """Yield the state directory of `codex_home.env`, for tests with detached hubs or engines, which are ended
    afterwards.
    """
    state_dir = Path(codex_home.env["HELMSMAN_STATE_DIR"])
    yield state_dir
    _let_rest(state_dir)
    end_hub(state_dir)
    _let_rest(state_dir)
    for record in read_records(state_dir):
        record.stop()
    # Stopping the engines may have started one.
    end_hub(state_dir)


def _let_rest(state_dir: Path) -> None:
    """Mark supervised agents as unneeded, or their supervisors would start the next hub."""
    for record in read_records(state_dir):
        record.need(needed=False)


@pytest.fixture
def git_repo(tmp_path: Path) -> Path:
    """Return a fresh repository with one commit."""
    return make_repository(tmp_path / "repo")


@pytest.fixture
def mcp_server_config(tmp_path: Path) -> dict[str, Any]:
    """Return the kit's MCP server, named `lab`: `codex_home.configure(mcp_servers=mcp_server_config)`."""
    return {"lab": mcp_server(tmp_path / "notes.json")}


@pytest.fixture
def no_leaks(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test that leaves a process running or uses the user's state; end the process.

    The default state directory is redirected during the test and must stay empty.
    """
    marker = uuid.uuid4().hex
    monkeypatch.setenv(leaks.MARKER_VARIABLE, marker)
    usual = tmp_path_factory.getbasetemp() / "usual-state"
    # A test that forgets to name a state directory must not touch the user's.
    monkeypatch.setenv("XDG_STATE_HOME", str(usual))
    before = leaks.child_processes()
    # Other processes of the machine cannot be this test's.
    others = leaks.running_processes() if sys.platform == "linux" else set[str]()
    yield
    left = leaks.wait_until_gone(marker, before, others=others)
    if written := [str(path) for path in usual.rglob("*") if path.is_file()]:
        shutil.rmtree(usual)
        pytest.fail(f"The test wrote into the usual state directory, so name another: {written}", pytrace=False)
    if left:
        circumstances = leaks.report(left)
        leaks.end(left)
        pytest.fail(f"The test left processes behind:\n{circumstances}", pytrace=False)
