"""Apply a checked change to the main tree: after approval, immediately or never, as the caller requested."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from helmsman.capabilities.outcomes.report_text import PROMISE, candidates_table
from helmsman.errors import HelmsmanError
from helmsman.model.questions import APPROVE, DENY, Prompt, Question, own_question

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.capabilities.outcomes.reports import ApplyOutcome, CandidateData, DiffData
    from helmsman.capabilities.outcomes.work import Work
    from helmsman.worktrees import TreeDiff

log = logging.getLogger(__name__)

_DIFF_CHARS: Final = 200_000


def diff_data(diff: TreeDiff) -> DiffData:
    """Return the report data of a change."""
    return {
        "files": [
            {"path": one.path, "kind": one.kind, "added": one.added, "removed": one.removed} for one in diff.files
        ],
        "added": sum(one.added or 0 for one in diff.files),
        "removed": sum(one.removed or 0 for one in diff.files),
        "stat": diff.stat,
        "digest": diff.digest,
    }


async def apply_change(
    work: Work,
    session_id: str,
    seen: Mapping[str, Any],
    candidates: Sequence[CandidateData],
    others: Sequence[str],
) -> tuple[ApplyOutcome, str | None, list[str]]:
    """Apply exactly the change that was checked, if requested and approved; then discard the worktrees of `others`.

    `seen` is the result of its verification. If the change edits the check, a person always decides. Returns the
    outcome, the error of a failed apply, and the sessions with discarded worktrees.
    """
    wanted = work.wanted.apply
    is_verified = bool(seen.get("verified", True))
    if wanted == "never":
        return "not_asked" if is_verified else "nothing", None, []
    diff: DiffData = seen["diff"]
    if wanted == "ask" or not is_verified or seen.get("edited"):

        async def ask() -> bool | str:
            work.report_progress("Waiting for your decision: apply the change?")
            question = await _question(work, session_id, seen, candidates)
            if isinstance(question, str):
                return question
            answer = await work.ask(session_id, question)
            return answer is not None and answer.value == APPROVE

        answered = await work.once("apply it", ask)
        if isinstance(answered, str):
            return "failed", answered, []
        if not answered:
            return "refused", None, []

    async def apply() -> dict[str, str | None]:
        work.report_progress("The change is being applied.")
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
    work: Work, session_id: str, seen: Mapping[str, Any], candidates: Sequence[CandidateData]
) -> Question | str:
    """Return the question whether to apply a change, or why it cannot be asked."""
    session = await work.helm.session(session_id)
    tree = session.worktree
    change = (await work.changes.diff(session_id)).diff
    if change.digest != seen["diff"]["digest"]:
        return "The worktree was changed after the check ran. Nothing was applied; ask again."
    where = work.wanted.directory if tree is None else str(tree.repository)
    is_verified = bool(seen.get("verified", True))
    first = [f"Apply this verified change to {where}?"]
    if not is_verified:
        first = [
            f"Apply this change to {where}? It is NOT verified: the check passes only with changes to its own files.",
        ]
    evidence = [f"- {one['what']}" for one in seen["evidence"] if one["ok"] or not is_verified]
    held = [f"- {one['what']}" for one in seen.get("held", ())]
    if held:
        said = "Changes to the check, which it passed without:" if is_verified else "Changes to the check:"
        held = [said, *held]
    notes = [f"- {one}" for one in seen.get("notes", ())]
    if notes:
        notes = ["Look at these yourself; the check cannot tell:", *notes]
    cut = [] if len(change.text) <= _DIFF_CHARS else [f"Not all of it is shown here: see helmsman diff {session_id}"]
    table = ["", candidates_table(candidates)] if len(candidates) > 1 else []
    promise = [PROMISE] if is_verified else []
    text = "\n".join([*first, *cut, change.stat.rstrip(), *evidence, *promise, *held, *notes, *table])
    prompt = Prompt(
        text=text,
        options=(APPROVE, DENY),
        key="apply",
        descriptions={APPROVE: "bring it into the main tree, unstaged", DENY: "leave it in its worktree"},
    )
    details = {"diff": change.text[:_DIFF_CHARS], "directory": where}
    return own_question(session_id, session.state.turn_id, prompt, details)
