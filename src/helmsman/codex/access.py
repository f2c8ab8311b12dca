"""What a session may do, worked out before anything starts.

Codex 0.130 and newer marks a repository as trusted, in the user's own configuration and for good, when a thread starts in
it with a writable sandbox, whether the caller or the configuration asked for that. From then on the repository's own
configuration, MCP servers and hooks are loaded. Helmsman avoids it: the thread starts read-only, and the sandbox asked for
comes with its first turn (which trusts nothing). A caller who wants the repository's configuration says so, and it is then
trusted for that session only, by an override that Codex does not write down.

Codex 0.166 restores a thread's last policy on resume, full access included. Helmsman therefore always says, on resume, what
is to hold: what the caller asks for, else what the configuration says now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, get_args

from helmsman.codex.features import Feature
from helmsman.codex.policies import map_approval, turn_sandbox
from helmsman.codex.profiles import check_config, merge_config, profile_config
from helmsman.codex.repository_rules import refuse_rules_nobody_trusts
from helmsman.engine import ApprovalPolicy, SandboxMode
from helmsman.errors import InvalidInput
from helmsman.repositories import repository_root

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.codex.binary import CodexBinary
    from helmsman.engine import SessionOptions

_PERMISSION_PROFILES: Final[Mapping[str, SandboxMode]] = {
    ":read-only": "read-only",
    ":workspace": "workspace-write",
    ":danger-no-sandbox": "danger-full-access",
    ":danger-full-access": "danger-full-access",
}
_DEFAULT_APPROVAL: Final = "on-request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What is sent with the thread, and what with each turn."""

    sandbox: SandboxMode | None
    thread_sandbox: SandboxMode | None
    turn_sandbox: Mapping[str, Any] | None
    approval_policy: ApprovalPolicy | None
    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()


class ConfigurationSource(Protocol):
    """Knows the effective configuration for a directory: the keys of config.toml."""

    async def configuration(self, cwd: Path | None = None) -> Mapping[str, Any]: ...


async def plan_access(
    source: ConfigurationSource,
    binary: CodexBinary,
    codex_home: Path,
    options: SessionOptions,
    *,
    resuming: bool,
    detached: bool = False,
) -> Access:
    """Work out what to send for these options. `detached` says that the engine listens on a socket.

    Raises:
        InvalidInput: The options contradict each other or name a profile that does not exist; or commands could reach the
            engine itself; or this Codex would follow rules that the repository brought along.
    """
    refuse_rules_nobody_trusts(binary, options, options.cwd)
    given = merge_config(profile_config(binary, codex_home, options.profile), check_config(options.config))
    approval, remark = map_approval(binary, options.approval_policy)
    marks_trust = binary.can(Feature.TRUST_ON_START) and not resuming
    mode = options.sandbox
    configured: Mapping[str, Any] = {}
    if marks_trust or resuming:  # otherwise what is left out stays Codex's own business
        configured = await source.configuration(options.cwd)
        mode = mode or _configured_sandbox(given) or _configured_sandbox(configured)
    if resuming:
        mode = mode or _default_sandbox(configured, options.cwd)
        approval = approval or _configured_approval(given) or _configured_approval(configured) or _DEFAULT_APPROVAL
    if options.writable_roots and mode != "workspace-write":
        raise InvalidInput(
            "Writable roots belong to the sandbox workspace-write. Ask for that sandbox, or leave the roots out."
        )

    thread_mode, config = mode, given
    if marks_trust and mode is not None:
        thread_mode = "read-only"
        config = {key: value for key, value in given.items() if key not in ("sandbox_mode", "default_permissions")}
    elif marks_trust and (profile := given.get("default_permissions") or configured.get("default_permissions")):
        # A permission profile of the user's own cannot be sent with a turn. Declared untrusted for this session, the
        # repository is not marked as trusted either.
        config = merge_config(given, {"default_permissions": profile}, _trust(options.cwd, "untrusted"))
        approval = approval or _configured_approval(configured) or _DEFAULT_APPROVAL
    if options.trust_repository:
        config = merge_config(config, _trust(options.cwd, "trusted"))

    workspace = {**_table(configured, "sandbox_workspace_write"), **_table(given, "sandbox_workspace_write")}
    if detached and not binary.can(Feature.GUARDED_SOCKET):
        _refuse_network(mode or _default_sandbox(configured, options.cwd), workspace)
    return Access(
        sandbox=mode,
        thread_sandbox=thread_mode,
        turn_sandbox=turn_sandbox(mode, options.writable_roots, workspace) if mode is not None else None,
        approval_policy=approval,
        config=config,
        notes=(remark,) if remark else (),
    )


def _refuse_network(mode: SandboxMode, workspace: Mapping[str, Any]) -> None:
    """A command that may connect to anything may connect to the engine it runs in, and start work without a sandbox."""
    if mode == "workspace-write" and workspace.get("network_access") is True:
        raise InvalidInput(
            "With network access a sandboxed command could reach the socket of this Codex's engine and leave its sandbox. "
            "Leave network access out, upgrade Codex, or set HELMSMAN_DETACH=0 so that there is no socket."
        )


def _trust(directory: Path | None, level: str) -> dict[str, Any]:
    """Codex keeps its trust by the repository's root, or by the directory itself outside of any."""
    places = [] if directory is None else [directory, repository_root(directory) or directory]
    return {"projects": {str(place): {"trust_level": level} for place in places}} if places else {}


def _table(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = config.get(key)
    return table if isinstance(table, dict) else {}


def _configured_sandbox(config: Mapping[str, Any]) -> SandboxMode | None:
    mode = config.get("sandbox_mode")
    if mode in get_args(SandboxMode):
        return cast("SandboxMode", mode)
    profile = config.get("default_permissions")
    return _PERMISSION_PROFILES.get(profile) if isinstance(profile, str) else None


def _configured_approval(config: Mapping[str, Any]) -> ApprovalPolicy | None:
    policy = config.get("approval_policy")
    return cast("ApprovalPolicy", policy) if policy in get_args(ApprovalPolicy) else None


def _default_sandbox(configured: Mapping[str, Any], directory: Path | None) -> SandboxMode:
    """What Codex itself does without any setting: a repository the user trusts may be written to."""
    projects = configured.get("projects")
    root = (repository_root(directory) or directory) if directory is not None else None
    entry = projects.get(str(root)) if isinstance(projects, dict) else None
    trusted = isinstance(entry, dict) and entry.get("trust_level") == "trusted"
    return "workspace-write" if trusted else "read-only"
