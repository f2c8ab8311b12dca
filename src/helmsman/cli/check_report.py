"""Results of `helmsman doctor`: one `Check` per line, collected in a `Report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.protocol import Capabilities

CheckStatus = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its subject, its status, and a fix unless the status is ok.

    The fix can also be the last sentence of `detail`, if that is the message of a Helmsman error.
    """

    name: str
    status: CheckStatus
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    binary: CodexBinary | None
    checks: tuple[Check, ...]
    capabilities: Capabilities | None = None

    @property
    def ok(self) -> bool:
        return all(check.status != "failed" for check in self.checks)
