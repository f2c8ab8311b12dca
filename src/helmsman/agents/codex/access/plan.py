"""What a session may do, worked out before anything starts.

Codex 0.130 and newer marks a repository as trusted, in the user's own configuration and for good, when a thread starts in
it with a writable sandbox, whether the caller or the configuration asked for that. From then on the repository's own
configuration, MCP servers and hooks are loaded. Helmsman avoids it: the thread starts read-only, and the sandbox asked for
comes with its first turn (which trusts nothing). A caller who wants the repository's configuration says so, and it is then
trusted for that session only, by an override that Codex does not write down.

Codex 0.166 restores a thread's last policy on resume, full access included. Helmsman therefore always says, on resume, what
is to hold: what the caller asks for, else what the configuration says now.

With allowed roots (`helmsman.agents.codex.access.confinement`) all of that is said with every turn, whatever the version.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, get_args

from helmsman.agents.codex.access.configuration import check_config, merge_config, profile_config
from helmsman.agents.codex.access.confinement import (
    NO_ROOTS,
    Confinement,
    Policy,
    refuse_rules_nobody_trusts,
    refuse_writing_everything,
)
from helmsman.agents.codex.access.policies import asked_approval, asked_sandbox, turn_sandbox
from helmsman.agents.codex.features import Feature
from helmsman.base.git_view import repository_root
from helmsman.errors import InvalidInput
from helmsman.model.options import ApprovalPolicy, SandboxMode, SessionOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.agents.codex.binary import CodexBinary

_PERMISSION_PROFILES: Final[Mapping[str, SandboxMode]] = {
    ":read-only": "read-only",
    ":workspace": "workspace-write",
    ":danger-no-sandbox": "danger-full-access",
    ":danger-full-access": "danger-full-access",
}
_DEFAULT_APPROVAL: Final[ApprovalPolicy] = "on-request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What is sent with the thread, and what with each turn."""

    sandbox: SandboxMode | None
    thread_sandbox: SandboxMode | None
    turn_sandbox: Mapping[str, Any] | None
    approval_policy: ApprovalPolicy | None
    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def policy(self, directory: str | None) -> Policy:
        """What holds in a turn of a thread in this directory, for who leaves nothing to the configuration."""
        writable = (self.turn_sandbox or {}).get("writableRoots", ())
        roots = (directory, *writable) if directory is not None else tuple(writable)
        return Policy(directory=directory, sandbox=self.turn_sandbox, workspace_roots=roots)


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
    reachable: bool = False,
    confinement: Confinement = NO_ROOTS,
) -> Access:
    """Work out what to send for these options. `reachable` says that a command can connect to the engine.

    Raises:
        InvalidInput: The options contradict each other or name a profile that does not exist; or commands could reach the
            engine itself, or write outside the allowed roots, or all of `/`; or this Codex would follow rules that the
            repository brought along.
    """
    refuse_rules_nobody_trusts(binary, options, options.cwd)
    given = merge_config(profile_config(binary, codex_home, options.profile), check_config(options.config))
    approval, remark = asked_approval(binary, options)
    marks_trust = binary.can(Feature.TRUST_ON_START) and not resuming
    mode = asked_sandbox(options)
    configured: Mapping[str, Any] = {}
    if marks_trust or resuming or confinement:  # otherwise what is left out stays Codex's own business
        configured = await source.configuration(options.cwd)
    said: Mapping[str, Any] | None = None
    if confinement:
        mode, said = confined_sandbox(confinement, codex_home, options, given, configured, options.cwd)
    elif marks_trust or resuming:
        mode = mode or _configured_sandbox(given) or _configured_sandbox(configured)
    if resuming:
        mode = mode or _default_sandbox(configured, options.cwd)
        approval = approval or _configured_approval(given) or _configured_approval(configured) or _DEFAULT_APPROVAL
    if options.writable_roots and mode != "workspace-write":
        raise InvalidInput(
            "Writable roots belong to the sandbox workspace-write. Ask for that sandbox, or leave the roots out."
        )

    thread_mode, config = mode, given
    if (marks_trust or confinement) and mode is not None:
        thread_mode = "read-only"
        config = {key: value for key, value in given.items() if key not in ("sandbox_mode", "default_permissions")}
    elif marks_trust and (profile := given.get("default_permissions") or configured.get("default_permissions")):
        # A permission profile of the user's own cannot be sent with a turn. Declared untrusted for this session, the
        # repository is not marked as trusted either.
        config = merge_config(given, {"default_permissions": profile}, _trust(options.cwd, "untrusted"))
        approval = approval or _configured_approval(configured) or _DEFAULT_APPROVAL
    if options.trust_repository:
        config = merge_config(config, _trust(options.cwd, "trusted"))

    workspace = _workspace(given, configured)
    if reachable:
        _refuse_network(mode or _default_sandbox(configured, options.cwd), workspace)
    if said is None and mode is not None:
        said = turn_sandbox(mode, options.writable_roots, workspace)
    if (mode or _default_sandbox(configured, options.cwd)) == "workspace-write":
        roots = [] if options.cwd is None else [options.cwd]
        refuse_writing_everything(binary, (*roots, *(said or {}).get("writableRoots", ())))
    return Access(
        sandbox=mode,
        thread_sandbox=thread_mode,
        turn_sandbox=said,
        approval_policy=approval,
        config=config,
        notes=(remark,) if remark else (),
    )


def configured_access(configured: Mapping[str, Any], directory: Path | None) -> tuple[SandboxMode, ApprovalPolicy]:
    """What holds for who asks for nothing, by an effective configuration."""
    sandbox = _configured_sandbox(configured) or _default_sandbox(configured, directory)
    return sandbox, _configured_approval(configured) or _DEFAULT_APPROVAL


def confined_sandbox(
    confinement: Confinement,
    codex_home: Path,
    options: SessionOptions,
    given: Mapping[str, Any],
    configured: Mapping[str, Any],
    directory: Path | None,
) -> tuple[SandboxMode, Mapping[str, Any]]:
    """The sandbox of a session that is to stay inside the allowed roots, and all that has to be said of it with a turn.

    Raises:
        InvalidInput: Something could write outside of them.
    """
    confinement.refuse_config(options.config)
    confinement.refuse_trust(options)
    confinement.refuse_rules(_places_of_rules(codex_home, configured, directory))
    mode = asked_sandbox(options)
    for layer in (given, configured):  # the first that says anything decides
        if mode is None:
            mode = _configured_sandbox(layer)
        if mode is None:
            confinement.refuse_profile(layer.get("default_permissions"))
    mode = mode or _default_sandbox(configured, directory)
    said = turn_sandbox(mode, options.writable_roots, confinement.workspace(_workspace(given, configured)))
    if directory is not None:  # else Codex says where the thread is, before its first turn
        confinement.refuse(Policy(directory=str(directory), sandbox=said))
    return mode, said


def _places_of_rules(codex_home: Path, configured: Mapping[str, Any], directory: Path | None) -> list[Path]:
    """Where Codex reads its rules: at home, of the machine, and in a repository that the user trusts."""
    places = [codex_home, Path("/etc/codex")]
    root = (repository_root(directory) or directory) if directory is not None else None
    if directory is not None and root is not None and any(_is_trusted(configured, one) for one in (directory, root)):
        places += [place / ".codex" for place in (directory, *directory.parents) if place.is_relative_to(root)]
    return places


def _refuse_network(mode: SandboxMode, workspace: Mapping[str, Any]) -> None:
    """A command that may connect to anything may connect to the engine it runs in, and start work without a sandbox."""
    if mode == "workspace-write" and workspace.get("network_access") is True:
        raise InvalidInput(
            "With network access a sandboxed command could reach the socket of this Codex's engine and leave its sandbox. "
            "Leave network access out, upgrade Codex, or set HELMSMAN_DETACH=0 so that there is no socket (a remote engine: "
            "give it a token)."
        )


def _trust(directory: Path | None, level: str) -> dict[str, Any]:
    """Codex keeps its trust by the repository's root, or by the directory itself outside of any."""
    places = [] if directory is None else [directory, repository_root(directory) or directory]
    return {"projects": {str(place): {"trust_level": level} for place in places}} if places else {}


def _workspace(given: Mapping[str, Any], configured: Mapping[str, Any]) -> dict[str, Any]:
    return {**_table(configured, "sandbox_workspace_write"), **_table(given, "sandbox_workspace_write")}


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
    root = (repository_root(directory) or directory) if directory is not None else None
    return "workspace-write" if _is_trusted(configured, root) else "read-only"


def _is_trusted(configured: Mapping[str, Any], place: Path | None) -> bool:
    entry = _table(configured, "projects").get(str(place))
    return isinstance(entry, dict) and entry.get("trust_level") == "trusted"
