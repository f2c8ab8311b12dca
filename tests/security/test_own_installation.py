"""Sessions that may write the code that Helmsman itself runs: what holds them, and who is warned."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import anyio
import pytest

from helmsman import Helmsman, load_settings
from helmsman.agents.sandbox import Confined, find_sandbox
from helmsman.base.programs import installation_places, remember_writable
from helmsman.cli.checks import check_installation
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, say

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there are no sandboxes")]


@pytest.fixture
def python(git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Python of this process, as if it were in a repository."""
    place = git_repo / ".venv"
    (place / "lib").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(place))
    return place


async def test_an_agent_in_the_sandbox_writes_its_repository_but_not_the_python_of_helmsman(
    git_repo: Path, python: Path, tmp_path: Path, codex_home: CodexHome
) -> None:
    settings = load_settings({"state_dir": str(tmp_path / "state")}, codex_home.env, git_repo)
    sandbox = await find_sandbox(settings, codex_home.env)
    confined = Confined(writable=(git_repo,), own_home=tmp_path / "own", scratch="one", directory=git_repo)
    script = "touch in; touch .venv/lib/planted.pth; rm -r .venv; mv .venv elsewhere; ls .venv"
    argv, env = sandbox.around(["/bin/sh", "-c", script], codex_home.env, confined)
    with anyio.fail_after(60):
        done = await anyio.run_process(argv, env=env, cwd=git_repo, check=False)
    assert done.stdout.split() == [b"lib"], done.stderr
    assert (git_repo / "in").exists()
    assert [path.name for path in python.iterdir()] == ["lib"]
    assert list((python / "lib").iterdir()) == []


async def test_a_session_that_may_write_what_helmsman_runs_is_named_in_the_log(
    git_repo: Path,
    python: Path,
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model.otherwise(say("Done."))
    caplog.set_level(logging.WARNING)
    async with Helmsman(settings, env=codex_home.env) as helm:
        await helm.start("look", cwd=git_repo, sandbox="read-only")
        assert "Helmsman runs code in" not in caplog.text
        await helm.start("work", cwd=git_repo, sandbox="workspace-write")
    assert f"Helmsman runs code in {python}, where this session may write" in caplog.text


@pytest.mark.parametrize("which", range(len(installation_places())))
def test_the_doctor_warns_if_sessions_may_write_what_helmsman_runs(
    tmp_path: Path, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmsman.base.programs._FILES", set())
    assert check_installation() == []
    place = installation_places()[which]
    remember_writable(tmp_path, [place])
    (check,) = check_installation()
    assert (check.status, "such a session could change the code that runs here" in check.detail) == ("warning", True)
    assert "pipx install" in (check.fix or "")
