"""A verified change is brought into the main tree: after a yes, at once, or not at all, as its caller asked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from helmsman.capabilities.outcomes.report_text import candidates_table
from helmsman.errors import HelmsmanError
from helmsman.model.questions import APPROVE, DENY, Prompt, Question, own_question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.capabilities.outcomes.reports import ApplyOutcome, CandidateData, DiffData, EvidenceData
    from helmsman.capabilities.outcomes.work import Work
    from helmsman.worktrees import TreeDiff

log = logging.getLogger(__name__)

_DIFF_CHARS: Final = 200_000


def diff_data(diff: TreeDiff) -> DiffData:
    """A change, as it is reported."""
    return {
        "files": [
            {"path": one.path, "kind": one.kind, "added": one.added, "removed": one.removed} for one in diff.files
        ],
        "added": sum(one.added or 0 for one in diff.files),
        "removed": sum(one.removed or 0 for one in diff.files),
        "stat": diff.stat,
        "digest": diff.digest,
    }


async def apply_verified(
    work: Work,
    session_id: str,
    diff: DiffData,
    evidence: Sequence[EvidenceData],
    candidates: Sequence[CandidateData],
    others: Sequence[str],
) -> tuple[ApplyOutcome, str | None, list[str]]:
    """Apply the very change that was verified, if it is to be. The worktrees of the `others` are discarded then.

    Returns what became of it, why it could not be applied, and whose worktrees were discarded.
    """
    if work.wanted.apply == "never":
        return "not_asked", None, []
    if work.wanted.apply == "ask":

        async def ask() -> bool:
            work.report_progress("Somebody is asked whether to apply the verified change.")
            answer = await work.ask(session_id, await _question(work, session_id, evidence, candidates))
            return answer is not None and answer.value == APPROVE

        if not await work.once("apply it", ask):
            return "refused", None, []

    async def apply() -> dict[str, str | None]:
        work.report_progress("The verified change is being applied.")
        try:
            await work.changes.apply(session_id, digest=diff["digest"])
        except HelmsmanError as problem:
            return {"error": problem.message}
        return {"error": None}

    error: str | None = (await work.once("applied", apply))["error"]
    if error is not None:
        return "failed", error, []

    async def discard() -> list[str]:
        dropped: list[str] = []
        for other in others:
            try:
                await work.changes.discard(other)
                dropped.append(other)
            except HelmsmanError as problem:
                log.info("the worktree of session %s stays: %s", other, problem)
        return dropped

    return "applied", None, await work.once("discarded", discard)


async def _question(
    work: Work, session_id: str, evidence: Sequence[EvidenceData], candidates: Sequence[CandidateData]
) -> Question:
    session = await work.helm.session(session_id)
    tree = session.worktree
    change = (await work.changes.diff(session_id)).diff
    seen = [f"- {one['what']}" for one in evidence if one["ok"]]
    table = ["", candidates_table(candidates)] if len(candidates) > 1 else []
    where = work.wanted.directory if tree is None else str(tree.repository)
    cut = [] if len(change.text) <= _DIFF_CHARS else [f"Not all of it is shown here: see helmsman diff {session_id}"]
    text = "\n".join([f"Apply this verified change to {where}?", *cut, change.stat.rstrip(), *seen, *table])
    prompt = Prompt(
        text=text,
        options=(APPROVE, DENY),
        key="apply",
        descriptions={APPROVE: "bring it into the main tree, unstaged", DENY: "leave it in its worktree"},
    )
    details = {"diff": change.text[:_DIFF_CHARS], "directory": where}
    return own_question(session_id, session.state.turn_id, prompt, details)
