"""What a program in the sandbox of an agent sees and reaches, listed from inside it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import load_settings
from helmsman.agents import sandbox as sandbox_module
from helmsman.agents import sandbox_launcher
from helmsman.agents.acp.agent import KNOWN
from helmsman.agents.acp.profile import AgentHome, Profile
from helmsman.agents.codex import sandbox as codex_sandbox
from helmsman.agents.sandbox import Confined, Sandbox, find_sandbox, scratch_of
from helmsman.agents.sandbox_view import (
    CODEX_HOME_NAME,
    LOGINS,
    SECRETS,
    SandboxView,
    hidden_from_commands,
    named_files,
    sandbox_environment,
)
from helmsman.base.concurrency import OnceEach
from helmsman.base.structs import replace
from helmsman.errors import InvalidSetting, Unsupported
from helmsman.testing import CodexHome
from tests import seen_inside

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="only Linux hides all else")]

OLD_BUBBLEWRAP = Path("/opt/bwrap-0.8/bwrap")
QUESTIONS = ("read", "write", "unix", "abstract", "tcp", "environment", "processes")


class Machine:
    """A user's home with secrets, settings, tools and a repository in it, and sockets around."""

    def __init__(self, base: Path, codex_home: CodexHome, stack: ExitStack) -> None:
        self.home = base / "home"
        self.repo = self.home / "src" / "repo"
        self.state = self.home / ".local" / "state" / "helmsman"
        self.repo.mkdir(parents=True)
        self.elsewhere = base / "elsewhere"
        self.elsewhere.mkdir(mode=0o700)
        self.secrets = [self._file(self.home / name / "secret") for name in (CODEX_HOME_NAME, *LOGINS, *SECRETS)]
        self.secrets += [self._file(self.home / ".config" / "helmsman" / "ntfy-token")]
        self.secrets += [self._file(self.elsewhere / "token"), self._file(self.home / "notes.txt")]
        self.tools = [self._file(self.home / name) for name in (".pyenv/bin/tool", ".nvm/node", ".gitconfig")]
        topic = f'ntfy = {{ topic = "x", token_file = "{self.elsewhere / "token"}" }}'
        self._file(self.home / ".config" / "helmsman" / "helmsman.toml", f"[notify]\nphone = {{ {topic} }}\n")
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{self.home}/.nvm:{os.environ['PATH']}",
            "CODEX_CLI_PATH": codex_home.env.get("CODEX_CLI_PATH", ""),
            "HELMSMAN_STATE_DIR": str(self.state),
            "SSH_AUTH_SOCK": str(base / "agent.sock"),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={base}/bus",
            "MY_AGENT": str(base / "agent.sock"),
            "DOCKER_HOST": "tcp://10.0.0.1",
            "GH_TOKEN": "ghp_012345678901234567890123456789012345",
            "DATABASE_URL": "postgres://me:secret@db/x",
            "HARMLESS": "1",
        }
        self.sockets = [str(base / "agent.sock"), str(self.home / "s.sock")]
        for path in self.sockets:
            stack.enter_context(listening(socket.AF_UNIX, path))
        self.abstract = f"helmsman-{os.getpid()}-{base.name}"
        stack.enter_context(listening(socket.AF_UNIX, f"\0{self.abstract}"))

    def _file(self, path: Path, text: str = "secret") -> Path:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path

    async def sandbox(self, **settings: Any) -> Sandbox:
        return await find_sandbox(
            load_settings({"state_dir": str(self.state), **settings}, self.env, self.repo), self.env
        )

    async def look(self, sandbox: Sandbox, confined: Confined | None = None, **asked: list[str]) -> Any:
        """Look at these things from inside."""
        confined = confined or self.confined()
        answer, question = confined.writable[0] / "answer.json", confined.writable[0] / "question.json"
        question.write_text(json.dumps({name: [] for name in QUESTIONS} | asked), encoding="utf-8")
        program = confined.writable[0] / "look.py"
        shutil.copyfile(seen_inside.__file__, program)
        argv, env = sandbox.around([sys.executable, "-I", str(program), str(question), str(answer)], self.env, confined)
        with anyio.fail_after(60):
            done = await anyio.run_process(argv, env=env, cwd=confined.writable[0], check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(answer.read_text(encoding="utf-8"))

    def confined(self, **more: Any) -> Confined:
        usual = Confined(writable=(self.repo,), own_home=self.repo, scratch="one", directory=self.repo)
        return replace(usual, **more)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("profile", KNOWN, ids=lambda profile: profile.name)
def test_the_home_of_each_agent_is_hidden_from_all_others(profile: Profile, moved: bool, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path / "home")}
    if moved:
        env |= {home.variable: str(tmp_path / home.variable) for home in homes_with_logins(profile, env)}
    settings = load_settings({"state_dir": str(tmp_path / "state")}, env, tmp_path)
    for home in homes_with_logins(profile, env):
        assert home.path.is_relative_to(tmp_path / home.variable) is moved
        for places in (
            SandboxView.of(settings, env).secret,
            hidden_from_commands(settings, env, tmp_path / "codex").hidden,
        ):
            assert any(home.path.is_relative_to(place) for place in places), home


def homes_with_logins(profile: Profile, env: dict[str, str]) -> list[AgentHome]:
    homes = (profile.home(env), *profile.more_homes(env))
    return [home for home in homes if home is not None and home.variable not in ("XDG_CACHE_HOME", "XDG_STATE_HOME")]


def listening(family: int, address: str) -> socket.socket:
    opened = socket.socket(family)
    directory = os.open(".", os.O_RDONLY)
    try:
        if address.startswith("/"):  # an address has no more than 108 bytes
            os.chdir(Path(address).parent)
            address = Path(address).name
        opened.bind(address)
        opened.listen()
    finally:
        os.fchdir(directory)
        os.close(directory)
    return opened


@pytest.fixture
def machine(codex_home: CodexHome) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="hm-") as base, ExitStack() as stack:  # short: sockets are made in it
        yield Machine(Path(base).resolve(), codex_home, stack)


async def test_secrets_and_settings_are_not_there_and_tools_are(machine: Machine) -> None:
    sandbox = await machine.sandbox()
    other = scratch_of(machine.state, "two")
    other.mkdir(parents=True)
    (other / "file").write_text("x", encoding="utf-8")
    hidden = [
        *map(str, machine.secrets),
        str(machine.state / "bubblewrap"),
        str(other / "file"),
        str(machine.home / ".ssh"),
    ]
    seen = await machine.look(
        sandbox,
        read=[*hidden, *map(str, machine.tools), str(machine.repo), "/usr/bin/env", "/etc/passwd", "/run", "/var/tmp"],
        write=[
            str(machine.home),
            str(machine.home / ".ssh"),
            str(machine.home / ".pyenv"),
            "/",
            "/tmp",
            str(machine.repo),
        ],
    )
    assert {path: seen["read"][path] for path in hidden} == dict.fromkeys(hidden, "no")
    assert [seen["read"][str(path)] for path in machine.tools] == ["read"] * len(machine.tools)
    assert [seen["read"][path] for path in (str(machine.repo), "/usr/bin/env", "/etc/passwd")] == [
        "listed",
        "read",
        "read",
    ]
    assert [seen["read"][path] for path in ("/run", "/var/tmp")] == ["no", "empty"]
    assert [*seen["write"].values()] == ["no", "no", "no", "no", "written", "written"]  # a /tmp of its own
    assert not [*Path("/tmp").glob("seen-inside")]


async def test_a_session_in_the_home_itself_sees_no_secrets_either(machine: Machine) -> None:
    sandbox = await machine.sandbox()
    (machine.home / ".bashrc").write_text("x", encoding="utf-8")
    confined = machine.confined(writable=(machine.home,), own_home=machine.repo, directory=machine.home)
    hidden = [str(path) for path in machine.secrets if path.name != "notes.txt"]
    seen = await machine.look(
        sandbox,
        confined,
        read=[*hidden, str(machine.state / "sandbox"), str(machine.home / "notes.txt")],
        write=[str(machine.home / ".bashrc"), str(machine.home / "src"), str(machine.home / ".gitconfig")],
    )
    assert {path: seen["read"][path] for path in hidden} == dict.fromkeys(hidden, "no")
    assert seen["read"][str(machine.state / "sandbox")] == "no"
    assert seen["read"][str(machine.home / "notes.txt")] == "read"
    assert [*seen["write"].values()] == ["no", "written", "no"]


async def test_an_agent_sees_its_own_login_and_the_user_can_show_more(machine: Machine) -> None:
    more = [str(machine.home / "notes.txt"), str(machine.home / ".aws")]
    sandbox = await machine.sandbox(
        sandbox_readable=os.pathsep.join([*more, str(machine.home / ".config" / "helmsman")])
    )
    confined = machine.confined(needs=(machine.home / ".qwen",))
    own, others = (
        machine.home / ".qwen" / "secret",
        [machine.home / ".codex" / "secret", machine.home / ".ssh" / "secret"],
    )
    token = machine.home / ".config" / "helmsman" / "ntfy-token"
    paths = [str(path) for path in (own, more[0], f"{more[1]}/secret", *others, token)]
    seen = await machine.look(sandbox, confined, read=paths)
    assert [*seen["read"].values()] == ["read", "read", "read", "no", "no", "no"]


async def test_no_socket_outside_is_reached(machine: Machine) -> None:
    sandbox = await machine.sandbox()
    own = f"{machine.repo}/own.sock"
    with listening(socket.AF_UNIX, own), socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        port.listen()
        number = str(port.getsockname()[1])
        seen = await machine.look(
            sandbox,
            unix=[*machine.sockets, own],
            abstract=[machine.abstract],
            tcp=[number],
        )
    assert [*seen["unix"].values()] == ["no", "no", "reached"]
    assert seen["tcp"] == {number: "reached"}  # as the security page says
    assert seen["abstract"] == {machine.abstract: "no" if sandbox_launcher.can_scope() else "reached"}
    assert sandbox.scoped is sandbox_launcher.can_scope()


@pytest.mark.skipif(not sandbox_launcher.can_scope(), reason="the kernel cannot close signals")
def test_no_process_outside_is_signalled() -> None:
    """The helper that stops a sandbox enters its PID namespace, where its pid is seen."""
    signalling = f"import os; os.kill(os.getpid(), 0); os.kill({os.getpid()}, 0)"
    command = [sys.executable, "-I", "-S", sandbox_launcher.__file__, "around", sys.executable, "-S", "-c", signalling]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.endswith("PermissionError: [Errno 1] Operation not permitted\n")


async def test_no_variable_leads_to_a_socket_or_holds_a_secret_of_others(machine: Machine) -> None:
    names = [*machine.env, "TMPDIR"]
    seen = await machine.look(await machine.sandbox(), environment=names)
    gone = {name for name, found in seen["environment"].items() if found == "no"}
    sockets = {"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "MY_AGENT", "DOCKER_HOST"}
    assert gone == sockets | {"GH_TOKEN", "DATABASE_URL"}
    passing = await machine.sandbox(sandbox_variables="GH_TOKEN,SSH_*")
    seen = await machine.look(passing, machine.confined(variables=("DATABASE_*",)), environment=names)
    assert {name for name, found in seen["environment"].items() if found == "no"} == sockets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GIT_CONFIG_KEY_0", "core.fsmonitor"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("PATH", "/usr/bin:/bin"),
        ("HTTPS_PROXY", "http://proxy:8080"),
        ("LANG", "C.UTF-8"),
    ],
)
def test_an_ordinary_variable_passes(name: str, value: str) -> None:
    assert sandbox_environment({name: value}, ()) == {name: value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TMUX", "/tmp/tmux-0/default,1,0"),
        ("SOME_SOCKET", "x"),
        ("FOO", "unix:///run/x"),
        ("WAYLAND_DISPLAY", "wayland-0"),
        ("SENTRY_DSN", "https://abc@o1.ingest.example/1"),
        ("NPM_AUTH", "abcdefgh12345678"),
        ("GH_PAT", "abcdefgh12345678"),
        ("ANTHROPIC_API_KEY", "x"),
    ],
)
def test_a_variable_of_others_does_not_pass(name: str, value: str) -> None:
    assert sandbox_environment({name: value}, ()) == {}


async def test_a_worktree_in_the_state_directory_finds_its_repository(machine: Machine) -> None:
    git = partial(subprocess.run, check=True, capture_output=True, env={**os.environ, "HOME": str(machine.home)})
    (machine.home / ".gitconfig").write_text("[user]\nname=a\nemail=a@b\n", encoding="utf-8")
    git(["git", "init", "-q", str(machine.repo)])
    git(["git", "-C", str(machine.repo), "commit", "-q", "--allow-empty", "-m", "x"])
    tree = machine.state / "worktrees" / "one"
    tree.parent.mkdir(parents=True)
    machine.state.chmod(0o700)
    git(["git", "-C", str(machine.repo), "worktree", "add", "-q", str(tree)])
    (tree / "sub").mkdir()
    confined = machine.confined(writable=(tree / "sub",), directory=tree / "sub")
    argv, env = (await machine.sandbox()).around(["git", "log", "--format=%an %s"], machine.env, confined)
    with anyio.fail_after(60):
        done = await anyio.run_process(argv, env=env, cwd=tree / "sub", check=False)
    assert (done.stdout, done.returncode) == (b"a x\n", 0), done.stderr


async def test_nothing_that_a_session_plants_makes_more_visible(machine: Machine) -> None:
    private = machine.home / "private"
    (private / ".git").mkdir(parents=True)
    (private / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (private / "file").write_text("x", encoding="utf-8")
    (machine.repo / ".git").mkdir()
    (machine.repo / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (machine.repo / "bin").symlink_to(private)  # on the PATH
    machine.env["PATH"] += f":{machine.repo}/bin"
    machine.env["VIRTUAL_ENV"] = f"{machine.repo}/bin"
    sub = machine.repo / "sub"
    (sub / "git").mkdir(parents=True)
    (sub / ".git").write_text("gitdir: git\n", encoding="utf-8")
    (sub / "git" / "commondir").write_text(f"{private}/.git\n", encoding="utf-8")
    (sub / "git" / "gitdir").write_text(f"{sub}/.git\n", encoding="utf-8")
    sandbox = await machine.sandbox()
    for directory in (machine.repo, sub):
        confined = machine.confined(writable=(directory,), own_home=directory, directory=directory)
        seen = await machine.look(sandbox, confined, read=[str(private / "file"), f"{machine.repo}/bin/file"])
        assert [*seen["read"].values()] == ["no", "no"]


def test_a_configuration_names_its_files_and_no_programs(tmp_path: Path) -> None:
    token, key, program = tmp_path / "token", tmp_path / "key.pem", tmp_path / "run"
    for path in (token, key, program):
        path.touch()
    program.chmod(0o700)
    content = {"notify": [{"token_file": str(token)}], "x": {"y": str(key)}, "z": str(program), "n": "/nowhere"}
    assert {*named_files({**content, "agents": {"a": {"command": [str(program), str(token)]}}})} == {token, key}


# --- how it is started -----------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of any sandbox yet."""
    monkeypatch.setattr(sandbox_module, "_found", OnceEach[Any]())


def plant(machine: Machine, text: str) -> Path:
    """Put a `bwrap` first on the user's PATH."""
    planted = machine.home / ".nvm" / "bwrap"
    planted.write_text(text, encoding="utf-8")
    planted.chmod(0o755)
    return planted


@pytest.mark.usefixtures("fresh")
async def test_a_bubblewrap_on_the_users_path_is_not_run(machine: Machine, tmp_path: Path) -> None:
    plant(machine, f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
    seen = await machine.look(await machine.sandbox(), read=[str(machine.tools[0])])
    assert [*seen["read"].values()] == ["read"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("fresh")
async def test_agents_start_where_the_bubblewrap_of_the_system_is_old(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if OLD_BUBBLEWRAP.exists():
        shutil.copyfile(OLD_BUBBLEWRAP, plant(machine, ""))
        monkeypatch.setattr(codex_sandbox, "_SYSTEM", OLD_BUBBLEWRAP)
    else:
        monkeypatch.setattr(codex_sandbox, "_SYSTEM", plant(machine, "#!/bin/sh\necho 'no such option'\nexit 1\n"))
    seen = await machine.look(await machine.sandbox(), read=["/etc/passwd"])
    assert [*seen["read"].values()] == ["read"]


@pytest.mark.usefixtures("fresh")
async def test_the_probe_fails_where_an_agent_would_and_suggests_no_less(machine: Machine) -> None:
    codex = (await machine.sandbox()).codex
    broken = machine.elsewhere / "codex"
    broken.write_text(f'#!/bin/sh\n[ "$1" = sandbox ] && {{ echo it is broken >&2; exit 1; }}\nexec {codex} "$@"\n')
    broken.chmod(0o755)
    with pytest.raises(Unsupported, match=r"does not hold here .*it is broken.*helmsman doctor") as refused:
        await machine.sandbox(codex_path=str(broken))
    assert "unenforced" not in str(refused.value)


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_a_bubblewrap_of_the_system_is_used_if_only_root_can_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, codex = tmp_path / "bwrap", tmp_path / "codex" / "bin" / "codex"
    bundled = tmp_path / "codex" / "codex-resources" / "bwrap"
    for path in (codex, bundled, system):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\necho '--argv0 VALUE'\n", encoding="utf-8")
        path.chmod(0o755)
    monkeypatch.setattr(codex_sandbox, "_SYSTEM", system)
    trusted = os.geteuid() == 0
    assert codex_sandbox.choose_bubblewrap(codex) == (system if trusted else bundled)
    system.chmod(0o777)
    assert codex_sandbox.choose_bubblewrap(codex) == bundled
    system.chmod(0o755)
    system.write_text("#!/bin/sh\necho 'Unknown option'\n", encoding="utf-8")
    assert codex_sandbox.choose_bubblewrap(codex) == bundled
    directory = codex_sandbox.bubblewrap_directory(codex, tmp_path / "state")
    assert directory is not None
    own = directory / "bwrap"
    assert own.read_bytes() == bundled.read_bytes()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for planted in (lambda: own.symlink_to(bundled), lambda: own.write_text("#!/bin/sh\n", encoding="utf-8")):
        own.unlink()
        planted()  # as something that could write the state directory would have it
        assert codex_sandbox.bubblewrap_directory(codex, tmp_path / "state") == directory
        assert not own.is_symlink()
        assert own.read_bytes() == bundled.read_bytes()
    with monkeypatch.context() as patched:  # a full disk
        patched.setattr(codex_sandbox, "_placed", raising(OSError(errno.ENOSPC, "No space left on device")))
        assert codex_sandbox.bubblewrap_directory(codex, tmp_path / "state") == bundled.parent
        patched.setattr(codex_sandbox, "reason_of_sessions", lambda _path: "sessions may write there")
        with pytest.raises(InvalidSetting, match="no place for the bubblewrap"):
            codex_sandbox.bubblewrap_directory(codex, tmp_path / "state")
    bundled.unlink()
    assert codex_sandbox.choose_bubblewrap(codex) is None


async def test_the_scratch_directory_cannot_be_taken_by_others(machine: Machine) -> None:
    sandbox = await machine.sandbox()
    scratch = scratch_of(machine.state, "one")
    assert scratch.is_relative_to(machine.state)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.parent.mkdir(exist_ok=True)
    scratch.symlink_to(machine.elsewhere)
    with pytest.raises(PermissionError):
        sandbox.around(["true"], machine.env, machine.confined())
    scratch.unlink()
    scratch.mkdir(mode=0o777)
    sandbox.around(["true"], machine.env, machine.confined())
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="others than root cannot write them anyway")
@pytest.mark.skipif(sandbox_launcher.landlock_version() < 2, reason="needs Landlock")
async def test_root_in_a_sandbox_cannot_write_the_settings_of_the_kernel(machine: Machine) -> None:
    # The kernel runs the program that core_pattern names, as root and outside. One of no consequence is tried.
    setting = Path("/proc/sys/kernel/core_pipe_limit")
    seen = await machine.look(await machine.sandbox(), read=[str(setting)], write=[str(setting), "/proc/self/comm"])
    assert [*seen["read"].values()] == ["read"]
    assert [*seen["write"].values()] == ["no", "no"]


async def test_without_landlock_all_else_holds(machine: Machine) -> None:
    sandbox = replace(await machine.sandbox(), scoped=False)
    seen = await machine.look(sandbox, unix=machine.sockets, abstract=[machine.abstract])
    assert [*seen["unix"].values()] == ["no", "no"]
    assert [*seen["abstract"].values()] == ["reached"]  # so it is Landlock that closes them
