"""What is known on disk of the Codex engines that outlive the processes using them (`helmsman.agents.keeper.places`)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.agents.keeper.places import is_draining, read_content
from helmsman.base.processes import Process
from helmsman.base.structs import Value
from helmsman.base.surroundings import UMASK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.agents.codex.binary import CodexBinary

ENGINES: Final = "engines"


class BinaryIdentity(Value, frozen=True, kw_only=True):
    """Which Codex an engine is. Another size or time of change at the same path is another Codex."""

    path: str
    size: int
    changed_ns: int
    version: str

    @classmethod
    def of(cls, binary: CodexBinary) -> BinaryIdentity:
        status = binary.path.stat()
        return cls(
            path=str(binary.path), size=status.st_size, changed_ns=status.st_mtime_ns, version=str(binary.version)
        )


class EngineRecord(Value, frozen=True, kw_only=True):
    """One detached engine. `keeper` is the process that started and will end `codex`; `env_digest` see `digest_of`;
    `search_path` is the PATH of Codex itself.

    One `on_pipe` is reached through its keeper, by one owner at a time; another listens itself, for as many as there are.
    """

    id: str
    directory: Path
    socket: Path
    keeper: Process
    codex: Process
    binary: BinaryIdentity
    codex_home: str
    env_digest: str
    idle: float
    started_at: float
    on_pipe: bool = False
    search_path: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether its keeper runs; without one nobody would ever end it."""
        return self.keeper.is_alive()

    @property
    def is_running(self) -> bool:
        return self.codex.is_alive()

    @property
    def is_draining(self) -> bool:
        return is_draining(self.directory)


# --- the records -----------------------------------------------------------------------------------------------------


def engine_directories(state_dir: Path) -> list[Path]:
    """Where an engine is, was, or was about to be, oldest first."""
    try:
        entries = [entry for entry in (state_dir / ENGINES).iterdir() if entry.is_dir() and not entry.is_symlink()]
        return sorted(entries, key=lambda entry: (entry.stat().st_mtime, entry.name))
    except OSError:
        return []


def read_record(directory: Path) -> EngineRecord | None:
    """The record in an engine's directory, or None where there is none that can be understood."""
    try:
        content = read_content(directory)
        keeper, codex, binary = content["keeper"], content["codex"], content["binary"]
        return EngineRecord(
            id=directory.name,
            directory=directory,
            socket=Path(content["socket"]),
            keeper=Process(int(keeper[0]), str(keeper[1])),
            codex=Process(int(codex[0]), str(codex[1])),
            binary=BinaryIdentity(
                path=str(binary["path"]),
                size=int(binary["size"]),
                changed_ns=int(binary["changed_ns"]),
                version=str(binary["version"]),
            ),
            codex_home=str(content["codex_home"]),
            env_digest=str(content["env_digest"]),
            idle=float(content["idle"]),
            started_at=float(content["started_at"]),
            on_pipe=content.get("on_pipe") is True,
            search_path=str(content.get("search_path", "")),
        )
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def read_records(state_dir: Path) -> list[EngineRecord]:
    """The engines of which something runs, oldest first; what has ended without clearing up is left out."""
    records = (read_record(directory) for directory in engine_directories(state_dir))
    return [record for record in records if record is not None and (record.is_kept or record.is_running)]


# --- the environment -------------------------------------------------------------------------------------------------


def digest_of(env: Mapping[str, str], command_path: str = "") -> str:
    """The variables that change what Codex does, as a fingerprint: work begun with others must not run in this engine.

    Where programs and files are found, how the network and the account are reached, what Codex itself reads, and what a
    project's commands usually read: addresses, secrets, the kind of place it is. The rest (terminals, editors, desktops)
    differs from window to window and means nothing to them. `command_path` is the PATH of its commands.
    """
    chosen = {name: value for name, value in env.items() if _changes_codex(name)}
    return hashlib.sha256(
        json.dumps([chosen, command_path], sort_keys=True).encode("utf-8", "surrogateescape")
    ).hexdigest()


_NAMES: Final = frozenset(
    {
        *(UMASK, "HOME", "PATH", "SHELL", "TMPDIR", "USER", "RUST_LOG", "KUBECONFIG"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "NODE_PATH", "GOPATH"),
    }
)
_NO_NAMES: Final = frozenset({"CODEX_CLI_PATH", "CODEX_HOME", "CODEX_THREAD_ID", "STARSHIP_SESSION_KEY"})
"""Ours, compared as what they mean, or another for every window, or for every session of a Codex that starts us."""
_NO_PREFIXES: Final = ("HELMSMAN_", "VSCODE_", "XDG_", "CLAUDE_CODE_")
_PREFIXES: Final = ("CODEX_", "CLAUDE_CONFIG_", "ANTHROPIC_", "OPENAI_", "AZURE_", "AWS_", "SSL_CERT_", "OTEL_")
_SUFFIXES: Final = (
    *("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS"),
    *("_URL", "_URI", "_DSN", "_HOST", "_PROXY", "_ENV"),
)


def _changes_codex(name: str) -> bool:
    name = name.upper()
    is_known = name.startswith(_PREFIXES) or (name.endswith(_SUFFIXES) and not name.startswith(_NO_PREFIXES))
    return name in _NAMES or (is_known and name not in _NO_NAMES)
