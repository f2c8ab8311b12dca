"""Tests that agents' reports are parsed with distrust, and settings for checks and agents as documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.protocol import Finding
from helmsman.base.structs import pack, unpack, unpack_if_valid
from helmsman.capabilities.outcomes.agent_selection import TABLE, preferred_agents
from helmsman.capabilities.outcomes.checks import find_check
from helmsman.capabilities.outcomes.claims import Reviewed, merge_findings
from helmsman.capabilities.outcomes.failures import not_checked
from helmsman.capabilities.outcomes.reports import (
    Preference,
    ReportedPlan,
    RootCause,
    SecondLooks,
    as_markdown,
    promise,
    quoted,
    read_report,
)
from helmsman.capabilities.reviews import ask_for_review, read_answer
from helmsman.errors import HelmsmanError, InvalidSetting
from helmsman.settings import ConfigFile

# --- reports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "report", "said"),
    [
        (RootCause, {}, "missing required field `rootCause`"),
        (RootCause, {"rootCause": "  ", "places": [{"file": "a"}]}, r"at `\$.rootCause`"),
        (RootCause, {"rootCause": "x", "places": []}, r"at `\$.places`"),
        (RootCause, {"rootCause": "x", "places": [1]}, r"at `\$.places\[0\]`"),
        (RootCause, {"rootCause": "x", "places": [{"file": "a"}] * 9999}, r"at `\$.places`"),
        (RootCause, {"rootCause": "x", "places": [{"file": "a", "startLine": "3"}]}, "got `str`"),
        (RootCause, {"rootCause": "x", "places": [{"file": "a", "endLine": True}]}, "got `bool`"),
        (ReportedPlan, {"summary": "x", "steps": [{"title": "a"}], "risks": ["a", 3]}, r"at `\$.risks\[1\]`"),
        (SecondLooks, {"verdicts": [{"finding": 1, "refuted": True, "why": "x", "confidence": 2}]}, "<= 1"),
        (SecondLooks, {"verdicts": [{"finding": 1, "refuted": True, "why": "x", "confidence": True}]}, "got `bool`"),
        (SecondLooks, {"verdicts": [{"finding": 0, "refuted": True, "why": "x"}]}, ">= 1"),
    ],
)
def test_a_report_that_is_not_what_was_asked_for_says_what_is_wrong_with_it(
    kind: type[RootCause], report: dict[str, Any], said: str
) -> None:
    with pytest.raises(HelmsmanError, match=said):
        read_report(json.dumps(report), kind)


def test_omitted_fields_of_a_report_are_empty() -> None:
    plan = read_report('{"summary": "x", "steps": [{"title": "a"}]}', ReportedPlan)
    assert (plan.risks, plan.steps[0].files, plan.steps[0].check) == ((), (), None)
    looks = read_report('{"verdicts": [{"finding": 1, "refuted": false, "why": "x", "confidence": 1}]}', SecondLooks)
    assert looks.verdicts[0].confidence == 1.0


@pytest.mark.parametrize("said", ["I did it.", "```json\n[1]\n```", '```json\n{"a": }\n```', "[" * 100_000])
def test_a_message_without_a_report_is_none(said: str) -> None:
    with pytest.raises(HelmsmanError, match="block of JSON"):
        read_report(said, Preference)


def test_the_last_block_of_a_message_is_the_report() -> None:
    first, last = ('{"best": 1, "why": "a"}', '{"best": 2, "why": "b"}')
    assert read_report(f"```json\n{first}\n```\nor rather\n```json\n{last}\n```", Preference).best == 2
    assert read_report(first, Preference).best == 1


def test_nothing_that_is_quoted_ends_its_quotation() -> None:
    shown = quoted("a\n````\nb", "diff")
    assert "\n`````diff\n" in shown
    assert shown.endswith("\n`````")


def test_a_report_says_what_verified_means_for_its_kind_and_which_files_were_not_compared() -> None:
    assert promise("debug").startswith("Verified means: the check's own files, as they were before, pass")
    assert promise("test").startswith("Verified means: the new tests pass each time and fail on wrong code")
    empty: dict[str, object] = {"added": {}, "removed": {}, "changed": {}}
    report = {"kind": "refactor", "verified": True, "says": "", "evidence": [], "candidates": [], "agent": None}
    spent = {"seconds": 1, "tokens": 0, "costUsd": None}
    same = as_markdown({**report, **spent, "interfaces": {"same": True, **empty, "unknown": []}})
    assert "The public interface is the same." in same
    other = as_markdown({**report, **spent, "interfaces": {"same": True, **empty, "unknown": ["calc.js"]}})
    assert "Not compared, as only Python can be read: `calc.js`." in other


# --- reviews ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", ["Looks good!", '{"findings": 3}', "[]", '```json\n{"findings": []}\n```\n```json\n{"findings": []}\n```']
)
def test_a_reviewer_who_answers_something_else_is_not_taken_for_one_who_found_nothing(said: str) -> None:
    with pytest.raises(HelmsmanError, match="did not answer with findings") as told:
        read_answer(said, "T1")
    assert told.value.details["session_id"] == "T1"


def test_invalid_fields_of_a_finding_are_ignored() -> None:
    finding = {"body": 3, "priority": 9, "confidence": 7, "file": "", "startLine": "x", "endLine": None}
    report = read_answer(json.dumps({"findings": [finding, "odd"], "confidence": True}), "T1")
    first, second = report.findings
    assert (first.title, first.body, first.priority, first.confidence) == ("(without a title)", "", None, None)
    assert (first.file, first.start_line, second.start_line) == (None, 0, None)
    assert (report.confidence, report.verdict) == (None, None)


def test_of_a_diff_that_is_too_long_the_files_that_are_left_out_are_named() -> None:
    diff = "".join(
        f"diff --git a/f{number} b/f{number}\n--- a/f{number}\n+++ b/f{number}\n@@ -1 +1 @@\n-a\n+{'b' * 20_000}\n"
        for number in range(400)
    )
    asked = ask_for_review(Path("/src"), "Review it.", diff, "Look at the numbers.")
    assert asked.startswith("Review it. Look at the numbers.\n")
    assert len(asked) < len(diff) / 2
    last = asked.strip().splitlines()[-1]
    assert last.startswith("(The diff is longer than that. Read these files yourself: f")
    assert last.endswith("more, which are not reviewed)")
    cut = next(number for number in range(400) if f"diff --git a/f{number} " not in asked)
    assert f" f{cut}, " in last or f": f{cut}, " in last


def test_findings_of_several_are_one_where_they_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    reviewed = Reviewed(root=str(tmp_path), shown=None, before=None)
    whole = Finding(title="No tests", body="", file="a.py")
    same = Finding(title="no  tests!", body="There are none.", file="a.py", priority=1)
    other = Finding(title="Something else entirely", body="x", file="a.py", start_line=1, end_line=1)
    merged = merge_findings({"codex": [whole], "claude": [same, other]}, reviewed)
    assert [(one.by, one.finding.title) for one in merged] == [
        (("codex", "claude"), "no  tests!"),
        (("claude",), "Something else entirely"),
    ]


@pytest.mark.parametrize("kept", [None, {}, {"root": "/src"}, 3])
def test_an_incomplete_stored_review_is_not_used(kept: Any) -> None:
    assert unpack_if_valid(kept, Reviewed) is None


def test_a_stored_review_is_read_back_unchanged() -> None:
    reviewed = Reviewed(root="/src", shown=None, before={"a": "b"})
    assert unpack(json.loads(json.dumps(pack(reviewed))), Reviewed) == reviewed


# --- checks ----------------------------------------------------------------------------------------------------------


def test_a_link_is_no_file_that_says_how_to_check(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("test:\n", encoding="utf-8")
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "Makefile").symlink_to(tmp_path / "elsewhere")
    assert find_check(tmp_path / "repo") is None


@pytest.mark.parametrize(
    ("exit_code", "output", "why"),
    [
        (None, "", "its time was up"),
        (127, "whatever", "a program could not be run"),
        (5, "", "no tests were run"),
        (0, "Ran 0 tests in 0.1s", "no tests were run"),
        (0, "1 passed", None),
        (1, "FAILED test_a.py::test_b - assert 1 == 2", None),
        (5, "FAILED test_a.py::test_b - assert 1 == 2", None),
    ],
)
def test_a_check_that_checked_nothing_is_distinguished_from_one_that_failed(
    exit_code: int | None, output: str, why: str | None
) -> None:
    found = not_checked(exit_code, output)
    assert (None if found is None else found.why) == why


# --- preferred agents ------------------------------------------------------------------------------------------------


def file(content: dict[str, Any], *, trusted: bool = True) -> ConfigFile:
    return ConfigFile(path=Path("/home/me/helmsman.toml"), content={TABLE: content}, trusted=trusted)


def test_the_users_own_file_says_which_agents_are_for_what_and_a_projects_does_not() -> None:
    mine, theirs = (
        file({"debug": {"agents": ["claude", "codex"]}}),
        file({"debug": {"agents": ["evil"]}}, trusted=False),
    )
    assert preferred_agents([theirs, mine], "debug") == ("claude", "codex")
    assert preferred_agents([theirs, mine], "review") == ()
    assert preferred_agents([theirs], "debug") == ()


@pytest.mark.parametrize("content", [3, {"debug": 3}, {"debug": {"agents": "codex"}}, {"debug": {"agents": [3]}}])
def test_agents_that_make_no_sense_are_named_with_their_file(content: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"\[capabilities\.debug\] in /home/me/helmsman\.toml"):
        preferred_agents([file(content)], "debug")
