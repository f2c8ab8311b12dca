"""What the engines of Codex can do, version by version, as Helmsman's own list has it (`helmsman.agents.capabilities`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.agents.codex.features import Feature
from helmsman.agents.protocol import Capabilities, Capability

if TYPE_CHECKING:
    from helmsman.agents.codex.binary import CodexBinary

CODEX: Final = "codex"

_NOT_IN_EVERY_VERSION: Final = {
    Capability.STEER: Feature.STEER,
    Capability.FORK_AT_TURN: Feature.FORK_AT_TURN,
    Capability.COMPACT: Feature.COMPACT,
    Capability.GOALS: Feature.GOALS,
}

_OF_EXEC: Final = frozenset(
    {
        Capability.IMAGES,
        Capability.OUTPUT_SCHEMA,
        Capability.SANDBOX,
        Capability.USAGE,
        Capability.RESUME,
    }
)


def app_server_capabilities(binary: CodexBinary, *, detached: bool) -> Capabilities:
    """What `codex app-server` can do."""
    lacking = {
        capability: f"{feature.versions} can: install such a version, or set CODEX_CLI_PATH to one (in use: {binary.path})."
        for capability, feature in _NOT_IN_EVERY_VERSION.items()
        if not binary.can(feature)
    }
    if not detached:
        lacking[Capability.DETACH] = "Use HELMSMAN_DETACH=1 with a Codex that can listen on a Unix socket."
    return Capabilities(CODEX, f"Codex {binary.version}", lacking)


def exec_capabilities() -> Capabilities:
    """What `codex exec` can do."""
    lacking = {capability: "Use the engine app-server." for capability in Capability if capability not in _OF_EXEC}
    return Capabilities(CODEX, "`codex exec`", lacking)
