"""What `helmsman doctor` finds out, as values: one `Check` a line, and the `Report` of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from helmsman.agents.codex.features import Feature

if TYPE_CHECKING:
    from helmsman.agents.codex.binary import CodexBinary

CheckStatus = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, and (unless it is well) what to do.

    The fix may also be the last sentence of `detail`, where that is the message of one of Helmsman's errors.
    """

    name: str
    status: CheckStatus
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    binary: CodexBinary | None
    checks: tuple[Check, ...]
    features: dict[Feature, bool] = field(default_factory=dict[Feature, bool])

    @property
    def ok(self) -> bool:
        return all(check.status != "failed" for check in self.checks)
