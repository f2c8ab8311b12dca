"""Sandbox and approval policy: our spellings, Codex's spellings, and which of two is the wider one.

Codex spells a sandbox `workspace-write` when a thread starts and `{"type": "workspaceWrite", …}` on a turn and in what
it reports back. Approval policies differ by version. All of that is here, so that nobody else compares strings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.codex.features import Feature
from helmsman.errors import PolicyWidened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.model.options import ApprovalPolicy, Asks, SandboxMode, SessionOptions, Writes

_SANDBOX_OF: Final[Mapping[Writes, SandboxMode]] = {
    "nothing": "read-only",
    "workspace": "workspace-write",
    "anything": "danger-full-access",
}
_APPROVAL_OF: Final[Mapping[Asks, ApprovalPolicy]] = {
    "unless_harmless": "untrusted",
    "after_failure": "on-failure",
    "when_needed": "on-request",
    "never": "never",
}
_SANDBOX_TYPES: Final[Mapping[SandboxMode, str]] = {
    "read-only": "readOnly",
    "workspace-write": "workspaceWrite",
    "danger-full-access": "dangerFullAccess",
}
_SANDBOX_WIDTH: Final = {"read-only": 0, "workspace-write": 1, "danger-full-access": 2}
_APPROVAL_WIDTH: Final = {"untrusted": 0, "on-request": 1, "on-failure": 1, "never": 2}
_WIDEST: Final = 3  # whatever we do not know is taken to be wider than anything asked for

WORKSPACE_KEYS: Final = {
    "networkAccess": "network_access",
    "excludeTmpdirEnvVar": "exclude_tmpdir_env_var",
    "excludeSlashTmp": "exclude_slash_tmp",
}


def asked_sandbox(options: SessionOptions) -> SandboxMode | None:
    """What a session may write, as Codex calls it; None leaves it to the configuration."""
    return None if options.writes is None else _SANDBOX_OF[options.writes]


def sandbox_name(reported: Any) -> str | None:
    """A sandbox as Codex reports it (a string, or an object with a `type`), in our spelling."""
    kind = reported.get("type") if isinstance(reported, dict) else reported
    for name, spelling in _SANDBOX_TYPES.items():
        if kind in (name, spelling):
            return name
    return kind if isinstance(kind, str) else None


def approval_name(reported: Any) -> str | None:
    """An approval policy as Codex reports it; the granular form is called `granular`."""
    if isinstance(reported, dict):
        return next(iter(reported), None)
    return reported if isinstance(reported, str) else None


def asked_approval(binary: CodexBinary, options: SessionOptions) -> tuple[ApprovalPolicy | None, str | None]:
    """When a session asks, as this Codex calls it, and a remark when it has nothing that is the same."""
    policy = None if options.asks is None else _APPROVAL_OF[options.asks]
    if policy == "on-failure" and not binary.can(Feature.ON_FAILURE_APPROVAL):
        return "on-request", f"Codex {binary.version} has no approval policy on-failure; on-request is used instead."
    return policy, None


def turn_sandbox(mode: SandboxMode, writable_roots: Sequence[Path], workspace: Mapping[str, Any]) -> dict[str, Any]:
    """The `sandboxPolicy` of a turn. `workspace` is the `[sandbox_workspace_write]` table of the configuration."""
    policy: dict[str, Any] = {"type": _SANDBOX_TYPES[mode]}
    if mode == "workspace-write":
        configured = workspace.get("writable_roots")
        roots = [*(configured if isinstance(configured, list) else ()), *writable_roots]
        policy["writableRoots"] = list(dict.fromkeys(map(str, roots)))
        for wire, key in WORKSPACE_KEYS.items():
            policy[wire] = workspace.get(key) is True
    return policy


def refuse_wider(
    *, asked_sandbox: str | None, sandbox: str | None, asked_approval: str | None, approval: str | None
) -> None:
    """Compare what Codex says it applied with what was asked for; None asked for means that anything will do.

    Raises:
        PolicyWidened: Codex gives more than was asked for.
    """
    if asked_sandbox is not None and _width(_SANDBOX_WIDTH, sandbox) > _SANDBOX_WIDTH[asked_sandbox]:
        raise _widened("sandbox", asked_sandbox, sandbox)
    if asked_approval is not None and _width(_APPROVAL_WIDTH, approval) > _APPROVAL_WIDTH[asked_approval]:
        raise _widened("approval policy", asked_approval, approval)


def is_wider_sandbox(asked: Mapping[str, Any], than: Any) -> bool:
    """Whether the sandbox of a turn allows more than another, as Codex reports it. One we cannot read allows nothing."""
    width, known = _width(_SANDBOX_WIDTH, sandbox_name(asked)), _SANDBOX_WIDTH.get(sandbox_name(than) or "", -1)
    if width != known or sandbox_name(asked) != "workspace-write":
        return width > known
    other: Mapping[str, Any] = than if isinstance(than, dict) else {}
    if not {*asked.get("writableRoots", ())} <= {*(other.get("writableRoots") or ())}:
        return True
    allowed = asked.get("networkAccess") is True and other.get("networkAccess") is not True
    excluded = ("excludeTmpdirEnvVar", "excludeSlashTmp")
    return allowed or any(other.get(key) is True and asked.get(key) is not True for key in excluded)


def is_wider_approval(asked: str | None, than: str | None) -> bool:
    """Whether an approval policy asks less often than another, as Codex reports it. One we do not know always asks."""
    return asked is not None and _width(_APPROVAL_WIDTH, asked) > _APPROVAL_WIDTH.get(than or "", -1)


def _width(table: Mapping[str, int], value: str | None) -> int:
    return table.get(value or "", _WIDEST)


def _widened(what: str, asked: str, applied: str | None) -> PolicyWidened:
    return PolicyWidened(
        f"Codex applied the {what} {applied} where {asked} was asked for, so nothing was run. Check Codex's "
        "configuration and managed requirements, or ask for what it applies.",
        asked=asked,
        applied=applied,
    )
