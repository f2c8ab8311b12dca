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

from helmsman.agents.protocol import Capability, Finding
from helmsman.base.structs import pack, replace, unpack
from helmsman.capabilities.outcomes.agent_selection import choose
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
from helmsman.capabilities.outcomes.reports import ReportUnreadable, SecondLooks, asked_for, prompt, quoted, read_report
from helmsman.capabilities.outcomes.work import Candidate, TurnNotDone
from helmsman.capabilities.reviews import Reviews, in_words, nothing_in_words, resolve
from helmsman.errors import HelmsmanError, InvalidInput, ReviewUnreadable
from helmsman.model.options import ReviewKind, ReviewTarget
from helmsman.model.prompts import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.capabilities.outcomes.agent_selection import Chosen
    from helmsman.capabilities.outcomes.work import DoneTurn, Work
    from helmsman.settings import OnLimit
    from helmsman.tasks.outcome import TaskOutcome

_URGENT: Final = 1
_SHOWN_REJECTED: Final = 5
_DIFF_CHARS: Final = 400_000
_UNREADABLE: Final = f"{UNREADABLE} Answer with the JSON object that you were asked for, and nothing else."


async def review(work: Work) -> TaskOutcome:
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
        # The target is resolved once: after a restart, its name may mean another commit.
        found = await work.once(
            "diff", partial(anyio.to_thread.run_sync, lambda: pack(resolve(root, target, state_dir)))
        )
        if found is None:
            return cls(work, root, target, "", nothing_in_words(target))
        resolved, diff = unpack(found[0], ReviewTarget), found[1]
        return cls(work, root, resolved, diff, in_words(resolved))

    async def run(self) -> TaskOutcome:
        work = self._work
        if not self._diff.strip():
            return await self._found([], [], [Evidence(ok=True, what=self._words)])
        before = await work.once("snapshot", partial(anyio.to_thread.run_sync, look, self._root, self._state_dir))
        reviewed = Reviewed(root=str(self._root), shown=ShownDiff.of_text(self._root, self._diff), before=before)
        chosen, wanted = work.chosen, work.wanted
        count = len(chosen) if len(wanted.agents) > 1 else min(wanted.candidates, len(chosen))
        # Each requested agent is one reviewer. Otherwise the agents left over are spread, as substitutes
        # that begin if a reviewer cannot.
        orders = [chosen[place : place + 1] if wanted.agents else chosen[place::count] for place in range(count)]
        made = await work.side_by_side("review", orders, self._review, self._read, lambda _evidence: _UNREADABLE)
        for one in made:
            one.error = one.error or one.against or None
        merged = merge_findings({one.agent: _kept(one) for one in made if one.error is None}, reviewed)
        evidence = [
            Evidence(ok=True, what=f"{one.agent} reviewed it.")
            if one.error is None
            else Evidence(ok=False, what=f"{one.agent} did not review it: {one.error}")
            for one in made
        ]
        looks, looked = await self._second_looks([one for one in merged if one.verified and _is_urgent(one.finding)])
        evidence += looked
        told = [one.to_json() | {"secondLook": looks.get(_name(one))} for one in merged]
        if merged:
            count = sum(one.verified for one in merged)
            evidence.append(Evidence(ok=True, what=f"{count} of {len(merged)} findings cite lines of the diff."))
            if not count:
                why = "; ".join(f"{one.finding.title} ({one.evidence.what})" for one in merged[:_SHOWN_REJECTED])
                what = f"Every finding was rejected, so the review says nothing of the change: {why}"
                evidence.append(Evidence(ok=False, what=what))
        evidence.append(await untouched(self._root, self._state_dir, before))
        return await self._found(told, made, evidence)

    # --- reviewers ---------------------------------------------------------------------------------------------------

    async def _review(self, name: str, agent: str, on_limit: OnLimit | None) -> DoneTurn:
        work = self._work
        work.report_progress(f"{agent} reviews.")
        own = Capability.REVIEW in await work.helm.capabilities(agent)
        text, kind = await self._reviews.prepare(self._root, self._target, work.wanted.request, self._diff, own=own)
        return await work.start_reader(name, text, agent, cwd=self._root, kind=kind, on_limit=on_limit)

    async def _read(self, turn: DoneTurn) -> dict[str, Any]:
        """Parse an agent's report."""
        agent = turn.session.options.agent
        own = self._target is not None and Capability.REVIEW in await self._work.helm.capabilities(agent)
        try:
            report = await self._reviews.read_report(turn.session, turn.said, own=own)
        except ReviewUnreadable as error:
            return verdict([Evidence(ok=False, what=error.message)]).to_json()
        if report is None:
            raise TurnNotDone("The review came to no findings that can be read.", sessionId=turn.session.id)
        return {
            **verdict([Evidence(ok=True, what=f"{agent} reviewed it.")]).to_json(),
            "findings": pack(report.findings),
            "verdict": report.verdict or report.explanation or None,
        }

    # --- second look -------------------------------------------------------------------------------------------------

    async def _second_looks(self, urgent: Sequence[MergedFinding]) -> tuple[dict[str, dict[str, Any]], list[Evidence]]:
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
            looks = await self._second_look(agent, urgent)
        except HelmsmanError as error:
            return {}, [Evidence(ok=False, what=f"The urgent findings had no second look: {error.message}")]
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

    async def _second_look(self, agent: str, urgent: Sequence[MergedFinding]) -> dict[str, dict[str, Any]]:
        work = self._work
        work.report_progress(f"{agent} tries to refute the urgent findings.")
        shown = [
            {"finding": number, "title": one.title, "body": one.body}
            | {"file": one.file, "startLine": one.start_line, "endLine": one.end_line}
            for number, one in enumerate((merged.finding for merged in urgent), 1)
        ]
        asked = prompt(
            "second_look",
            findings=quoted(json.dumps(shown, ensure_ascii=False, indent=1), "json"),
            diff=quoted(self._diff[:_DIFF_CHARS], "diff"),
            report=asked_for("second_look"),
        )
        turn = await work.start_reader("second look", asked, agent, cwd=self._root)
        made = Candidate(number=1, agent=agent, why="", turn=turn)
        await work.until_verified("second look", made, partial(_verdicts, len(urgent)), _unreadable)
        if not made.verified:
            raise ReportUnreadable(made.error or made.against)
        return {_name(urgent[one["finding"] - 1]): one | {"by": agent} for one in made.seen["looks"]}

    # --- result ------------------------------------------------------------------------------------------------------

    async def _found(
        self, told: Sequence[dict[str, Any]], made: Sequence[Candidate], evidence: Sequence[Evidence]
    ) -> TaskOutcome:
        refuted = [one for one in told if one["secondLook"] is not None and one["secondLook"]["refuted"]]
        rejected = [one for one in told if not one["verified"]]
        findings = [one for one in told if one not in refuted and one not in rejected]
        seen = verdict(evidence)
        nothing = not self._diff.strip()
        counted = f"{len(findings)} finding(s), {len(refuted)} refuted, {len(rejected)} rejected."
        against = " ".join(one.what for one in seen.against)
        return await self._work.found(
            made[0] if made else None,
            verified=seen.verified,
            says=self._words if nothing else f"{counted} {against}".strip(),
            evidence=[one.to_json() for one in seen.evidence],
            target=self._words,
            nothingToReview=nothing,
            findings=findings,
            refuted=refuted,
            rejected=rejected,
            reviewers=[
                {"agent": one.agent, "why": one.why, "sessionId": one.session_id}
                | {"verdict": one.seen.get("verdict"), "error": one.error}
                for one in made
            ],
        )


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


def _kept(reviewer: Candidate) -> list[Finding]:
    return unpack(reviewer.seen.get("findings", []), list[Finding])


def _is_urgent(finding: Finding) -> bool:
    return finding.priority is not None and finding.priority <= _URGENT


def _name(one: MergedFinding) -> str:
    return f"{one.finding.file}:{one.finding.start_line}:{one.finding.title}"


def _unreadable(evidence: Sequence[Any]) -> str:
    return f"{UNREADABLE} {evidence[0]['what']} {asked_for('second_look')}"


async def _verdicts(count: int, turn: DoneTurn) -> dict[str, Any]:
    """Parse the verdicts of a second look on this number of findings."""
    try:
        looks = {one.finding: one.to_json() for one in read_report(turn.said, SecondLooks).verdicts}
    except ReportUnreadable as error:
        return verdict([Evidence(ok=False, what=error.message)]).to_json()
    is_whole = looks.keys() == {*range(1, count + 1)}
    what = f"There are {count} findings, and verdicts on {sorted(looks)}."
    return {**verdict([Evidence(ok=is_whole, what=what)]).to_json(), "looks": list(looks.values())}
