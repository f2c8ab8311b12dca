"""Plan the permissions of a Codex session, and compare them with those that Codex reports.

Spelling. Codex writes a sandbox as `workspace-write` when a thread starts and as `{"type": "workspaceWrite", …}` on a turn
and in its reports. Approval policies differ by version. Only this module compares these strings.

Trust. Codex 0.120 and newer permanently marks a repository as trusted in the user's configuration when a thread starts in it
with a writable sandbox. From then on it loads the repository's configuration, MCP servers and hooks. So Helmsman starts the
thread read-only and sends the requested sandbox with the first turn, which trusts nothing. A caller may trust the repository
for one session, through an override that Codex does not write down.

Resume. Codex 0.166 restores a thread's last policy on resume, full access included. So Helmsman always sends a policy on
resume: the requested one, else the configured one.

Allowed roots. The configuration, profiles, workspace roots, rules and an earlier process can all widen what a thread may
write. So with allowed roots a thread is opened read-only, and each turn states the whole policy, which is compared with the
roots (links resolved) before the turn begins. A review, a goal and a steered message run under the policy that Codex
reports, which is compared instead. A policy that cannot be read completely counts as outside.
"""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from helmsman.agents.codex.configuration import check_config, merge_config, profile_config
from helmsman.agents.codex.features import Feature
from helmsman.base.caller_context import environment
from helmsman.base.files import is_inside, refuse_outside
from helmsman.errors import InvalidInput, PolicyWidened
from helmsman.git.command import repository_root
from helmsman.model.options import ASKS, WRITES, ApprovalPolicy, SandboxMode, SessionOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.configuration import Configuration
    from helmsman.model.options import Asks, Writes

# --- spelling and width ----------------------------------------------------------------------------------------------


_SANDBOX_OF: Final[Mapping[Writes, SandboxMode]] = {WRITES[word]: word for word in get_args(SandboxMode)}
_APPROVAL_OF: Final[Mapping[Asks, ApprovalPolicy]] = {ASKS[word]: word for word in get_args(ApprovalPolicy)}
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
    """Return Codex's word for the requested write access; None leaves it to the configuration."""
    return None if options.writes is None else _SANDBOX_OF[options.writes]


def sandbox_name(reported: Any) -> str | None:
    """Normalize a sandbox that Codex reports (a string, or an object with a `type`)."""
    kind = reported.get("type") if isinstance(reported, dict) else reported
    for name, spelling in _SANDBOX_TYPES.items():
        if kind in (name, spelling):
            return name
    return kind if isinstance(kind, str) else None


def approval_name(reported: Any) -> str | None:
    """Normalize an approval policy that Codex reports; the granular form becomes `granular`."""
    # The granular form is an object with one key; its details are not compared.
    if isinstance(reported, dict):
        return next(iter(reported), None)
    return reported if isinstance(reported, str) else None


def asked_approval(binary: CodexBinary, options: SessionOptions) -> tuple[ApprovalPolicy | None, str | None]:
    """Return Codex's word for the requested approval policy, and a remark if this Codex has no equivalent."""
    policy = None if options.asks is None else _APPROVAL_OF[options.asks]
    # Newer versions refuse the word.
    if policy == "on-failure" and not binary.can(Feature.ON_FAILURE_APPROVAL):
        return "on-request", f"Codex {binary.version} has no approval policy on-failure; on-request is used instead."
    return policy, None


def turn_sandbox(mode: SandboxMode, writable_roots: Sequence[Path], workspace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `sandboxPolicy` of a turn.

    `workspace` is the `[sandbox_workspace_write]` table of the configuration.
    """
    policy: dict[str, Any] = {"type": _SANDBOX_TYPES[mode]}
    if mode == "workspace-write":
        configured = workspace.get("writable_roots")
        roots = [*(configured if isinstance(configured, list) else ()), *writable_roots]
        policy["writableRoots"] = list(dict.fromkeys(map(str, roots)))
        # A turn states the whole policy: anything left out would fall back to Codex's default, not to the
        # configuration.
        for wire, key in WORKSPACE_KEYS.items():
            policy[wire] = workspace.get(key) is True
    return policy


def refuse_wider(
    *, asked_sandbox: str | None, sandbox: str | None, asked_approval: str | None, approval: str | None
) -> None:
    """Compare the policy that Codex applied with the requested one; None requested accepts anything.

    Raises:
        PolicyWidened: Codex grants more than was requested.
    """
    # A caller that asked for nothing takes what the configuration grants.
    if asked_sandbox is not None and _width(_SANDBOX_WIDTH, sandbox) > _SANDBOX_WIDTH[asked_sandbox]:
        raise _widened("sandbox", asked_sandbox, sandbox)
    if asked_approval is not None and _width(_APPROVAL_WIDTH, approval) > _APPROVAL_WIDTH[asked_approval]:
        raise _widened("approval policy", asked_approval, approval)


def is_wider_sandbox(asked: Mapping[str, Any], than: Any) -> bool:
    """Return whether a turn's sandbox allows more than another one, as reported. An unreadable one allows nothing."""
    # Unknown counts as widest when asked for, and as nothing when reported: both are cautious.
    width, known = _width(_SANDBOX_WIDTH, sandbox_name(asked)), _SANDBOX_WIDTH.get(sandbox_name(than) or "", -1)
    if width != known or sandbox_name(asked) != "workspace-write":
        return width > known
    other: Mapping[str, Any] = than if isinstance(than, dict) else {}
    if not {*asked.get("writableRoots", ())} <= {*(other.get("writableRoots") or ())}:
        return True
    allowed = asked.get("networkAccess") is True and other.get("networkAccess") is not True
    # Excluding less is wider.
    excluded = ("excludeTmpdirEnvVar", "excludeSlashTmp")
    return allowed or any(other.get(key) is True and asked.get(key) is not True for key in excluded)


def is_wider_approval(asked: str | None, than: str | None) -> bool:
    """Return whether an approval policy asks less often than another one, as reported. An unknown one always asks."""
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


# --- allowed roots ---------------------------------------------------------------------------------------------------


_ASK_FOR_LESS: Final = "Ask for the sandbox workspace-write or read-only."

_KNOWN_PROFILES: Final = frozenset({":read-only", ":workspace"})
"""Permission profiles that say no more than the sandbox reported beside them."""

_NARROWING: Final = frozenset({"prompt", "forbidden"})

HARMLESS_CONFIG: Final = frozenset(
    [
        *("approval_policy", "compact_prompt", "default_permissions", "hide_agent_reasoning", "model"),
        *("model_auto_compact_token_limit", "model_context_window", "model_max_output_tokens"),
        *("model_reasoning_effort", "model_reasoning_summary", "model_supports_reasoning_summaries"),
        *("model_verbosity", "personality", "plan_mode_reasoning_effort", "project_doc_max_bytes"),
        *("review_model", "sandbox_mode", "sandbox_workspace_write", "service_tier"),
        *("show_raw_agent_reasoning", "tool_output_token_limit", "web_search"),
    ]
)
"""Keys of Codex's configuration that name no program, no file and no permission, or a policy that is compared later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that decides where the commands of a thread may write, in Codex's words."""

    directory: str | None
    sandbox: Any
    workspace_roots: tuple[str, ...] = ()
    profile: str | None = None
    reviewer: str | None = None


def read_policy(reported: Mapping[str, Any]) -> Policy:
    """Read the policy in Codex's report of a thread."""
    directory, reviewer = reported.get("cwd"), reported.get("approvalsReviewer")
    roots, profile = reported.get("runtimeWorkspaceRoots"), reported.get("activePermissionProfile")
    return Policy(
        directory=directory if isinstance(directory, str) else None,
        sandbox=reported.get("sandbox"),
        workspace_roots=tuple(map(str, roots)) if isinstance(roots, list) else (),
        profile=None if profile is None else str(profile.get("id") if isinstance(profile, dict) else profile),
        reviewer=None if reviewer is None else str(reviewer),
    )


@dataclass(frozen=True, slots=True)
class Confinement:
    """Allowed roots, with links resolved. Without any there is no confinement."""

    roots: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.roots)

    def refuse_config(self, config: Mapping[str, Any]) -> None:
        """Accept only configuration of a caller that is known to be harmless: other keys may name programs or
        permissions.

        Raises:
            InvalidInput: There is another key.
        """
        # A dotted key sets a value inside a table: its first part decides.
        others = sorted({key.partition(".")[0] for key in config} - HARMLESS_CONFIG) if self.roots else []
        if others:
            raise InvalidInput(
                f"With allowed roots config may not set {', '.join(others)}: it could run a program or allow something "
                "outside the allowed roots. Leave it out, or put it into your own config.toml.",
                parameter="config",
            )

    def refuse_profile(self, name: Any) -> None:
        """Refuse a permission profile of the user, which only Codex can read completely.

        Raises:
            InvalidInput: It would decide.
        """
        if name is not None and str(name) not in _KNOWN_PROFILES:
            raise InvalidInput(
                f"Codex's permission profile {name!r} may allow writing outside the allowed roots, and cannot be compared "
                f"with them. {_ASK_FOR_LESS}",
                parameter="sandbox",
            )

    def refuse_trust(self, options: SessionOptions) -> None:
        """Refuse to follow a repository's configuration: it names programs, and a session may have written it.

        Raises:
            InvalidInput: The caller asks for it.
        """
        if self.roots and options.trust_repository:
            raise InvalidInput(
                "With allowed roots a repository cannot be trusted for one session: its configuration could run a program "
                "or allow something outside the allowed roots. Leave trust_repository out.",
                parameter="trust_repository",
            )

    def refuse_rules(self, places: Iterable[Path]) -> None:
        """Codex's own rules (`rules/*.rules` in these places) that run a command unasked and outside its sandbox.

        Raises:
            InvalidInput: There are some, or some that cannot be read.
        """
        for place in places if self.roots else ():
            for file in sorted(place.glob("rules/*.rules")):
                if _may_allow(file):
                    raise InvalidInput(
                        f"The rules in {file} let commands leave Codex's sandbox unasked, and so write outside the allowed "
                        "roots. Remove what they allow.",
                        parameter="sandbox",
                    )

    def workspace(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """`[sandbox_workspace_write]` as it is to hold: temporary directories only where they are allowed, and by name."""
        # `/tmp` and `$TMPDIR` are writable by default in Codex's sandbox. Where they are allowed, they are named, so
        # that they can be compared.
        given = table.get("writable_roots")
        named = list(given) if isinstance(given, list) else []
        for key, place in (("exclude_slash_tmp", "/tmp"), ("exclude_tmpdir_env_var", _tmpdir())):  # noqa: S108
            if table.get(key) is not True and is_inside(place, self.roots):
                named.append(place)
        return {**table, "writable_roots": named, "exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}

    def refuse(self, policy: Policy) -> None:
        """Compare a policy, as it is about to hold or as Codex reports it, with the roots.

        Raises:
            InvalidInput: Commands could write outside of them.
        """
        if not self.roots:
            return
        refuse_outside(policy.directory or "An unknown working directory", self.roots, "cwd")
        self.refuse_profile(policy.profile)
        # Any other reviewer is a model that approves in the user's place.
        if policy.reviewer not in (None, "user"):
            raise InvalidInput(
                f"Codex's configuration lets {policy.reviewer!r} approve what leaves the sandbox, and so writing outside "
                'the allowed roots. Set approvals_reviewer = "user" there.',
                parameter="sandbox",
            )
        name = sandbox_name(policy.sandbox)
        if name == "read-only":
            return
        if name != "workspace-write" or not isinstance(policy.sandbox, dict):
            raise InvalidInput(
                f"Under the sandbox {name or 'that Codex does not name'} a session could write outside the allowed roots. "
                f"{_ASK_FOR_LESS}",
                parameter="sandbox",
            )
        for root in _writable(policy.sandbox, policy.workspace_roots):
            refuse_outside(root, self.roots, "writable_roots")


NO_ROOTS: Final = Confinement()


def _writable(sandbox: Mapping[str, Any], workspace_roots: Sequence[str]) -> list[str]:
    roots = sandbox.get("writableRoots")
    # A missing list is compared as a path that lies in no root, and is refused.
    named = roots if isinstance(roots, list) else ["writable roots that Codex does not name"]
    if sandbox.get("excludeSlashTmp") is not True:
        named = [*named, "/tmp"]  # noqa: S108
    if sandbox.get("excludeTmpdirEnvVar") is not True:
        named = [*named, _tmpdir()]
    return [*map(str, named), *workspace_roots]


def _tmpdir() -> str:
    return environment().get("TMPDIR") or "/tmp"  # noqa: S108


def _may_allow(file: Path) -> bool:
    """Return whether a rules file may allow anything.

    Rules are Starlark, which has Python's syntax; unclear rules count as allowing.
    """
    try:
        statements = ast.parse(file.read_text(encoding="utf-8")).body
    except FileNotFoundError:
        return False
    # Starlark that Python cannot parse counts as allowing.
    except (OSError, ValueError, SyntaxError, RecursionError):
        return True
    return not all(map(_narrows, statements))


def _narrows(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="prefix_rule"), keywords=keywords)):
            decisions = [word.value for word in keywords if word.arg == "decision"]
            return any(isinstance(value, ast.Constant) and value.value in _NARROWING for value in decisions)
        case _:
            return False


# --- what commands may not read -----------------------------------------------------------------------------------------


def refuse_writing_everything(binary: CodexBinary, roots: Iterable[Path | str]) -> None:
    """Refuse a sandbox in which all may be written: Codex runs none of the programs there that hide places from commands.

    Raises:
        InvalidInput: One of the roots is `/`.
    """
    hides = sys.platform == "linux" and binary.remote is None and binary.can(Feature.PATH_BUBBLEWRAP)
    # Commands of a remote Codex run elsewhere.
    if hides and any(os.path.realpath(root) == "/" for root in roots):
        raise InvalidInput(
            "Commands that may write all of / could read Helmsman's own files and the logins of agents. Work in a "
            "directory below it, or ask for the sandbox read-only.",
            parameter="cwd",
        )


# --- rules that a repository brings along -----------------------------------------------------------------------------

# Rules of a repository, in versions of Codex that follow them without the user's trust. `.codex/rules/*.rules` lists
# commands that run without a question and outside the sandbox. Newer Codex reads a repository's rules only if the user
# trusts it. Older versions read them always (or if there is no `.codex/config.toml` beside them) and cannot be told not
# to, so Helmsman does not start them there.


def refuse_rules_nobody_trusts(binary: CodexBinary, options: SessionOptions, directory: Path | None) -> None:
    """Look for rules from the working directory up to the repository's root.

    Raises:
        InvalidInput: There are some, this Codex would follow them, and the caller does not trust the repository.
    """
    # The user trusts the repository, or this Codex does not read its rules.
    if binary.can(Feature.UNTRUSTED_RULES_IGNORED) or options.trust_repository or directory is None:
        return
    root = repository_root(directory) or directory
    for place in (directory, *directory.parents):
        if not place.is_relative_to(root):
            break
        rules = place / ".codex" / "rules"
        if rules.exists():
            raise InvalidInput(
                f"Codex {binary.version} follows the rules in {rules} although the repository is not trusted: it would run "
                "commands unasked and outside the sandbox. Upgrade Codex, or remove the rules.",
                parameter="cwd",
            )


# --- the plan --------------------------------------------------------------------------------------------------------


_PERMISSION_PROFILES: Final[Mapping[str, SandboxMode]] = {
    ":read-only": "read-only",
    ":workspace": "workspace-write",
    ":danger-no-sandbox": "danger-full-access",
    ":danger-full-access": "danger-full-access",
}
_DEFAULT_APPROVAL: Final[ApprovalPolicy] = "on-request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Policy parameters of a thread and of each turn."""

    sandbox: SandboxMode | None
    thread_sandbox: SandboxMode | None
    turn_sandbox: Mapping[str, Any] | None
    approval_policy: ApprovalPolicy | None
    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def policy(self, directory: str | None) -> Policy:
        """Return the policy of a turn in this directory, for a caller that leaves nothing to the configuration."""
        writable = (self.turn_sandbox or {}).get("writableRoots", ())
        roots = (directory, *writable) if directory is not None else tuple(writable)
        return Policy(directory=directory, sandbox=self.turn_sandbox, workspace_roots=roots)


async def plan_access(
    configuration: Configuration,
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
    # The caller's configuration goes over the profile's, as with Codex's command line.
    given = merge_config(profile_config(binary, codex_home, options.profile), check_config(options.config))
    approval, remark = asked_approval(binary, options)
    # Only starting a thread marks trust; resuming one does not.
    marks_trust = binary.can(Feature.TRUST_ON_START) and not resuming
    mode = asked_sandbox(options)
    configured = await configuration.effective(options.cwd)
    said: Mapping[str, Any] | None = None
    if confinement:
        mode, said = confined_sandbox(confinement, codex_home, options, given, configured, options.cwd)
    elif marks_trust or resuming:
        mode = mode or _configured_sandbox(given) or _configured_sandbox(configured)
    if resuming:
        mode = mode or _default_sandbox(configured, options.cwd)
        approval = approval or _configured_approval(given) or _configured_approval(configured) or _DEFAULT_APPROVAL
    if options.writable_roots and mode != "workspace-write":
        # Codex ignores writable roots in other sandboxes, silently.
        raise InvalidInput(
            "Writable roots belong to the sandbox workspace-write. Ask for that sandbox, or leave the roots out."
        )

    thread_mode, config = mode, given
    # Start read-only, and send the sandbox with the first turn: a writable start marks the repository as trusted.
    if (marks_trust or confinement) and mode is not None:
        thread_mode = "read-only"
        config = {key: value for key, value in given.items() if key not in ("sandbox_mode", "default_permissions")}
    elif marks_trust and (profile := given.get("default_permissions") or configured.get("default_permissions")):
        # A permission profile of the user's own cannot be sent with a turn. Declared untrusted for this session, the
        # repository is not marked as trusted either.
        config = merge_config(given, {"default_permissions": profile}, _trust(options.cwd, "untrusted"))
        # Codex asks before everything in an untrusted repository, unless a policy is named.
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
    """Return the policy of an effective configuration without any request."""
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
    """Return the sandbox of a session inside the allowed roots, and the complete policy for its turns.

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
    """Return the directories of Codex's rules: its home, the machine, and a trusted repository."""
    places = [codex_home, Path("/etc/codex")]
    root = (repository_root(directory) or directory) if directory is not None else None
    if directory is not None and root is not None and any(_is_trusted(configured, one) for one in (directory, root)):
        places += [place / ".codex" for place in (directory, *directory.parents) if place.is_relative_to(root)]
    return places


def _refuse_network(mode: SandboxMode, workspace: Mapping[str, Any]) -> None:
    """Refuse network access: such a command could connect to its own engine, and start work without a sandbox."""
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
    """Return Codex's default without any setting: a trusted repository is writable."""
    root = (repository_root(directory) or directory) if directory is not None else None
    return "workspace-write" if _is_trusted(configured, root) else "read-only"


def _is_trusted(configured: Mapping[str, Any], place: Path | None) -> bool:
    # Codex looks up trust by the exact path.
    entry = _table(configured, "projects").get(str(place))
    return isinstance(entry, dict) and entry.get("trust_level") == "trusted"
