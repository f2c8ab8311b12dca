"""The router's reading of requests: nothing is made up, and what makes no difference to a person makes none here."""

from __future__ import annotations

import unicodedata
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from helmsman.router import words
from helmsman.router.intent import Hints, Mode, parse
from helmsman.router.vocabulary import RouterVerb, v
from tests.fuzz.effort import fuzzed
from tests.router.shelf import labelled_requests

LABELLED = sorted({entry.request for entry in labelled_requests()})
IDS = ["T-local-3f9a1c0b7d2e", "T-cloud-c51d07e9ab34"]
WORDS = st.sampled_from(sorted(v.known | {*IDS, "2", "fix-login-test", "5 minutes", ",", "\n", ":", "—", "```"}))


@st.composite
def requests(draw: st.DrawFn) -> str:
    """Return a plausible request after a few changes; or random words; or no words at all."""
    kind = draw(st.sampled_from(["changed", "words", "text"]))
    if kind == "text":
        return draw(st.text(max_size=80))
    if kind == "words":
        return " ".join(draw(st.lists(WORDS, max_size=12)))
    request = draw(st.sampled_from(LABELLED))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(request)))
        request = request[:at] + draw(WORDS | st.text(max_size=3)) + request[at + draw(st.integers(0, 2)) :]
    return request


@fuzzed(600)
@given(requests())
def test_nothing_is_made_up(request: str) -> None:
    intent = parse(request)
    assert intent.action in (*get_args(RouterVerb), "choose", "none")
    assert intent.instruction in request
    if intent.action == "run":
        assert intent.instruction.strip()
    reference = intent.reference
    if reference is not None and reference.kind in ("id", "several"):
        plain = unicodedata.normalize("NFKC", request.translate(words._PLAIN)).translate(words._PLAIN)  # dashes, colons
        assert all(task_id.casefold() in plain.casefold() for task_id in reference.value.split())


@fuzzed(400)
@given(requests(), st.sampled_from([" ", "\n", "\t", "  \n "]), st.sampled_from(["", " ", "\n\n"]))
def test_blanks_around_a_request_make_no_difference(request: str, before: str, after: str) -> None:
    plain, padded = parse(request.strip()), parse(before + request.strip() + after)
    assert (plain.action, plain.reference, plain.mode) == (padded.action, padded.reference, padded.mode)


@fuzzed(300)
@given(requests(), st.sampled_from(get_args(RouterVerb)), st.sampled_from([None, "auto", "local", "cloud"]))
def test_hints_win_over_any_words(request: str, operation: RouterVerb, mode: Mode | None) -> None:
    intent = parse(request, Hints(operation=operation, mode=mode, task_id=IDS[0]))
    assert intent.action == operation or (operation == "run" and intent.action == "none" and not request.strip())
    if mode in ("local", "cloud"):
        assert intent.mode == mode
