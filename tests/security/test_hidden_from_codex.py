"""Sandboxed commands of Codex read nothing of Helmsman's own, and no login of an agent; all else is as before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from helmsman import Helmsman, load_settings
from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.codex.sandbox import hiding_directories, keep_hiding
from helmsman.agents.protocol import NothingBegun
from helmsman.agents.sandbox_view import HiddenPlaces, hidden_from_commands
from helmsman.base.structs import replace
from helmsman.errors import EngineLost, InvalidInput
from helmsman.model.options import ReviewTarget
from helmsman.model.questions import Question
from helmsman.sessions.session import Session
from helmsman.testing import CodexHome, ScriptedModel, run, say

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has bubblewrap")]

SECONDS = 60
NETWORK: dict[str, Any] = {
    "sandbox": "workspace-write",
    "approval_policy": "never",
    "config": {"sandbox_workspace_write.network_access": True},
}


class Machine:
    """A user with files that no command may read, each with "secret" in it, and files that any may."""

    def __init__(self, base: Path, state: Path, codex_home: CodexHome, codex: Path) -> None:
        self.home, self.state = codex_home.home, state
        self.env = {**codex_home.env, "HELMSMAN_STATE_DIR": str(state)}
        named = base / "elsewhere" / "token"
        own = self.home / ".config" / "helmsman"
        self.secrets = [named, own / "webhook-secret", self.state / "http-token", self.state / "engines" / "e1" / "log"]
        self.secrets += [self.home / ".claude" / ".credentials.json", self.home / ".claude.json"]
        self.secrets += [self.home / ".gemini" / "oauth_creds.json", codex_home.path / ".credentials.json"]
        self.allowed = [self.home / ".gitconfig", self.home / ".ssh" / "config", codex_home.path / "AGENTS.md"]
        for file in (*self.secrets, *self.allowed):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_text("secret" if file in self.secrets else "", encoding="utf-8")
        (own / "helmsman.toml").write_text(
            f'[notify]\nphone = {{ ntfy = {{ topic = "x", token_file = "{named}" }} }}\n', encoding="utf-8"
        )
        self.settings = load_settings({"codex_path": str(codex), "detach": False}, self.env, self.home)

    @property
    def look(self) -> str:
        """A command that writes into `seen` what it could read, by any of its ways."""
        ways = "".join(f"cat '{file}' >> seen; cat < '{file}' >> seen; " for file in self.secrets)
        umount = f"umount '{self.state}' && cat '{self.secrets[2]}' >> seen; "
        nested = f"unshare -Urm sh -c \"umount '{self.state}'; cat '{self.secrets[2]}'\" >> seen; "
        root = "".join(f"cat '/proc/{one}/root{self.secrets[2]}' >> seen; " for one in ("1", "self", "$PPID"))
        may = "".join(f"cat '{file}' && " for file in self.allowed)
        kernel = "test -w /proc/sys/kernel/core_pattern && echo writable-kernel >> seen; "
        return f"{ways}{umount}{nested}{root}{kernel}{may}echo allowed >> seen; ls '{self.state}' >> listed; true"


@pytest.fixture
def machine(tmp_path: Path, codex_home: CodexHome, codex_binary: Path) -> Iterator[Machine]:
    """The state directory is outside of /tmp: Codex runs no bubblewrap that its commands could replace."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="helmsman-test-") as state:
        yield Machine(tmp_path, Path(state).resolve(), codex_home, codex_binary)


async def finished(session: Session) -> Session:
    with anyio.fail_after(SECONDS):
        await session.wait(until="end")
    return session


def seen(folder: Path) -> str:
    text = (folder / "seen").read_text(encoding="utf-8")
    (folder / "seen").unlink()
    return text


@pytest.mark.matrix(changed_in=["0.130.0", "0.163.0"])
async def test_no_command_reads_what_is_helmsmans_or_a_login(
    machine: Machine, model: ScriptedModel, git_repo: Path, codex_version: tuple[int, int, int]
) -> None:
    """Started, resumed by another process, and forked."""
    model.on("look", run(machine.look), say("looked"))
    hidden = Feature.PATH_BUBBLEWRAP.is_in(Version(*codex_version))
    looks: list[str] = []
    async with Helmsman(machine.settings, env=machine.env) as helm:
        session = await finished(await helm.start("look", cwd=git_repo, **NETWORK))
        looks.append(seen(git_repo))
    async with Helmsman(machine.settings, env=machine.env) as helm:
        await finished(await helm.say(session.id, "look"))
        looks.append(seen(git_repo))
        await finished(await helm.fork(session.id, "look"))
        looks.append(seen(git_repo))
    assert all("allowed" in look for look in looks)
    assert ["secret" in look for look in looks] == [not hidden] * 3
    assert not hidden or not any("writable-kernel" in look for look in looks)
    assert not hidden or not (git_repo / "listed").read_text(encoding="utf-8").strip()


async def test_the_exec_engine_and_a_worktree_hide_the_same(
    machine: Machine, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("look", run(machine.look), say("looked"))
    async with Helmsman(replace(machine.settings, engine="exec"), env=machine.env) as helm:
        await finished(await helm.start("look", cwd=git_repo, **NETWORK))
        assert seen(git_repo) == "allowed\n"
    async with Helmsman(machine.settings, env=machine.env) as helm:
        session = await finished(await helm.start("look", cwd=git_repo, worktree=True, **NETWORK))
        worktree = Path(str(session.state.directory))
        assert worktree.is_relative_to(machine.state)
        assert seen(worktree) == "allowed\n"
        model.on("status", run("git status --porcelain > status.txt"), say("done"))
        await finished(await helm.say(session.id, "status"))
        assert "listed" in (worktree / "status.txt").read_text(encoding="utf-8")
        # A worktree is in the state directory: it is shown where it may not be written, too.
        model.on("read", run("git log -1 --format=%s; cat status.txt"), say("done"))
        await finished(await helm.say(session.id, "read", sandbox="read-only"))
        assert "status.txt" in str(model.requests[-1].body)


async def test_a_path_for_commands_in_the_users_configuration_shows_nothing(
    machine: Machine, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    """Codex looks for bubblewrap on the PATH of the command."""
    path = f"{machine.home}/mine:/usr/bin:/bin"
    codex_home.configure(shell_environment_policy={"set": {"PATH": path}}, allow_login_shell=False)
    model.on("look", run(f'printf %s "$PATH" > path.txt; {machine.look}'), say("looked"))
    for engine in ("app-server", "exec"):
        async with Helmsman(replace(machine.settings, engine=engine), env=machine.env) as helm:
            await finished(await helm.start("look", cwd=git_repo, **NETWORK))
        assert seen(git_repo) == "allowed\n"
        assert (git_repo / "path.txt").read_text(encoding="utf-8").endswith(f":{path}")


async def test_an_approved_command_still_leaves_the_sandbox(
    machine: Machine, model: ScriptedModel, git_repo: Path
) -> None:
    outside = machine.home / "outside"
    model.on("leave", run(f"cat {machine.secrets[2]} > {outside}", escalate="please"), say("left"))
    options: dict[str, Any] = {"sandbox": "workspace-write", "approval_policy": "on-request"}

    async def person(_session: Session, _question: Question) -> str:
        return "approve"

    async with Helmsman(machine.settings, env=machine.env) as helm:
        await finished(await helm.start("leave", cwd=git_repo, on_question=person, **options))
    assert outside.read_text(encoding="utf-8") == "secret"


async def test_a_review_hides_the_same(machine: Machine, model: ScriptedModel, git_repo: Path) -> None:
    (git_repo / "new.py").write_text("x = 1\n", encoding="utf-8")
    model.otherwise(run(f"cat {machine.secrets[2]}; echo looked"), say("fine"))
    async with Helmsman(machine.settings, env=machine.env) as helm:
        begun = await helm.extras.reviews.start(ReviewTarget(kind="uncommitted"), cwd=git_repo)
        assert begun.session is not None
        await finished(begun.session)
    told = str(model.requests[-1].body)
    assert "looked" in told
    assert "secret" not in told.replace(str(machine.secrets[2]), "")


# --- which places, and how --------------------------------------------------------------------------------------------


async def test_the_users_settings_show_a_login_but_nothing_of_helmsmans(machine: Machine, codex_binary: Path) -> None:
    shown = (machine.home / ".claude", machine.home / ".gemini" / "skills", machine.state / "engines")
    settings = replace(machine.settings, sandbox_readable=shown)
    places = hidden_from_commands(settings, machine.env, codex_binary)
    assert machine.home / ".claude" not in places.hidden
    assert places.shown_in(machine.home / ".gemini") == [machine.home / ".gemini" / "skills"]
    assert machine.state / "engines" not in places.shown


async def test_a_codex_in_the_state_directory_is_shown_to_its_sandbox(machine: Machine) -> None:
    codex = machine.state / "programs" / "0123" / "bin" / "codex"
    places = hidden_from_commands(machine.settings, machine.env, codex)
    assert machine.state / "programs" / "0123" in places.shown_in(machine.state)


async def test_a_private_home_or_repository_is_not_hidden_for_a_file_in_it(
    machine: Machine, codex_binary: Path, git_repo: Path
) -> None:
    machine.home.chmod(0o700)
    git_repo.chmod(0o700)
    files = [machine.home / "ntfy-token", git_repo / "prompt.md"]
    for file in files:
        file.write_text("secret", encoding="utf-8")
    configuration = machine.home / ".config" / "helmsman" / "helmsman.toml"
    topics = "".join(f'p{n} = {{ ntfy = {{ topic = "x", token_file = "{file}" }} }}\n' for n, file in enumerate(files))
    configuration.write_text(f"[notify]\n{topics}", encoding="utf-8")
    settings = load_settings({"codex_path": str(codex_binary)}, machine.env, machine.home)
    assert {*files} <= {*hidden_from_commands(settings, machine.env, codex_binary).hidden}


def arguments(tmp_path: Path, places: HiddenPlaces, *given: str) -> list[str]:
    """What bubblewrap is given after the script has added to it."""
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "bwrap").write_text('#!/bin/sh\nfor one; do printf "%s\\n" "$one"; done\n', encoding="utf-8")
    (plain / "bwrap").chmod(0o700)
    script = hiding_directories(plain, tmp_path / "state", places)[0] / "bwrap"
    return subprocess.run([script, *given], capture_output=True, encoding="utf-8", check=True).stdout.splitlines()


async def test_a_place_is_hidden_after_each_mount_that_shows_it(tmp_path: Path) -> None:
    directory, file, absent = tmp_path / "it's own $HOME", tmp_path / "file", tmp_path / "absent"
    (directory / "shown").mkdir(parents=True)
    file.touch()
    places = HiddenPlaces(hidden=(directory, file, absent), shown=(directory / "shown",))
    base, own, inner = str(tmp_path), str(directory), str(directory / "shown")
    hide = ["--ro-bind", "/dev/null", str(file), "--perms", "555", "--tmpfs", own, "--bind", inner, inner]
    given = [
        "--ro-bind",
        "/",
        "/",
        "--bind",
        base,
        base,
        "--bind",
        inner,
        inner,
        "--tmpfs",
        f"{base}/x",
        "--argv0",
        "y",
    ]
    command = ["--", "codex", "--bind", "/", "/", "--", "a b"]
    expected = [*given[:3], *hide, *given[3:6], *hide, *given[6:], "--remount-ro", own, "--cap-drop", "ALL", *command]
    assert arguments(tmp_path, places, *given, *command) == expected


async def test_the_script_is_the_same_each_time(machine: Machine, codex_binary: Path) -> None:
    """Its directory is on the PATH of engines, and an engine with another PATH takes no new sessions."""
    code = (
        "import os, pathlib, sys; from helmsman import load_settings; "
        "from helmsman.agents.sandbox_view import hidden_from_commands as f; "
        "s = load_settings({}, dict(os.environ), pathlib.Path.cwd()); print(f(s, dict(os.environ), pathlib.Path('/x/y/z')))"
    )
    told = [
        (await anyio.run_process([sys.executable, "-c", code], env={**machine.env, "PYTHONHASHSEED": seed})).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1] != b""


# --- where commands may write around what is hidden ---------------------------------------------------------------------


@pytest.fixture
def around(tmp_path: Path, codex_home: CodexHome, codex_binary: Path) -> Machine:
    """A user whose state directory is in the home, as usual; the home itself is in /tmp, which commands may write."""
    state = codex_home.home / ".local" / "state" / "helmsman"
    state.mkdir(mode=0o700, parents=True)
    return Machine(tmp_path, state, codex_home, codex_binary)


def needs_hiding(version: tuple[int, int, int]) -> None:
    if not Feature.PATH_BUBBLEWRAP.is_in(Version(*version)):
        pytest.skip("nothing is hidden by an older Codex")


@pytest.mark.matrix(changed_in=["0.130.0", "0.163.0"])
async def test_a_session_in_the_home_reads_none_of_it(
    around: Machine, model: ScriptedModel, codex_version: tuple[int, int, int]
) -> None:
    """Also after it has tried to rename what is above."""
    needs_hiding(codex_version)
    around.env["PATH"] = f"/opt/bwrap-0.8:{around.env.get('PATH') or os.environ['PATH']}"
    model.on("move", run("mv .local .moved; mv .config .moved-config; mv .claude .other; true"), say("moved"))
    moved = "cat .moved/state/helmsman/http-token .moved-config/helmsman/webhook-secret .other/.cred* >> seen; "
    model.on("look", run(f"{moved}{around.look}"), say("looked"))
    async with Helmsman(around.settings, env=around.env) as helm:
        session = await finished(await helm.start("move", cwd=around.home, **NETWORK))
        await finished(await helm.say(session.id, "look"))
    assert seen(around.home) == "allowed\n"


@pytest.mark.matrix(changed_in=["0.145.0", "0.163.0"])
async def test_a_worktree_below_what_commands_may_write_can_be_written(
    around: Machine, model: ScriptedModel, git_repo: Path, codex_version: tuple[int, int, int]
) -> None:
    """Others of its kind cannot."""
    needs_hiding(codex_version)
    other = around.state / "worktrees" / "other"
    other.mkdir(parents=True)
    model.on("look", run(f"touch '{other}/planted'; {around.look}"), say("looked"))
    async with Helmsman(around.settings, env=around.env) as helm:
        session = await finished(await helm.start("look", cwd=git_repo, worktree=True, **NETWORK))
    assert seen(Path(str(session.state.directory))) == "allowed\n"
    assert not [*other.iterdir()]


async def test_a_command_reads_no_more_in_a_directory_above_the_state(
    machine: Machine, model: ScriptedModel, git_repo: Path
) -> None:
    """The model chooses the directory of a command, and Codex runs no bubblewrap below that."""
    for place in (machine.state.parent, Path("/var"), Path("/dev/shm"), Path("/")):
        model.on(
            f"look from {place};", run(f"cat '{machine.secrets[2]}'; echo looked", workdir=str(place)), say("looked")
        )
    async with Helmsman(machine.settings, env=machine.env) as helm:
        for place in (machine.state.parent, Path("/var"), Path("/dev/shm"), Path("/")):
            await finished(await helm.start(f"look from {place};", cwd=git_repo, **NETWORK))
            told = str(model.requests[-1].body)
            assert "looked" in told
            assert "secret" not in told.replace(str(machine.secrets[2]), "")


@pytest.mark.parametrize("detach", [False, True])
async def test_a_cleaner_of_temporary_files_shows_nothing(
    machine: Machine, model: ScriptedModel, git_repo: Path, detach: bool
) -> None:
    """Below the state directory, Codex runs only the bubblewrap in the second place."""
    model.on("look", run(f"cat '{machine.secrets[2]}'; echo looked", workdir=str(machine.state)), say("looked"))
    model.on("begin", say("begun"))
    async with Helmsman(replace(machine.settings, detach=detach), env=machine.env) as helm:
        session = await finished(await helm.start("begin", cwd=git_repo, **NETWORK))
        (link,) = machine.state.glob("bubblewrap/elsewhere")
        second = link.readlink()
        assert second.is_relative_to("/dev/shm")
        shutil.rmtree(second)
        await finished(await helm.say(session.id, "look"))
        told = str(model.requests[-1].body)
        assert "looked" in told
        assert "secret" not in told.replace(str(machine.secrets[2]), "")
        for place in (second, machine.state / "bubblewrap"):
            shutil.rmtree(place)
        with pytest.raises(EngineLost, match="was removed"):
            await helm.say(session.id, "look")


def test_only_the_script_itself_is_kept(tmp_path: Path) -> None:
    """Once a cleaner has removed the second place, another user could make it."""
    made = hiding_directories(Path("/x"), tmp_path / "state", HiddenPlaces(hidden=(Path("/y"),)))
    script = (made[0] / "bwrap").read_bytes()
    for place in made:
        (place / "bwrap").chmod(0o700)
        (place / "bwrap").write_text("#!/bin/sh\nexec touch hidden", encoding="utf-8")
        keep_hiding(made)
        assert [(one / "bwrap").read_bytes() for one in made] == [script, script]
    moved = shutil.move(made[1].parent, tmp_path / "moved")
    made[1].parent.symlink_to(moved)
    with pytest.raises(NothingBegun, match="does not belong to this user"):
        keep_hiding(made)
    made[1].parent.unlink()


@pytest.mark.parametrize("engine", ["app-server", "exec"])
async def test_a_session_that_may_write_everything_is_refused(
    machine: Machine, engine: Literal["app-server", "exec"]
) -> None:
    async with Helmsman(replace(machine.settings, engine=engine), env=machine.env) as helm:
        with pytest.raises(InvalidInput, match="read-only"):
            await helm.start("look", cwd="/", skip_git_repo_check=True, **NETWORK)


async def test_nothing_is_written_beside_codex(tmp_path: Path) -> None:
    """Not even if the state directory has no room for the script."""
    plain = tmp_path / "codex" / "codex-resources"
    plain.mkdir(parents=True)
    (tmp_path / "state").write_text("no directory can be made here", encoding="utf-8")
    made = hiding_directories(plain, tmp_path / "state", HiddenPlaces(hidden=(tmp_path / "x",)))
    assert [place.parent.parent for place in made] == [Path("/var/tmp")]
    assert [*plain.parent.iterdir()] == [plain]


def test_a_process_that_does_not_see_the_state_directory_keeps_the_second_place(tmp_path: Path) -> None:
    """Such as one in a container with the same /var/tmp, which clears up before it makes its own."""
    program = (
        "import sys; from pathlib import Path\n"
        "from helmsman.agents.codex.sandbox import hiding_directories\n"
        "from helmsman.agents.sandbox_view import HiddenPlaces\n"
        "print(*hiding_directories(Path('/x'), Path(sys.argv[1]), HiddenPlaces(hidden=(Path('/y'),))), sep='\\n')"
    )
    elsewhere = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs tmpfs "$0" && exec "$@"',
    ]
    elsewhere.append(str(tmp_path))
    if subprocess.run([*elsewhere, "true"], check=False, capture_output=True).returncode:
        pytest.skip("No other mount namespace can be made here.")
    made = hiding_directories(Path("/x"), tmp_path / "state", HiddenPlaces(hidden=(Path("/y"),)))
    assert [place.is_relative_to("/var/tmp") for place in made] == [False, True]
    command = [*elsewhere, sys.executable, "-c", program, str(tmp_path / "other")]
    others = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    assert [place.startswith("/var/tmp/") for place in others] == [False, True]
    assert all(place.is_dir() for place in made)
