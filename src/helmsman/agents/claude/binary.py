"""Claude Code on this machine: path, version and capabilities."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.agents.protocol import Capabilities, Capability
from helmsman.base.caller_context import environment
from helmsman.base.programs import check_program, environment_for, find_program, with_interpreter
from helmsman.base.structs import Value
from helmsman.errors import AgentNotFound, ProgramRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.settings import Settings

CLAUDE: Final = "claude"
PROJECTS: Final = "projects"
"""Directory of its sessions, in its home."""
TITLE: Final = "Claude Code"
INSTALL_ADVICE: Final = (
    "Install Claude Code with `npm install -g @anthropic-ai/claude-code`, or set CLAUDE_CLI_PATH to its binary."
)
OLDEST: Final = (2, 1, 300)
"""Older ones were not seen to say which message a turn belongs to."""
_ANSWER_SECONDS: Final = 20.0
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_PLATFORM_PACKAGE: Final = "claude-code-*-*/claude"
_LEFT_OUT: Final = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT", "CLAUDE_CODE_SESSION_ID")
"""Variables that Claude Code sets for its children. They are removed if it has started Helmsman."""
_ALWAYS: Final = {
    "DISABLE_AUTOUPDATER": "1",  # another version in mid-session would be another agent
    # A `cd` needs no approval, and would apply to the next command: that would run in another directory than shown.
    "CLAUDE_BASH_MAINTAIN_PROJECT_WORKING_DIR": "1",
    # A background task starts another turn when it is done, which no client has requested or would see.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
}


def spelled(directory: str) -> str:
    """Return the name of the folder for the sessions of a directory."""
    return re.sub(r"[^a-zA-Z0-9]", "-", directory)


class ClaudeBinary(Value, frozen=True, kw_only=True):
    """Claude Code installation. `home` is the directory of its settings and sessions."""

    path: Path
    version: str
    home: Path

    @property
    def identity(self) -> tuple[str, int, int]:
        """Another size or time of change at the same path is another Claude Code."""
        status = self.path.stat()
        # Cheaper than a digest of a program of 280 MB, and enough to notice an upgrade.
        return str(self.path), status.st_size, status.st_mtime_ns

    def environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        """Return its environment."""
        given = {
            name: value for name, value in (environment() if env is None else env).items() if name not in _LEFT_OUT
        }
        if self.home != Path(given.get("HOME", "/nowhere")) / ".claude":  # named, it keeps more of its files in there
            given["CLAUDE_CONFIG_DIR"] = str(self.home)
        return given | _ALWAYS


def find_claude(settings: Settings, env: Mapping[str, str] | None) -> ClaudeBinary:
    """Find the Claude Code of these settings: the configured path, or `claude` on PATH. Blocks, once for each.

    Raises:
        AgentNotFound: It is missing, too old, or another program.
        ProgramRefused: A session could have put it there.
    """
    used = environment() if env is None else env
    found = settings.claude_path or _on_path(used)
    if found is None:
        raise AgentNotFound(f"There is no claude on PATH. {INSTALL_ADVICE}", agent=CLAUDE)
    program = _program(found)
    check_program(program, used)
    try:
        status = program.stat()
    except OSError as error:
        raise AgentNotFound(f"{found} cannot be run: {error.strerror}. {INSTALL_ADVICE}", agent=CLAUDE) from error
    version = _version(str(program), status.st_size, status.st_mtime_ns)
    numbers = _VERSION.match(version)
    if numbers is None:
        raise AgentNotFound(f"{found} is not Claude Code: it answers {version!r:.200}. {INSTALL_ADVICE}", agent=CLAUDE)
    if tuple(map(int, numbers.groups())) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise AgentNotFound(
            f"{found} is Claude Code {version}, and Helmsman needs {oldest} or newer. {INSTALL_ADVICE}", agent=CLAUDE
        )
    return ClaudeBinary(path=program, version=version, home=settings.claude_home)


def claude_is_here(settings: Settings, env: Mapping[str, str] | None) -> bool:
    """Return whether it is installed, without running it."""
    with suppress(ProgramRefused):
        found = settings.claude_path or _on_path(environment() if env is None else env)
        return found is not None and found.is_file()
    return False


def _on_path(env: Mapping[str, str]) -> Path | None:
    # An explicit PATH, since a search without one would use the system's default.
    found = find_program(CLAUDE, {**env, "PATH": env.get("PATH", "")}, is_agent=True)
    return None if found is None else Path(found)


def _program(found: Path) -> Path:
    """Return the program itself: npm installs a small launcher, and the program in a package for the platform."""
    resolved = found.resolve()
    if resolved.suffix in (".js", ".mjs", ".cjs") or resolved.parent.name == "bin":
        for place in (*resolved.parents,)[:3]:
            natives = [
                *place.parent.glob(_PLATFORM_PACKAGE),
                *place.glob(f"node_modules/@anthropic-ai/{_PLATFORM_PACKAGE}"),
            ]
            if natives:
                return natives[0]
    return resolved


@lru_cache(maxsize=32)
def _version(path: str, _size: int, _changed_ns: int) -> str:
    try:
        answer = subprocess.run(
            # Run in `/`: a version manager would read its choice from the files of the current directory.
            [*with_interpreter(path), "--version"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=environment_for(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return answer.stdout.split(" ")[0].strip() or answer.stderr.strip()


_LACKING: Final = {
    Capability.REVIEW: "",
    Capability.SESSION_CONFIG: "",
    Capability.CLIENT_TOOLS: "",
    Capability.ROLL_BACK: "",
    Capability.ARCHIVE: "",
    Capability.GOALS: "",
    Capability.ATTACH: "When no other program has the session loaded, `claude --resume ID` opens it.",
    Capability.LOGIN: "Run `claude auth login`.",
    Capability.SKILLS: "",
    Capability.CONFIGURE: "Change its settings.json.",
}
ABLE: Final = frozenset(Capability) - _LACKING.keys()


def capabilities(binary: ClaudeBinary) -> Capabilities:
    """Return the capabilities of an engine of this Claude Code."""
    return Capabilities(agent=CLAUDE, engine=f"{TITLE} {binary.version}", lacking=_LACKING)
