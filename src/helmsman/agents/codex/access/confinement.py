"""What holds a session inside the allowed roots, whoever asked for what: the policy in force is compared, not arguments.

Where Codex may write is decided by more than the caller: its configuration can name a sandbox, writable roots and
permission profiles; a profile file can; newer versions keep the workspace roots of a thread beside its sandbox; rules of
its own let a command leave the sandbox unasked; and a thread that another process opened keeps what it was opened with.
So with allowed roots nothing is left to any of them. A thread is opened read-only, each turn says all that decides where
commands may write, and that is compared with the roots, links followed, before the turn begins. What has no policy of its
own (a review, a goal, a message put into a running turn) runs under the one Codex reports, which is compared in its place.
What cannot be fully read counts as outside.
"""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.codex.access.policies import sandbox_name
from helmsman.agents.codex.features import Feature
from helmsman.base.files import is_inside, refuse_outside
from helmsman.base.git_view import repository_root
from helmsman.base.surroundings import environment
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.model.options import SessionOptions

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
    """All that decides where the commands of a thread may write, as Codex spells it."""

    directory: str | None
    sandbox: Any
    workspace_roots: tuple[str, ...] = ()
    profile: str | None = None
    reviewer: str | None = None


def read_policy(reported: Mapping[str, Any]) -> Policy:
    """The policy in what Codex reports of a thread."""
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
    """The allowed roots, with their links resolved. Without any there is nothing to hold to."""

    roots: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.roots)

    def refuse_config(self, config: Mapping[str, Any]) -> None:
        """Of a caller's own configuration only what is known to be harmless: the rest may name programs or permissions.

        Raises:
            InvalidInput: There is something else in it.
        """
        others = sorted({key.partition(".")[0] for key in config} - HARMLESS_CONFIG) if self.roots else []
        if others:
            raise InvalidInput(
                f"With allowed roots config may not set {', '.join(others)}: it could run a program or allow something "
                "outside the allowed roots. Leave it out, or put it into your own config.toml.",
                parameter="config",
            )

    def refuse_profile(self, name: Any) -> None:
        """A permission profile of the user's own, which nobody but Codex can read in full.

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
        """A repository's own configuration names programs, and a session may have written it.

        Raises:
            InvalidInput: The caller would have it followed.
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
    named = roots if isinstance(roots, list) else ["writable roots that Codex does not name"]
    if sandbox.get("excludeSlashTmp") is not True:
        named = [*named, "/tmp"]  # noqa: S108
    if sandbox.get("excludeTmpdirEnvVar") is not True:
        named = [*named, _tmpdir()]
    return [*map(str, named), *workspace_roots]


def _tmpdir() -> str:
    return environment().get("TMPDIR") or "/tmp"  # noqa: S108


def _may_allow(file: Path) -> bool:
    """Rules are Starlark, which has Python's syntax. What is not plainly a rule that narrows may allow something."""
    try:
        statements = ast.parse(file.read_text(encoding="utf-8")).body
    except FileNotFoundError:
        return False
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
    if hides and any(os.path.realpath(root) == "/" for root in roots):
        raise InvalidInput(
            "Commands that may write all of / could read Helmsman's own files and the logins of agents. Work in a "
            "directory below it, or ask for the sandbox read-only.",
            parameter="cwd",
        )


# --- rules that a repository brings along -----------------------------------------------------------------------------

# Rules that a repository brings along, on the versions of Codex that follow them although nobody trusts the repository.
#
# `.codex/rules/*.rules` says which commands run without a question and outside the sandbox. Newer Codex reads a
# repository's only when the user trusts it. Older ones read them always (or whenever there is no `.codex/config.toml`
# beside them) and have no way to be told not to, so Helmsman does not start them there.


def refuse_rules_nobody_trusts(binary: CodexBinary, options: SessionOptions, directory: Path | None) -> None:
    """Look for rules from the working directory up to the repository's root.

    Raises:
        InvalidInput: There are some, this Codex would follow them, and the caller does not trust the repository.
    """
    if binary.can(Feature.UNTRUSTED_RULES_IGNORED) or options.trust_repository or directory is None:
        return
    root = repository_root(directory) or directory
    for place in (directory, *directory.parents):
        if not place.is_relative_to(root):
            break
        rules = place / ".codex" / "rules"
        if rules.exists():
            raise InvalidInput(
                f"Codex {binary.version} follows the rules in {rules} although nobody trusts that repository: it would run "
                "commands unasked and outside the sandbox. Upgrade Codex, or remove the rules.",
                parameter="cwd",
            )
