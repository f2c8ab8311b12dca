"""What each agent sees and reaches in its sandbox, found out from inside it: the table of docs/appendix/sandbox.md.

`python -m tests.sandbox_table` (make sandbox-table) draws it anew. In the place of each agent a program looks around,
started as that one is, with its home, its login and its variables. For Codex it runs as a command with network access.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import anyio

from helmsman import load_settings
from helmsman.agents.acp.agent import KNOWN
from helmsman.agents.acp.dialect import _around
from helmsman.agents.claude.access import plan_launch
from helmsman.agents.claude.binary import ClaudeBinary
from helmsman.agents.codex.agent import find_agent
from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.processes import codex_environment
from helmsman.agents.sandbox import Sandbox, find_sandbox
from helmsman.model.options import SessionOptions, TurnInput
from tests import seen_inside

PAGE: Final = Path(__file__).parents[1] / "docs" / "appendix" / "sandbox.md"
BEGIN: Final = "<!-- drawn by tests/sandbox_table.py -->"
END: Final = "<!-- end of the drawing -->"
CODEX: Final = "`codex`, network on"
AGENTS: Final = ("claude", "gemini", "opencode", "qwen", "copilot")

_LOGINS: Final = {
    "claude": (".claude/.credentials.json", "ANTHROPIC_API_KEY"),
    "gemini": (".gemini/oauth_creds.json", "GEMINI_API_KEY"),
    "qwen": (".qwen/oauth_creds.json", "OPENAI_API_KEY"),
    "copilot": (".copilot/config.json", "COPILOT_GITHUB_TOKEN"),
    "codex": (".codex/auth.json", "CODEX_ACCESS_TOKEN"),
    "opencode": (".local/share/opencode/auth.json", "OPENCODE_TOKEN"),
}
_COPIED: Final = {
    "gemini": ".gemini/oauth_creds.json",
    "opencode": "data/opencode/auth.json",
    "qwen": "oauth_creds.json",
    "copilot": "config.json",
}
"""Where a login is in the home that the agent has in its sandbox."""
_SESSIONS: Final = {
    "claude": ".claude/projects/-other/x.jsonl",
    "gemini": ".gemini/tmp/other/chats/x.jsonl",
    "qwen": ".qwen/projects/-other/chats/x.jsonl",
    "copilot": ".copilot/session-state/x/events.jsonl",
    "codex": ".codex/sessions/x.jsonl",
    "opencode": ".local/share/opencode/opencode.db",
}
"""Sessions of other directories."""
_SOCKET_VARIABLES: Final = ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DISPLAY", "TMUX")
_SECRET_VARIABLES: Final = ("GH_PAT", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY")


class Stage:
    """A user with everything that could be seen."""

    def __init__(self, base: Path, temporary: Path, stack: ExitStack) -> None:
        self.others = temporary / "others"
        self.home = base / "home"
        self.repo = self.home / "src" / "repo"
        self.state = self.home / ".local" / "state" / "helmsman"
        for place in (self.repo, self.state / "agents"):
            place.mkdir(mode=0o700, parents=True)
        self.state.chmod(0o700)
        secret, config = base / "elsewhere" / "token", self.home / ".config" / "helmsman" / "helmsman.toml"
        notify = f'[notify]\nphone = {{ ntfy = {{ topic = "x", token_file = "{secret}" }} }}\n'
        files = {secret: "x", config: notify, self.home / ".pyenv/bin/tool": "x", self.home / ".gitconfig": "[user]\n"}
        files |= {
            self.home / name: "x" for name in ("notes.txt", ".ssh/id", ".aws/credentials", ".mozilla/logins.json")
        }
        files |= {self.home / name: "{}" for name, _ in _LOGINS.values()} | {self.state / "tasks.sqlite3": "x"}
        files |= {self.home / name: "x" for name in _SESSIONS.values()}
        files |= {self.home / "src" / "other" / "file": "x", self.others: "x", self.repo / "file": "x"}
        for path, text in files.items():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o600)
        self.socket, self.abstract = str(base / "s"), f"helmsman-table-{os.getpid()}"
        unix, abstract, tcp = (
            stack.enter_context(socket.socket(kind)) for kind in (socket.AF_UNIX,) * 2 + (socket.AF_INET,)
        )
        for opened, address in ((unix, self.socket), (abstract, f"\0{self.abstract}"), (tcp, ("127.0.0.1", 0))):
            opened.bind(address)
            opened.listen()
        self.port = str(tcp.getsockname()[1])
        self.env = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "HELMSMAN_STATE_DIR": str(self.state),
            "HELMSMAN_TABLE_MARK": base.name,
            **{name: "x" for _, name in _LOGINS.values()},
            **dict.fromkeys(_SOCKET_VARIABLES, self.socket),
            **dict.fromkeys(_SECRET_VARIABLES, "postgres://me:secret@host/x"),
        }
        outside = {**self.env, "HELMSMAN_TABLE_MARK": f"{base.name}-outside"}
        self.other = stack.enter_context(subprocess.Popen(["/bin/sleep", "600"], env=outside))
        stack.callback(self.other.kill)
        self.secret = secret
        self.codex: CodexBinary | None = None

    def question(self) -> dict[str, list[str]]:
        state, config = self.state / "tasks.sqlite3", self.home / ".config" / "helmsman" / "helmsman.toml"
        read = [self.home / name for name, _ in _LOGINS.values()]
        read += [self.home / name for name in ("notes.txt", ".ssh/id", ".aws/credentials", ".mozilla/logins.json")]
        read += [self.home / name for name in (".pyenv/bin/tool", ".gitconfig", "src/other/file")]
        read += [state, config, self.secret, self.others, self.repo / "file"]
        read += [self.home / name for name in _SESSIONS.values()]
        read += [self.copy_of(name) for name in _COPIED]
        return {
            "read": [*map(str, read), "/run"],
            "write": [str(self.repo), str(self.home), "/tmp"],
            "unix": [self.socket],
            "abstract": [self.abstract],
            "tcp": [self.port],
            "environment": [*_SOCKET_VARIABLES, *_SECRET_VARIABLES, *(name for _, name in _LOGINS.values())],
            "processes": [f"HELMSMAN_TABLE_MARK={self.env['HELMSMAN_TABLE_MARK']}-outside"],
        }

    def copy_of(self, agent: str) -> Path:
        """Return where the copy of an agent's login is, in the home that it has in its sandbox."""
        inside = self.state / "agents" / "homes" / agent / "home"
        return inside / _COPIED[agent]

    async def look(self, name: str, sandbox: Sandbox) -> dict[str, Any]:
        """Look around in the place of an agent."""
        question, answer, program = (self.repo / part for part in ("question", "answer", "look.py"))
        question.write_text(json.dumps(self.question()), encoding="utf-8")
        shutil.copyfile(seen_inside.__file__, program)
        argv = [sys.executable, "-I", str(program), str(question), str(answer)]
        line, env = await anyio.to_thread.run_sync(lambda: self._launch(name, sandbox, argv))
        with anyio.fail_after(120):
            done = await anyio.run_process(line, env=env, cwd=self.repo, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        answer.unlink()
        return found

    def _launch(self, name: str, sandbox: Sandbox, argv: list[str]) -> tuple[Sequence[str], dict[str, str]]:
        options = SessionOptions(agent=name, cwd=self.repo, writes="workspace")
        if name == CODEX:
            policy = ("-c", 'sandbox_mode="workspace-write"', "-c", "sandbox_workspace_write.network_access=true")
            home = self.home / ".codex-for-table"
            home.mkdir(exist_ok=True)
            assert self.codex is not None
            return [str(self.codex.path), "sandbox", *policy, "--", *argv], codex_environment(
                self.codex, home, self.env
            )
        if name == "claude":
            binary = ClaudeBinary(path=Path("/bin/true"), version="2.1.326", home=self.home / ".claude")
            launch = plan_launch(binary, options, TurnInput(text=""), self.repo, "table", enforced=True)
            assert launch.confined is not None
            return sandbox.around(argv, binary.environment(self.env), launch.confined)
        profile = next(one for one in KNOWN if one.name == name)
        made = self.state / "agents" / "homes" / name / "home"
        made.mkdir(parents=True)
        place = profile.session_place("", self.env, enforced=True)
        return _around(profile, options, argv, self.env, made, place, sandbox)

    def rows(self, name: str, seen: dict[str, Any]) -> dict[str, str]:
        """What was seen, in the words of the table."""
        agent = "codex" if name == CODEX else name
        logins = {one: str(self.home / path) for one, (path, _) in _LOGINS.items()}
        others = [path for one, path in logins.items() if one != agent]
        keys = [key for one, (_, key) in _LOGINS.items() if one != agent]
        home, read, variables = str(self.home), seen["read"], seen["environment"]

        def shown(found: dict[str, str], names: Sequence[str]) -> str:
            some = [one for one in names if found[one] not in ("no", "empty")]
            return "no" if not some else "yes" if len(some) == len(names) else "partly"

        return {
            "the repository": "writable" if seen["write"][str(self.repo)] == "written" else "read-only",
            "tools in the home, `~/.gitconfig`": shown(read, [f"{home}/.pyenv/bin/tool", f"{home}/.gitconfig"]),
            "its own settings and login": "a copy" if agent in _COPIED else shown(read, [logins[agent]]),
            "its sessions in other directories": shown(read, [str(self.home / _SESSIONS[agent])]),
            "settings and logins of other agents": shown(read, others),
            "`~/.ssh`, `~/.aws`, browser profiles": shown(
                read, [f"{home}/{one}" for one in (".ssh/id", ".aws/credentials", ".mozilla/logins.json")]
            ),
            "the rest of the home, other projects": shown(read, [f"{home}/notes.txt", f"{home}/src/other/file"]),
            "Helmsman's settings": shown(read, [f"{home}/.config/helmsman/helmsman.toml"]),
            "Helmsman's state": shown(read, [str(self.state / "tasks.sqlite3")]),
            "a token file that the settings name": shown(read, [str(self.secret)]),
            "files of others in `/tmp`": shown(read, [str(self.others)]),
            "writing to `/tmp`": "no" if seen["write"]["/tmp"] == "no" else "shared" if name == CODEX else "its own",
            "writing to the home": shown(seen["write"], [home]),
            "`/run`": shown(read, ["/run"]),
            "Unix sockets outside, by path": shown(seen["unix"], [self.socket]),
            "abstract sockets (Linux 6.12)": shown(seen["abstract"], [self.abstract]),
            "TCP on 127.0.0.1": shown(seen["tcp"], [self.port]),
            "variables that name sockets": shown(variables, _SOCKET_VARIABLES),
            "variables with its own key": shown(variables, [_LOGINS[agent][1]]),
            "variables with keys of other agents": shown(variables, keys),
            "variables with other secrets": shown(variables, _SECRET_VARIABLES),
            "processes outside": shown(seen["processes"], ["/proc"]),
        }


async def columns() -> dict[str, dict[str, str]]:
    """Return the table, by agent and row."""
    # Not in /tmp, which Codex lets its commands write.
    usual, other = (tempfile.TemporaryDirectory(prefix="hm-", dir=place) for place in ("/var/tmp", "/tmp"))
    with usual as base, other as temporary, ExitStack() as stack:
        stage = Stage(Path(base).resolve(), Path(temporary).resolve(), stack)
        settings = load_settings({}, stage.env, stage.repo)
        sandbox = await find_sandbox(settings, stage.env)
        stage.codex = await find_agent(settings, stage.env)
        return {name: stage.rows(name, await stage.look(name, sandbox)) for name in (*AGENTS, CODEX)}


def draw(found: dict[str, dict[str, str]]) -> str:
    names = [name if name == CODEX else f"`{name}`" for name in found]
    lines = [f"| from inside | {' | '.join(names)} |", f"| --- {'| --- ' * len(names)}|"]
    rows = next(iter(found.values()))
    lines += [f"| {row} | {' | '.join(column[row] for column in found.values())} |" for row in rows]
    return "\n".join(lines)


def page_with_drawing(page: str, drawing: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{drawing}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with_drawing(PAGE.read_text(encoding="utf-8"), draw(anyio.run(columns))), encoding="utf-8")
