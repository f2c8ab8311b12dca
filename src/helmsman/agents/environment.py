"""Environment of a caller: what its agents get of it, and which of it makes a difference to them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from helmsman.base.addresses import REMOTE_TOKEN
from helmsman.base.caller_context import UMASK, environment

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES: Final = frozenset(
    {
        *(UMASK, "HOME", "PATH", "SHELL", "TMPDIR", "USER", "RUST_LOG", "KUBECONFIG"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "NODE_PATH", "GOPATH", "VIRTUAL_ENV"),
    }
)
_NO_NAMES: Final = frozenset({"CODEX_CLI_PATH", "CODEX_HOME", "CODEX_THREAD_ID", "STARSHIP_SESSION_KEY"})
"""Our own, compared elsewhere, or different for every window or every session of a Codex that starts Helmsman."""
_PREFIXES: Final = (
    *("ANTHROPIC_", "AWS_", "AZURE_", "CLAUDE_CODE_OAUTH_", "CLAUDE_CODE_USE_", "CLAUDE_CONFIG_", "CODEX_", "COPILOT_"),
    *("GEMINI_", "GOOGLE_", "KILO_", "KIMI_", "NANOCODER_", "NODE_EXTRA_", "OPENAI_", "OPENCODE_", "OTEL_", "QWEN_"),
    "SSL_CERT_",
    *("XDG_CACHE_", "XDG_CONFIG_", "XDG_DATA_", "XDG_STATE_"),
)
_SUFFIXES: Final = (
    *("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS"),
    *("_URL", "_URI", "_DSN", "_HOST", "_PROXY", "_ENV"),
)
_NO_PREFIXES: Final = ("HELMSMAN_", "VSCODE_", "XDG_", "CLAUDE_CODE_")


def launch_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of a caller, as agents on this machine may have it."""
    given = dict(environment() if env is None else env)
    given.pop(REMOTE_TOKEN, None)  # of a Codex elsewhere
    return given


def digest_of(env: Mapping[str, str], *more: object) -> str:
    """Return a fingerprint of the variables that change what agents and their commands do. Work with another one gets
    another engine.

    These say where programs and files are, how the network and the account are reached, and what agents and the commands of
    a project read: addresses, secrets, the kind of environment. Other variables (terminals, editors, desktops) differ from
    window to window.
    """
    chosen = {name: value for name, value in env.items() if _matters(name)}
    content = json.dumps([chosen, *more], sort_keys=True, default=str)
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()


def _matters(name: str) -> bool:
    # Proxies are set in either case: `http_proxy`, `HTTPS_PROXY`.
    name = name.upper()
    is_known = name.startswith(_PREFIXES) or (name.endswith(_SUFFIXES) and not name.startswith(_NO_PREFIXES))
    return name in _NAMES or (is_known and name not in _NO_NAMES)
