"""No session chooses the program of an agent: neither by planting one on PATH nor by replacing the one in use."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from helmsman import Helmsman, load_settings
from helmsman.agents.acp.agent import OwnWords, known_agents
from helmsman.agents.claude.binary import find_claude
from helmsman.agents.claude.dialect import ClaudeDialect
from helmsman.agents.claude.storage import ClaudeSessions
from helmsman.agents.codex import binary as codex_binary_module
from helmsman.agents.codex.binary import COPIES, find_codex, private_copy
from helmsman.agents.process_engine import open_process_engine
from helmsman.base.programs import remember_writable, with_interpreter
from helmsman.base.structs import replace
from helmsman.errors import ProgramRefused
from helmsman.model.options import TurnInput
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, say
from helmsman.testing.fake_acp_agent import FakeAcpAgent, says
from tests.claude import claude_binary, claude_environment
from tests.sandboxes import launch_config

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="programs are POSIX scripts")]


@pytest.fixture(autouse=True)
def _real_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codex_binary_module, "private_copy", private_copy)


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def project_with(codex: Path, directory: Path) -> Path:
    """Return a Codex in the virtual environment of a project that is no repository."""
    target = directory / "project" / ".venv" / "bin" / "codex"
    target.parent.mkdir(parents=True)
    try:
        os.link(codex, target)
    except OSError:
        shutil.copy2(codex, target)
    return target


async def test_no_agent_is_taken_from_a_repository_on_path(
    git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codex_binary_module, "_in_wheel", lambda: None)
    for name in ("codex", "claude", "gemini"):
        program(git_repo / "node_modules" / ".bin" / name)
    env = {"HOME": str(tmp_path), "PATH": f"{git_repo}/node_modules/.bin{os.pathsep}/nowhere"}
    with pytest.raises(ProgramRefused, match=r"node_modules/\.bin/codex"):
        await find_codex(env=env, state_dir=tmp_path / "state")
    with pytest.raises(ProgramRefused, match=r"node_modules/\.bin/claude"):
        find_claude(load_settings({}, env, tmp_path), env)
    gemini = next(agent for agent in known_agents() if agent.name == "gemini")
    with pytest.raises(ProgramRefused, match=r"node_modules/\.bin/gemini"):
        gemini.find(env)
    own = program(tmp_path / "own" / "gemini")
    assert gemini.find({**env, "PATH": f"{env['PATH']}{os.pathsep}{own.parent}"})[0] == str(own)


async def test_an_agent_that_a_session_may_write_is_refused_although_it_was_named(tmp_path: Path) -> None:
    named = program(tmp_path / "project" / "claude")
    env = {"HOME": str(tmp_path), "PATH": os.defpath}
    settings = load_settings({"claude_path": str(named)}, env, tmp_path)
    remember_writable(tmp_path, [tmp_path / "project"])
    with pytest.raises(ProgramRefused, match="sessions may write in"):
        find_claude(settings, env)


async def test_a_codex_that_sessions_may_write_is_copied_once_and_a_replaced_one_is_refused(
    codex_binary: Path, tmp_path: Path
) -> None:
    state, named = tmp_path / "state", project_with(codex_binary, tmp_path)
    state.mkdir(mode=0o700)
    assert (await find_codex(explicit=named, state_dir=state)).path == named
    remember_writable(state, [tmp_path / "project"])
    copied = (await find_codex(explicit=named, state_dir=state)).path
    assert copied.is_relative_to(state / COPIES)
    assert not copied.samefile(named)
    os.utime(named)  # the same content
    assert (await find_codex(explicit=named, state_dir=state)).path == copied
    named.unlink()
    shutil.copy2("/bin/true", named)
    with pytest.raises(ProgramRefused, match="was changed since Helmsman first used it") as refused:
        await find_codex(explicit=named, state_dir=state)
    assert str(named) in refused.value.message
    assert f"remove {copied.parent.parent}" in refused.value.message


async def test_a_wheel_in_a_repository_is_copied_with_what_comes_with_it(git_repo: Path, tmp_path: Path) -> None:
    package = git_repo / ".venv" / "codex_cli_bin"
    shutil.copytree("/bin", package / "bin", ignore=lambda _, names: [name for name in names if name != "true"])
    shutil.move(package / "bin" / "true", package / "bin" / "codex")
    program(package / "codex-path" / "rg")
    (package / "codex-resources").mkdir()
    (package / "codex-resources" / "link").symlink_to("/etc/passwd")
    copied = codex_binary_module._out_of_reach(package / "bin" / "codex", False, dict(os.environ), tmp_path / "state")
    assert copied.is_relative_to(tmp_path / "state")
    assert (copied.parent.parent / "codex-path" / "rg").is_file()
    assert not os.path.lexists(copied.parent.parent / "codex-resources" / "link")


async def test_a_session_in_the_project_of_its_codex_runs_on_a_copy(
    codex_binary: Path, codex_home: CodexHome, settings: Settings, model: ScriptedModel, tmp_path: Path
) -> None:
    """Also where an engine of the original is open already."""
    named = project_with(codex_binary, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    settings = replace(settings, codex_path=named, detach=False)
    model.on("hello", say("Hello."))
    async with Helmsman(settings, env=codex_home.env) as helm:
        first = await helm.start("hello", cwd=elsewhere, sandbox="workspace-write")
        await first.wait()
        assert first.engine is not None
        assert first.engine.program == named
        second = await helm.start("hello", cwd=tmp_path / "project", sandbox="workspace-write")
        await second.wait()
        assert second.engine is not None
        assert second.engine.program is not None
        assert second.engine.program.is_relative_to(settings.state_dir / COPIES)


async def test_exec_in_the_project_of_its_codex_runs_a_copy_and_never_the_original_again(
    codex_binary: Path, codex_home: CodexHome, settings: Settings, model: ScriptedModel, tmp_path: Path
) -> None:
    named, elsewhere = project_with(codex_binary, tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    settings = replace(settings, codex_path=named, detach=False, engine="exec")
    model.on("hello", say("Hello."))
    async with Helmsman(settings, env=codex_home.env) as helm:
        first = await helm.start("hello", cwd=elsewhere, sandbox="workspace-write", skip_git_repo_check=True)
        await first.wait()
        assert first.engine is not None
        assert first.engine.program == named
        second = await helm.start(
            "hello", cwd=tmp_path / "project", sandbox="workspace-write", skip_git_repo_check=True
        )
        await second.wait()
        assert second.engine is not None
        assert second.engine.program is not None
        assert second.engine.program.is_relative_to(settings.state_dir / COPIES)
        with pytest.raises(ProgramRefused, match="sessions may write in"):
            await first.engine.run_turn(first.id, first.options, TurnInput(text="hello"))


@pytest.mark.parametrize("agent", ["claude", "mine"])
async def test_an_agent_that_a_session_may_write_by_now_is_not_started_again(
    agent: str, codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, tmp_path: Path
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    model.on("hello", say("Hello."))
    fake = FakeAcpAgent(project / "fake")
    fake.on("hello", says("Hello."))
    script = program(project / "agent.py", Path(fake.command[2]).read_text())
    command = [fake.command[0], "-I", str(script), fake.command[3]]
    claude = project / "claude"
    if agent == "claude":
        shutil.copy2(claude_binary(), claude)
    own = tmp_path / "helmsman.toml"
    own.write_text(f"[agents.mine]\ncommand = {command}\nmode = 'ask'\nruns_repository_files = false\n")
    env = (
        codex_home.env | claude_environment(model, tmp_path / "home") | {"HELMSMAN_STATE_DIR": str(tmp_path / "state")}
    )
    flags = {
        "codex_path": str(codex_binary),
        "detach": False,
        **({"claude_path": str(claude)} if agent == "claude" else {}),
    }
    settings = load_settings(flags, env, elsewhere, user_file=own)
    async with Helmsman(settings, env=env, inside=True) as helm:
        first = await helm.start("hello", cwd=elsewhere, agent=agent, unenforced=True)
        await first.wait()
        remember_writable(settings.state_dir, [project])
        with pytest.raises(ProgramRefused, match="sessions may write in"):
            await helm.start("hello", cwd=elsewhere, agent=agent, unenforced=True)


async def test_a_claude_that_a_session_may_write_by_now_is_not_asked_about_itself(
    model: ScriptedModel, codex_home: CodexHome, codex_binary: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    claude = Path(shutil.copy2(claude_binary(), project / "claude"))
    env = codex_home.env | claude_environment(model, tmp_path / "home")
    flags = {"codex_path": str(codex_binary), "claude_path": str(claude), "detach": False}
    settings = load_settings(flags, env | {"HELMSMAN_STATE_DIR": str(tmp_path / "state")}, tmp_path)
    binary = find_claude(settings, env)
    config = launch_config((str(binary.path),), env, settings.state_dir)
    dialect = ClaudeDialect(ClaudeSessions(binary.home), binary)
    async with open_process_engine(dialect, config, state_dir=settings.state_dir, idle=60) as engine:
        assert await engine.models()
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    remember_writable(settings.state_dir, [project])
    with pytest.raises(ProgramRefused, match="sessions may write in"):
        async with open_process_engine(dialect, config, state_dir=settings.state_dir, idle=60) as engine:
            await engine.models()


async def test_the_script_of_an_agent_is_not_looked_for_in_the_directory_of_a_session(
    codex_home: CodexHome, settings: Settings, tmp_path: Path, git_repo: Path
) -> None:
    ran = tmp_path / "ran"
    program(git_repo / "agent.py", f"open({str(ran)!r}, 'w')")
    own = tmp_path / "helmsman.toml"
    for command in (["agent.py"], ["-u", "agent.py"], ["-m", "agent"], ["-um", "agent"], ["-c", "import agent"]):
        words = [sys.executable, *command]
        own.write_text(f"[agents.mine]\ncommand = {words}\nruns_repository_files = false\n")
        used = load_settings({"detach": False}, codex_home.env, git_repo, user_file=own)
        async with Helmsman(replace(used, state_dir=settings.state_dir), env=codex_home.env, inside=True) as helm:
            with pytest.raises(ProgramRefused, match="the files there would choose what runs"):
                await helm.start("hello", cwd=git_repo, agent="mine", unenforced=True)
        assert not ran.exists()


@pytest.mark.parametrize(
    "command",
    [
        *(
            "node agent.js",
            "node --import=./hook.js /opt/agent.js",
            "node -r hook.js /opt/agent.js",
            "bun run agent.ts",
        ),
        *("npx my-agent", "npx -y @me/agent", "env A=1 node /opt/agent.js", "bash agent.sh", "./node", "bin/node"),
    ],
)
def test_nothing_that_a_directory_chooses_is_an_agent(command: str, tmp_path: Path) -> None:
    for name in ("node", "bun", "npx", "env", "bash"):
        program(tmp_path / "own" / name)
    env = {"HOME": str(tmp_path), "PATH": str(tmp_path / "own")}
    mine = known_agents()[0].said("mine", OwnWords(tuple(command.split()), "Mine", None, True, ()))
    with pytest.raises(ProgramRefused, match="the files there would choose what runs"):
        mine.find(env)


def test_a_command_with_absolute_paths_is_an_agent(tmp_path: Path) -> None:
    for name in ("node", "python3", "my-agent", "bash"):
        program(tmp_path / "own" / name)
    env = {"HOME": str(tmp_path), "PATH": str(tmp_path / "own")}
    for command in (
        "node --quiet /opt/agent.js rel.js",
        "python3 -I -m agent",
        "python3 -P /opt/agent.py",
        "my-agent rel/file --acp",
        "bash -c agent",
    ):
        mine = known_agents()[0].said("mine", OwnWords(tuple(command.split()), "Mine", None, True, ()))
        assert mine.find(env)[1:] == command.split()[1:]


async def test_the_version_of_a_script_for_node_is_its_own(tmp_path: Path, settings: Settings) -> None:
    for name, version in (("node", "24.1.0"), ("agent", "0.61.0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "package.json").write_text(f'{{"version": "{version}"}}')
    node, script = program(tmp_path / "node" / "bin" / "node"), program(tmp_path / "agent" / "dist" / "cli.js")
    words = OwnWords((str(node), "--quiet", str(script), "--acp"), "Gemini", None, True, ())
    gemini = next(agent for agent in known_agents() if agent.name == "gemini").said("gemini", words)
    assert (await gemini.installed(settings, {"HOME": str(tmp_path), "PATH": os.defpath})).version == "0.61.0"


def test_a_script_gets_an_interpreter_that_no_session_planted(git_repo: Path, tmp_path: Path) -> None:
    planted, own = program(git_repo / "bin" / "node"), program(tmp_path / "own" / "node")
    script = program(tmp_path / "agent", "#!/usr/bin/env -S node --quiet\n")
    env = {"HOME": str(tmp_path), "PATH": f"{planted.parent}{os.pathsep}{own.parent}"}
    assert with_interpreter(str(script), env) == [str(own), "--quiet", str(script)]
    with pytest.raises(ProgramRefused):
        with_interpreter(str(script), {**env, "PATH": str(planted.parent)})
    assert with_interpreter("/bin/true", env) == ["/bin/true"]
