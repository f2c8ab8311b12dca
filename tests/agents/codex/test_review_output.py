"""Tests of reading review findings from each of Codex's formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex.storage import from_record, from_text, is_of, read_review
from helmsman.agents.protocol import Finding

SHOWN = """\
It breaks the port.

Full review comments:

- [P1] The port is wrong — /src/my app/a.py:1-2
  It must be 80.

  Really.

- No test -- /src/b.py:7
  Add one.
"""
RECORD: dict[str, Any] = {
    "findings": [
        {
            "title": "[P0] The port is wrong",
            "body": "It must be 80.",
            "confidence_score": 0.9,
            "code_location": {"absolute_file_path": "/src/a.py", "line_range": {"start": 1, "end": 2}},
        }
    ],
    "overall_correctness": "patch is incorrect",
    "overall_explanation": "It breaks the port.",
    "overall_confidence_score": 0.5,
}
FINDING = Finding(
    title="The port is wrong",
    body="It must be 80.",
    priority=0,
    confidence=0.9,
    file="/src/a.py",
    start_line=1,
    end_line=2,
)


def test_the_text_codex_shows_is_read_back() -> None:
    report = from_text(SHOWN)
    assert report.explanation == "It breaks the port."
    assert report.findings == (
        Finding(
            title="The port is wrong",
            body="It must be 80.\n\nReally.",
            priority=1,
            file="/src/my app/a.py",
            start_line=1,
            end_line=2,
        ),
        Finding(title="No test", body="Add one.", file="/src/b.py", start_line=7, end_line=7),
    )
    assert report.text == SHOWN


def test_a_text_without_comments_is_an_explanation() -> None:
    report = from_text("All good.\n")
    assert (report.findings, report.explanation) == ((), "All good.")


def test_a_record_gives_what_the_text_leaves_out() -> None:
    report = from_record(RECORD)
    assert report is not None
    assert report.findings == (FINDING,)
    assert (report.verdict, report.confidence) == ("patch is incorrect", 0.5)
    assert report.text == "It breaks the port.\n\n- [P0] The port is wrong — /src/a.py:1-2\n  It must be 80."


@pytest.mark.parametrize("around", ["%s", "Here it is:\n```json\n%s\n```\n"], ids=["bare", "fenced"])
def test_an_answer_that_codex_took_for_prose_is_read_all_the_same(around: str) -> None:
    said = around % json.dumps(RECORD)
    for report in (from_record({"findings": [], "overall_explanation": said}), from_text(said)):
        assert report is not None
        assert report.findings == (FINDING,)


def test_a_record_belongs_to_the_text_made_of_it() -> None:
    report = from_record(RECORD)
    assert report is not None
    assert is_of(report, report.text)
    assert not is_of(report, "Another review.")


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "exited_review_mode", "review_output": RECORD},
        {"type": "item_completed", "turn_id": "1", "item": {"type": "ExitedReviewMode", "review_output": RECORD}},
    ],
    ids=["event", "item"],
)
def test_the_newest_review_in_a_file_counts(tmp_path: Path, payload: dict[str, Any]) -> None:
    older = {"type": "exited_review_mode", "review_output": RECORD | {"findings": []}}
    lines = [
        {"payload": older},
        {"payload": payload},
        {"payload": {"type": "agent_message", "message": "ExitedReviewMode"}},
    ]
    file = tmp_path / "rollout.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + '\n{"half', encoding="utf-8")
    report = read_review(file)
    assert report is not None
    assert report.findings == (FINDING,)


def test_a_review_that_was_interrupted_found_nothing_one_could_tell(tmp_path: Path) -> None:
    file = tmp_path / "rollout.jsonl"
    lines = [{"payload": {"type": "exited_review_mode", "review_output": output}} for output in (RECORD, None)]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert read_review(file) is None


def test_a_file_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert read_review(tmp_path / "none.jsonl") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*RECORD, *RECORD["findings"][0]]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_nothing_a_reviewer_may_answer_raises(value: object) -> None:
    if isinstance(value, dict):
        from_record(value)
    from_text(json.dumps(value))


@given(st.text(alphabet="-—[]P1:\n {}ab"))
def test_nothing_codex_may_show_raises(shown: str) -> None:
    assert from_text(f"x\n\nFull review comments:\n\n{shown}").text
