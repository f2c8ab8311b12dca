"""Evidence and verdicts. A verdict without evidence is never verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Single observation. `what` is a sentence; `detail` is the observed data, such as the end of an output."""

    ok: bool
    what: str
    file: str | None = None
    lines: tuple[int, int] | None = None
    detail: str | None = None

    def as_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {"ok": self.ok, "what": self.what}
        if self.file is not None:
            told["file"] = self.file
        if self.lines is not None:
            told["startLine"], told["endLine"] = self.lines
        if self.detail is not None:
            told["detail"] = self.detail
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a verification, with its evidence."""

    verified: bool
    evidence: tuple[Evidence, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"verified": self.verified, "evidence": [one.as_dict() for one in self.evidence]}

    @property
    def against(self) -> tuple[Evidence, ...]:
        """Evidence against it."""
        return tuple(one for one in self.evidence if not one.ok)


def verdict(evidence: Iterable[Evidence]) -> Verdict:
    """Return a verdict that is verified if there is evidence and all of it is ok."""
    every = tuple(evidence)
    return Verdict(verified=bool(every) and all(one.ok for one in every), evidence=every)


def joined(*verdicts: Verdict) -> Verdict:
    """Combine verdicts: all of them must be verified."""
    return Verdict(
        verified=bool(verdicts) and all(one.verified for one in verdicts),
        evidence=tuple(evidence for one in verdicts for evidence in one.evidence),
    )
