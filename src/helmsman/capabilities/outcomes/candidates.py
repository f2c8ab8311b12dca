"""Candidate solution of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helmsman.capabilities.outcomes.reports import CandidateData


@dataclass(slots=True, kw_only=True)
class Candidate:
    """Candidate solution and its progress. `seen` is the stored result of its last verification (`Solver.verify`)."""

    number: int
    agent: str
    why: str
    session_id: str | None = None
    attempts: int = 0
    seen: dict[str, Any] = field(default_factory=dict[str, Any])
    told: str = ""
    error: str | None = None

    @property
    def verified(self) -> bool:
        return bool(self.seen.get("verified"))

    @property
    def needs_decision(self) -> bool:
        """Return whether it passes only with changes to the check's files."""
        return not self.verified and bool(self.seen.get("decide"))

    def as_dict(self, winner: Candidate | None) -> CandidateData:
        after = self.seen.get("after")
        return {
            "number": self.number,
            "agent": self.agent,
            "why": self.why,
            "sessionId": self.session_id,
            "verified": self.verified,
            "attempts": self.attempts,
            "evidence": self.seen.get("evidence", []),
            "diff": self.seen.get("diff"),
            "checkSeconds": None if after is None else round(after["seconds"], 1),
            "told": self.told,
            "error": self.error,
            "winner": self is winner,
        }
