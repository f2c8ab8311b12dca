"""Candidate solution of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.agent_selection import choose
from helmsman.capabilities.outcomes.reports import ReportUnreadable, asked_for, quoted, read_report, text_of
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from helmsman.capabilities.outcomes.reports import CandidateData
    from helmsman.capabilities.outcomes.work import Work


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


# --- Select the winner among verified solutions: by an independent agent's opinion, then by size and duration ---------

_DIFF_CHARS: Final = 60_000
_SHAPE: Final = '{"best": 1, "why": "one sentence"}'


async def compare(work: Work, verified: Sequence[Candidate]) -> tuple[Candidate, str | None]:
    """Return the winner of the verified candidates, and the reason; None if there is only one."""
    ranked = sorted(verified, key=_size)
    if len(ranked) == 1:
        return ranked[0], None
    shown = {one.number: quoted(await _diff(work, one), "diff") for one in ranked}
    what = "Several solutions of the same task were made, and all of them pass its check."
    opinion = await opinion_on(work, what, {one.agent for one in ranked}, shown)
    best = next((one for one in ranked if one.number == opinion["best"]), ranked[0])
    lines, seconds = _size(best)
    measured = f"Candidate {best.number} changes {lines} lines, and its check took {seconds:.1f} s"
    said = str(opinion["said"])
    return best, f"{measured}. {said}" if said else f"{measured}: the smallest."


def _size(candidate: Candidate) -> tuple[int, float]:
    diff, after = candidate.seen["diff"], candidate.seen.get("after") or {"seconds": 0.0}
    return diff["added"] + diff["removed"], after["seconds"]


async def _diff(work: Work, candidate: Candidate) -> str:
    return (await work.changes.diff(candidate.session_id or "")).diff.text[:_DIFF_CHARS]


async def opinion_on(work: Work, what: str, makers: Set[str], shown: Mapping[int, str]) -> dict[str, Any]:
    """Ask an agent that made no candidate for the `best` one; it is None if there is no such agent."""

    async def ask() -> dict[str, Any]:
        try:
            others = [
                one.agent for one in await choose(work.helm, replace(work.wanted, agents=())) if one.agent not in makers
            ]
        except HelmsmanError:
            others = []
        if not others:
            return {"best": None, "said": ""}
        work.report_progress(f"{others[0]} compares the candidates.")
        try:
            turn = await work.start(
                "compare", _prompt(work, what, shown), agent=others[0], sandbox="read-only", approval_policy="never"
            )
            report = read_report(turn.said)
            best, why = report.get("best"), text_of(report, "why")
            if best not in shown:
                raise ReportUnreadable(f"There is no candidate {best!r:.20}.")
        except HelmsmanError as error:
            return {"best": None, "said": f"{others[0]} could not compare them: {error.message}"}
        return {"best": best, "said": f"{others[0]} prefers it: {why}"}

    told: dict[str, Any] = await work.once("compared", ask)
    return told


def _prompt(work: Work, what: str, shown: Mapping[int, str]) -> str:
    asked = "Which is the best? Look at whether it is right, simple, and fits the code around it. Change nothing."
    candidates = (f"Candidate {number}:\n{text}" for number, text in shown.items())
    return "\n\n".join([f"{what} {asked}", f"The task: {work.wanted.request}", *candidates, asked_for(_SHAPE)])
