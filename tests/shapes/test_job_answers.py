"""Reports of jobs as a model gets them."""

from __future__ import annotations

from typing import Any

from helmsman.shapes.job_answers import short_report
from tests.listings import count


def report() -> dict[str, Any]:
    evidence = [{"ok": True, "what": f"look {number}", "detail": "a line of output\n" * 200} for number in range(6)]
    run = {"command": "make test", "passed": False, "exitCode": 2, "seconds": 1.5, "output": "FAILED test_x\n" * 800}
    candidate = {"number": 1, "agent": "codex", "winner": True, "evidence": evidence, "told": "Fixed it. " * 300}
    return {
        "kind": "debug",
        "verified": True,
        "says": "It is fixed.",
        "agent": "codex",
        "why": "only one",
        "attempts": 1,
        "evidence": evidence,
        "before": run,
        "after": run | {"passed": True},
        "candidates": [candidate],
    }


def test_a_report_has_at_most_1500_tokens_and_the_evidence_once() -> None:
    whole = report()
    short = short_report(whole)
    assert count(whole) > 7_000
    assert count(short) * 1.07 <= 1_500
    assert short.keys() == whole.keys(), "clients check it against the schema"
    assert [one["what"] for one in short["evidence"]] == [one["what"] for one in whole["evidence"]]
    assert short["candidates"][0]["evidence"] == []
    assert "withOutput" in short["before"]["output"]


def test_a_short_report_stays_as_it_is() -> None:
    short = {"kind": "review", "verified": True, "says": "Nothing was found.", "evidence": [], "findings": []}
    assert short_report(short) == short


def test_the_evidence_of_several_candidates_stays_with_those_that_lost() -> None:
    two = report()
    failed = {"ok": False, "what": "make test failed", "detail": "FAILED\\n" * 500}
    two["candidates"].append(two["candidates"][0] | {"number": 2, "winner": False, "evidence": [failed]})
    short = short_report(two)
    assert [one["evidence"] for one in short["candidates"]] == [[], [{"ok": False, "what": "make test failed"}]]
    assert count(short) * 1.07 <= 1_500


def test_of_much_evidence_what_failed_is_shown() -> None:
    much = report()
    much["evidence"] = [{"ok": number != 70, "what": f"look {number}"} for number in range(100)]
    short = short_report(much)
    assert short["evidence"][0] == {"ok": False, "what": "look 70"}
    assert "90 of evidence are left out" in short["says"]
    assert count(short) * 1.07 <= 1_500
