"""Rules that a repository brings along, on the versions of Codex that follow them although nobody trusts the repository.

`.codex/rules/*.rules` says which commands run without a question and outside the sandbox. Newer Codex reads a
repository's only when the user trusts it. Older ones read them always (or whenever there is no `.codex/config.toml`
beside them) and have no way to be told not to, so Helmsman does not start them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.agents.codex.features import Feature
from helmsman.base.repositories import repository_root
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.model.options import SessionOptions


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
                "commands unasked and outside the sandbox. Upgrade Codex, remove the rules, or trust the repository.",
                parameter="cwd",
            )
