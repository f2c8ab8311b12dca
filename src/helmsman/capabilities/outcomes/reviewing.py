"""`review`: have agents review a change, verify their findings against the diff, and try to refute urgent ones.

Reviewers have read-only access. Duplicates are merged. A finding with lines outside the diff is rejected. Urgent
findings (P0, P1) get a second look, by another agent if there is one.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

import anyio
import anyio.to_thread
from msgspec import structs

from helmsman.agents.protocol import Capability, Finding
from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.agent_selection import Chosen, choose
from helmsman.capabilities.outcomes.claims import (
    Evidence,
    MergedFinding,
    Reviewed,
    ShownDiff,
    look,
    merge_findings,
    require_repository,
    untouched,
    verdict,
)
from helmsman.capabilities.outcomes.reports import (
    ReportUnreadable,
    as_markdown,
    asked_for,
    entries_of,
    quoted,
    read_report,
    share_of,
    text_of,
)
from helmsman.capabilities.outcomes.work import Found, TurnNotDone, first_able
from helmsman.capabilities.review_scope import diff_of, in_words, nothing_in_words, resolve
from helmsman.capabilities.reviews import Reviews
from helmsman.errors import HelmsmanError, InvalidInput, ReviewUnreadable
from helmsman.model.options import ReviewKind, ReviewTarget
from helmsman.model.prompts import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.agents.protocol import ReviewReport
    from helmsman.capabilities.outcomes.reports import FindingData, ReviewerData, SecondLookData
    from helmsman.capabilities.outcomes.work import DoneTurn, Work
    from helmsman.settings import OnLimit

_URGENT: Final = 1
_SENT_BACK: Final = 3
_SHOWN_REJECTED: Final = 5
_DIFF_CHARS: Final = 400_000
_UNREADABLE: Final = f"{UNREADABLE} Answer with the JSON object that you were asked for, and nothing else."
_VERDICTS: Final = '{"verdicts": [{"finding": 1, "refuted": false, "why": "one sentence", "confidence": 0.9}]}'


async def review(work: Work) -> Found:
    """Run the procedure."""
    reviewing = await _Reviewing.begin(work)
    return await reviewing.run()


class _Reviewing:
    def __init__(self, work: Work, root: Path, target: ReviewTarget | None, diff: str, words: str) -> None:
        self._work = work
        self._root = root
        self._target = target
        self._diff = diff
        self._words = words
        self._reviews = Reviews(work.helm)
        self._state_dir = work.helm.settings.state_dir

    @classmethod
    async def begin(cls, work: Work) -> _Reviewing:
        """Resolve the subject of the review; a given diff is used as it is.

        Raises:
            InvalidInput: There is no such branch or commit.
        """
        root, state_dir = await require_repository(work.helm, work.wanted), work.helm.settings.state_dir
        given = work.wanted.more.get("diff")
        if isinstance(given, str):
            return cls(work, root, None, given, "the diff that was given")
        target = target_of(work.wanted.more)
        resolved = await anyio.to_thread.run_sync(resolve, root, target, state_dir)
        if resolved is None:
            return cls(work, root, target, "", nothing_in_words(target))
        diff = await work.once(
            "diff", partial(anyio.to_thread.run_sync, lambda: diff_of(root, resolved, state_dir).text)
        )
        return cls(work, root, resolved, diff, in_words(resolved))

    async def run(self) -> Found:
        work = self._work
        if not self._diff.strip():
            return await self._found([], [], [Evidence(ok=True, what=self._words)])
        before = await work.once("snapshot", partial(anyio.to_thread.run_sync, look, self._root, self._state_dir))
        reviewed = Reviewed(root=str(self._root), shown=ShownDiff.of_text(self._root, self._diff), before=before)
        reviewers = await self._reviewers()
        found = {
            one["agent"]: _kept(work.known(f"findings of {one['agent']}")) for one in reviewers if one["error"] is None
        }
        merged = merge_findings(found, reviewed)
        evidence = [
            Evidence(ok=one["error"] is None, what=f"{one['agent']} reviewed it.")
            if one["error"] is None
            else Evidence(ok=False, what=f"{one['agent']} did not review it: {one['error']}")
            for one in reviewers
        ]
        looks, looked = await self._second_looks([one for one in merged if one.verified and _is_urgent(one.finding)])
        evidence += looked
        told = [_told(one, looks.get(_name(one))) for one in merged]
        if merged:
            count = sum(one.verified for one in merged)
            evidence.append(Evidence(ok=True, what=f"{count} of {len(merged)} findings cite lines of the diff."))
            if not count:
                why = "; ".join(f"{one.finding.title} ({one.evidence.what})" for one in merged[:_SHOWN_REJECTED])
                what = f"Every finding was rejected, so the review says nothing of the change: {why}"
                evidence.append(Evidence(ok=False, what=what))
        evidence.append(await untouched(self._root, self._state_dir, before))
        return await self._found(told, reviewers, evidence)

    # --- reviewers ---------------------------------------------------------------------------------------------------

    async def _reviewers(self) -> list[ReviewerData]:
        work, wanted = self._work, self._work.wanted
        chosen = work.chosen
        count = len(chosen) if len(wanted.agents) > 1 else min(wanted.candidates, len(chosen))
        orders = [chosen[place : place + 1] if wanted.agents else chosen[place::count] for place in range(count)]
        told: list[ReviewerData | None] = [None] * count

        async def ask(place: int, order: Sequence[Chosen]) -> None:
            begun = await first_able(work, f"review {place + 1}", order, partial(self._review, place + 1))
            error = begun.error
            told[place] = {
                "agent": begun.agent,
                "why": begun.why,
                "sessionId": begun.session_id if begun.done is None else begun.done["sessionId"],
                "verdict": None if begun.done is None else begun.done["verdict"],
                "error": None if error is None else error.message,
            }

        async with anyio.create_task_group() as tasks:
            for place, order in enumerate(orders):
                tasks.start_soon(ask, place, order)
        return [one for one in told if one is not None]

    async def _review(self, number: int, agent: str, on_limit: OnLimit | None) -> dict[str, Any]:
        """Run a review by one agent; store its findings and return its session and verdict."""
        work, request = self._work, self._work.wanted.request
        work.report_progress(f"{agent} reviews.")
        own = Capability.REVIEW in await work.helm.capabilities(agent)
        text, kind = await self._reviews.prepare(self._root, self._target, request, self._diff, own=own)
        turn = await work.start(
            f"review {number} {agent}",
            text,
            cwd=self._root,
            kind=kind,
            agent=agent,
            on_limit=on_limit,
            sandbox="read-only",
            approval_policy="never",
        )
        report = await self._read(number, agent, turn, own=kind is not None)

        async def keep() -> list[dict[str, Any]]:
            return [structs.asdict(one) for one in report.findings]

        await work.once(f"findings of {agent}", keep)
        return {"sessionId": turn.session.id, "verdict": report.verdict or report.explanation or None}

    async def _read(self, number: int, agent: str, turn: DoneTurn, *, own: bool) -> ReviewReport:
        """Parse an agent's report; an unreadable one is returned to the agent."""
        for attempt in range(_SENT_BACK + 1):
            try:
                report = await self._reviews.read_report(turn.session, turn.said, own=own)
            except ReviewUnreadable as error:
                if attempt == _SENT_BACK:
                    raise TurnNotDone(error.message, sessionId=turn.session.id, agent=agent) from error
                turn = await self._work.say(f"review {number} {agent} again {attempt}", turn.session.id, _UNREADABLE)
                continue
            if report is None:
                raise TurnNotDone("The review came to no findings that can be read.", sessionId=turn.session.id)
            return report
        raise AssertionError

    # --- second look -------------------------------------------------------------------------------------------------

    async def _second_looks(self, urgent: Sequence[MergedFinding]) -> tuple[dict[str, SecondLookData], list[Evidence]]:
        """Ask for a second look at the urgent findings; the results are keyed by finding."""
        if not urgent:
            return {}, []
        work = self._work
        makers = {agent for one in urgent for agent in one.by}

        async def who() -> str:
            here = (one.agent for one in await self._everybody())
            return next((one for one in here if one not in makers), urgent[0].by[0])

        agent: str = await work.once("who looks again", who)
        try:
            kept = await work.once("second look", partial(self._second_look, agent, urgent))
        except HelmsmanError as error:
            return {}, [Evidence(ok=False, what=f"The urgent findings had no second look: {error.message}")]
        looks = {_name(urgent[int(number)]): look for number, look in kept.items()}
        refuted = sum(look["refuted"] for look in looks.values())
        what = f"{agent} tried to refute {len(urgent)} urgent finding(s): {refuted} did not hold."
        return looks, [Evidence(ok=True, what=what)]

    async def _everybody(self) -> list[Chosen]:
        """Return the agents that could take a second look: the requested ones, then all others."""
        work = self._work
        found = work.chosen
        try:
            return [*found, *await choose(work.helm, replace(work.wanted, agents=()))]
        except HelmsmanError:
            return found

    async def _second_look(self, agent: str, urgent: Sequence[MergedFinding]) -> dict[str, SecondLookData]:
        work = self._work
        work.report_progress(f"{agent} tries to refute the urgent findings.")
        shown = [
            {"finding": number, "title": one.title, "body": one.body}
            | {"file": one.file, "startLine": one.start_line, "endLine": one.end_line}
            for number, one in enumerate((merged.finding for merged in urgent), 1)
        ]
        prompt = "\n\n".join(
            [
                "Others reviewed the change below and found this. Try to refute each finding: look at the code, and say of "
                "each whether it is wrong. What you cannot refute holds. Change nothing.",
                quoted(json.dumps(shown, ensure_ascii=False, indent=1), "json"),
                quoted(self._diff[:_DIFF_CHARS], "diff"),
                asked_for(_VERDICTS),
            ]
        )
        turn = await work.start(
            f"second look {agent}", prompt, cwd=self._root, agent=agent, sandbox="read-only", approval_policy="never"
        )
        for attempt in range(_SENT_BACK + 1):
            try:
                return _verdicts(turn.said, agent, len(urgent))
            except ReportUnreadable as error:
                if attempt == _SENT_BACK:
                    raise
                again = f"{UNREADABLE} {error.message} {asked_for(_VERDICTS)}"
                turn = await work.say(f"second look {agent} again {attempt}", turn.session.id, again)
        raise AssertionError

    # --- result ------------------------------------------------------------------------------------------------------

    async def _found(
        self,
        told: Sequence[FindingData],
        reviewers: Sequence[ReviewerData],
        evidence: Sequence[Evidence],
    ) -> Found:
        work = self._work
        refuted = [one for one in told if one["secondLook"] is not None and one["secondLook"]["refuted"]]
        rejected = [one for one in told if not one["verified"]]
        findings = [one for one in told if one not in refuted and one not in rejected]
        seen = verdict(evidence)
        used, cost = await work.spent()
        nothing = not self._diff.strip()
        first = reviewers[0] if reviewers else None
        counted = f"{len(findings)} finding(s), {len(refuted)} refuted, {len(rejected)} rejected."
        against = " ".join(one.what for one in seen.against)
        report: dict[str, Any] = {
            "kind": "review",
            "verified": seen.verified,
            "says": self._words if nothing else f"{counted} {against}".strip(),
            "evidence": [one.as_dict() for one in seen.evidence],
            "agent": None if first is None else first["agent"],
            "why": "" if first is None else first["why"],
            "sessionId": None if first is None else first["sessionId"],
            "attempts": 1 if reviewers else 0,
            "candidates": [],
            "seconds": round(work.seconds, 1),
            "tokens": used.input_tokens + used.output_tokens,
            "costUsd": cost,
            "target": self._words,
            "nothingToReview": nothing,
            "findings": findings,
            "refuted": refuted,
            "rejected": rejected,
            "reviewers": list(reviewers),
        }
        return Found(verified=seen.verified, summary=as_markdown(report), report=report)


def target_of(more: Any) -> ReviewTarget:
    """Return the review target from `target` with `branch` or `commit`.

    Raises:
        InvalidInput: A value is missing or invalid.
    """
    kind = more.get("target", "uncommitted")
    if kind not in get_args(ReviewKind) or kind == "custom":
        raise InvalidInput(f"target cannot be {kind!r:.40}. Use uncommitted, base or commit.", parameter="target")
    names = {"base": "branch", "commit": "commit"}
    value = more.get(names[kind], "") if kind in names else ""
    if kind in names and not str(value).strip():
        raise InvalidInput(f"A review of kind {kind} needs the {names[kind]}. Give it.", parameter=names[kind])
    return ReviewTarget(kind=kind, value=value)


def _kept(findings: Any) -> list[Finding]:
    return [Finding(**one) for one in findings or ()]


def _is_urgent(finding: Finding) -> bool:
    return finding.priority is not None and finding.priority <= _URGENT


def _name(one: MergedFinding) -> str:
    return f"{one.finding.file}:{one.finding.start_line}:{one.finding.title}"


def _told(one: MergedFinding, second: SecondLookData | None) -> FindingData:
    told: FindingData = {**one.as_dict(), "secondLook": second}  # type: ignore[typeddict-item]
    return told


def _verdicts(said: str, agent: str, count: int) -> dict[str, SecondLookData]:
    """Parse the verdicts of a second look, keyed by index of the finding.

    Raises:
        ReportUnreadable: A verdict is missing or invalid.
    """
    found: dict[str, SecondLookData] = {}
    for entry in entries_of(read_report(said), "verdicts"):
        number, refuted = entry.get("finding"), entry.get("refuted")
        if not isinstance(number, int) or not 1 <= number <= count or not isinstance(refuted, bool):
            raise ReportUnreadable(
                f"A verdict names no finding from 1 to {count}, or does not say whether it is refuted."
            )
        found[str(number - 1)] = {
            "by": agent,
            "refuted": refuted,
            "why": text_of(entry, "why"),
            "confidence": share_of(entry, "confidence"),
        }
    if len(found) < count:
        raise ReportUnreadable(f"There are {count} findings, and verdicts on {len(found)}.")
    return found
