"""Which Codex an engine runs, and in which environment: work that needs another one gets another engine."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from helmsman.base.structs import Value
from helmsman.base.surroundings import UMASK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.agents.codex.binary import CodexBinary


class BinaryIdentity(Value, frozen=True, kw_only=True):
    """A Codex program. Another size or modification time at the same path is another Codex."""

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


def digest_of(env: Mapping[str, str], command_path: str = "") -> str:
    """Return a fingerprint of the variables that change what Codex and its commands do.

    These say where programs and files are, how the network and the account are reached, and what Codex and the commands of
    a project read: addresses, secrets, the kind of environment. Other variables (terminals, editors, desktops) differ from
    window to window. `command_path` is the PATH of Codex's commands.
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
"""Our own, compared elsewhere, or different for every window or every session of a Codex that starts Helmsman."""
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
