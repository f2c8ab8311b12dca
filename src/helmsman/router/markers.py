"""Markers that accompany work: "in the cloud: …", "new task: …", "… in the cloud".

A marker at the beginning, with its colon, is removed. At the end of a sentence, "in the cloud" may belong to the work,
so it counts only after verbs that exclude that meaning, and is not removed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from helmsman.router.vocabulary import word_set

Mode = Literal["local", "cloud"]

_HEAD: Final = 400
"""Characters searched for markers at the beginning and the end of a request."""

_PLACE_MARKER: Final = re.compile(
    r"""\s*(?:please\s+)?
    (?:(?:run|do|start|execute|submit|send|use|handle|launch)\s+(?:(?:this|it|the\s+following)\s+)?)?
    (?:(?:in|on|to|with|via|using|as)\s+)?(?:the\s+|a\s+|my\s+)?
    (?:(?P<cloud>(?:codex\s+)?cloud)|(?P<local>locally|local|machine))(?:\s+task)?(?:\s+please)?\s*[:：]\s*(?=\S)""",
    re.IGNORECASE | re.VERBOSE,
)
_WORK_MARKER: Final = re.compile(
    r"\s*(?:please\s+)?(?:run|do|task|new\s+task|job|new\s+job)\s*[:：]\s*(?=\S)(?!T-(?:local|cloud)-)", re.IGNORECASE
)
_CLOUD_FIRST: Final = re.compile(
    r"\s*(?:please\s+)?(?:use|with|using|via)\s+(?:the\s+)?(?:codex\s+)?cloud\s+(?:to|and)\s", re.IGNORECASE
)
_CLOUD_LAST: Final = re.compile(
    r"\s(?:in|on|using|with|via)\s+(?:the\s+)?(?P<codex>codex\s+)?cloud(?:[\s,]+please)?[\s.!]*\Z", re.IGNORECASE
)
_LOCAL_LAST: Final = re.compile(
    r"\s(?:locally|on\s+(?:my|this)\s+(?:machine|computer|laptop))(?:[\s,]+please)?[\s.!]*\Z", re.IGNORECASE
)
_ABOUT_THE_CLOUD: Final = re.compile(r"\b(?:that|which|where|who|about|when|how|why|if|whose)\b", re.IGNORECASE)
_FIRST_WORD: Final = re.compile(r"\s*(?:please\s+)?([a-z]+)", re.IGNORECASE)
_RUNS_THERE: Final = frozenset(
    ("run", "execute", "start", "do", "fix", "refactor", "implement", "test", "review", "investigate", "debug", "port",
     "upgrade", "solve", "handle", "work", "try", "lint", "rerun", "retry", "analyse", "analyze")
)  # fmt: skip
"""Verbs after which "… in the cloud" names the place of the work. Deploying or storing in a cloud does not."""


_ALL_OF: Final = word_set("full entire whole complete all every each across")
_MUCH: Final = word_set(
    """tests test suite suites integration e2e end-to-end regression databases browsers platforms versions matrix
    codebase repository monorepo repo packages services modules benchmarks fuzz"""
)
_LONG: Final = word_set("overnight hours exhaustive exhaustively")


@dataclass(frozen=True, slots=True)
class Marked:
    """Work announced by a marker, without the marker."""

    instruction: str
    mode: Mode | None


def read_marker(request: str) -> Marked | None:
    """Return the work after "in the cloud: " or "run: "; None without such a marker."""
    head = request[:_HEAD]
    if place := _PLACE_MARKER.match(head):
        return Marked(request[place.end() :], "cloud" if place["cloud"] else "local")
    if marker := _WORK_MARKER.match(head):
        return Marked(request[marker.end() :], where_to_run(request))
    return None


def where_to_run(request: str) -> Mode | None:
    """Return the place of the work, if it is stated without a marker."""
    first = _FIRST_WORD.match(request[:_HEAD])
    verb = first[1].lower() if first else ""
    if _CLOUD_FIRST.match(request[:_HEAD]):
        return "cloud"
    end = request[-_HEAD:]
    if verb in _RUNS_THERE and _LOCAL_LAST.search(end):
        return "local"
    cloud = _CLOUD_LAST.search(end)
    if cloud is None or verb not in _RUNS_THERE or len(request) > _HEAD:
        return None
    return None if cloud["codex"] is None and _ABOUT_THE_CLOUD.search(request) else "cloud"


def may_take_long(request: str) -> bool:
    """Return whether the work may take hours: a comprehensive task on something large."""
    words = {word.strip(".,:;!?\"'()") for word in request[:_HEAD].lower().split()}
    return bool(words & _LONG or (words & _ALL_OF and words & _MUCH))
