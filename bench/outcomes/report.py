"""Report of the outcome benchmark, for docs/appendix/outcomes.md."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from bench.outcomes.players import JUDGE_MISSES, JUDGE_OBJECTS, PLAYERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.outcomes.play import Played

MOST_WRONG, MOST_REFUSED = 0.02, 0.03
"""Goals: share of verified outcomes that are wrong, and of right changes that are refused."""

_PAGE = Path(__file__).with_name("page.md")


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / max(1, whole):.1f} %)"


def _wrong(outcomes: Sequence[Played]) -> list[Played]:
    return [one for one in outcomes if one.verified and not one.right]


def as_page(outcomes: Sequence[Played], when: str) -> str:
    """Return the page."""
    rows = []
    for name, player in PLAYERS.items():
        mine = [one for one in outcomes if one.player == name]
        if not mine:
            continue
        counts = [
            sum(one.verified is verified and one.right is right for one in mine)
            for verified, right in ((True, True), (True, False), (False, True), (False, False))
        ]
        middle = (
            f"{statistics.median(one.turns for one in mine):g} | {statistics.median(one.seconds for one in mine):.1f}"
        )
        shown = f"{name} ({player.caught_by})" if player.caught_by in ("judge", "comparison") else name
        rows.append(f"| {shown} | {len(mine)} | {' | '.join(map(str, counts))} | {middle} |")
    right = [one for one in outcomes if one.right]
    summary = (
        f"Verified but wrong: {_share(len(_wrong(outcomes)), len(outcomes))}. "
        f"Refused but right: {_share(sum(not one.verified for one in right), len(right))}. "
        "Kinds marked with (judge) pass the check, so that only the judge can object. "
        "Kinds marked with (comparison) pass it too; the comparison of calls can find them, else the judge."
    )
    differing = [one for one in outcomes if PLAYERS[one.player].caught_by == "comparison"]
    if differing:
        found = _share(sum(one.differs for one in differing), len(differing))
        summary += f" Of refactorings with other results, the comparison found {found} before a judge was asked."
    names = {one.task: one.language for one in outcomes}
    return _PAGE.read_text(encoding="utf-8").format(
        tasks=len(names),
        python=sum(one == "Python" for one in names.values()),
        javascript=sum(one != "Python" for one in names.values()),
        rows="\n".join(rows),
        summary=summary,
        when=when,
        misses=JUDGE_MISSES,
        objections=JUDGE_OBJECTS,
    )


def goals_missed(outcomes: Sequence[Played]) -> list[str]:
    """Return the goals that the outcomes miss."""
    wrong, right = _wrong(outcomes), [one for one in outcomes if one.right]
    missed = [
        f"{one.task}, {one.player}: verified but wrong" for one in wrong if PLAYERS[one.player].caught_by == "room"
    ]
    if len(wrong) > MOST_WRONG * len(outcomes):
        missed.append(f"Verified but wrong: {_share(len(wrong), len(outcomes))}")
    refused = [one for one in right if not one.verified]
    if len(refused) > MOST_REFUSED * len(right):
        missed.append(f"Refused but right: {_share(len(refused), len(right))}")
    return missed
