"""The options of a session as the registry keeps them, so that a later process goes on under what its caller gave.

A session that was started with a sandbox and a policy has them for as long as it lives, whichever process sends it the
next message.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from helmsman.base.redaction import redact, redact_value
from helmsman.model.options import ASKS, WRITES, SessionOptions, approval_word, sandbox_word

if TYPE_CHECKING:
    from collections.abc import Mapping


def options_to_keep(options: SessionOptions) -> dict[str, Any]:
    """What a later process must know to go on with a session under the options its caller gave.

    Whatever a caller wrote may hold secrets, by mistake or not: it is kept only if it plainly does not.
    """
    kept: dict[str, Any] = {
        "model": _if_harmless(options.model),
        "approval_policy": approval_word(options.asks),
        "sandbox": sandbox_word(options.writes),
        "writable_roots": [str(root) for root in options.writable_roots],
        "profile": _if_harmless(options.profile),
        "skip_git_repo_check": options.skip_git_repo_check or None,
        "trust_repository": options.trust_repository or None,
        "developer_instructions": _if_harmless(options.developer_instructions),
        "base_instructions": _if_harmless(options.base_instructions),
        "config": dict(options.config) if redact_value(options.config) == options.config else None,
    }
    return {key: value for key, value in kept.items() if value}


def kept_options(kept: Mapping[str, Any], session: SessionOptions) -> SessionOptions:
    """The options of a session as an earlier process kept them; what makes no sense any more is left out.

    Its agent and its directory are kept elsewhere: they are those of `session`.
    """
    roots = kept.get("writable_roots") if kept.get("sandbox") in (None, "workspace-write") else None
    config = kept.get("config")
    return SessionOptions(
        agent=session.agent,
        cwd=session.cwd,
        model=_text(kept, "model"),
        asks=ASKS.get(_text(kept, "approval_policy") or ""),
        writes=WRITES.get(_text(kept, "sandbox") or ""),
        writable_roots=_directories(roots) if isinstance(roots, list) else (),
        profile=_text(kept, "profile"),
        config=config if isinstance(config, dict) else {},
        base_instructions=_text(kept, "base_instructions"),
        developer_instructions=_text(kept, "developer_instructions"),
        skip_git_repo_check=kept.get("skip_git_repo_check") is True,
        trust_repository=kept.get("trust_repository") is True,
    )


def _directories(roots: list[Any]) -> tuple[Path, ...]:
    """Those that are still there, with their links resolved as they are now."""
    paths = (Path(root).resolve() for root in roots if isinstance(root, str))
    return tuple(path for path in paths if path.is_dir())


def _text(kept: Mapping[str, Any], key: str) -> str | None:
    value = kept.get(key)
    return value if isinstance(value, str) else None


def _if_harmless(text: str | None) -> str | None:
    return text if text is not None and redact(text) == text else None
