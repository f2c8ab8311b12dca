"""Transcripts tell each thing once, and who said it: reviews, messages into a running turn, Helmsman's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.model.options import ReviewTarget
from helmsman.model.prompts import CONTINUE
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, run, say
from helmsman.web.reading import Transcripts
from tests.web.browser import SECONDS, Browser

pytestmark = pytest.mark.anyio

FINDING = {"title": "[P1] Wrong sign", "body": "It subtracts.", "confidence_score": 0.9, "priority": 1}
VERDICT = {"overall_correctness": "patch is incorrect", "overall_explanation": "No.", "overall_confidence_score": 0.9}


async def test_a_message_into_a_running_turn_stands_where_it_was_said_before_and_after_it_is_read(
    browser: Browser, helm: HelmsmanService, model: ScriptedModel, folder: Path, asks: dict[str, Any]
) -> None:
    waits = f"while [ ! -e {folder}/go ]; do sleep 0.05; done; echo first"
    model.on("begin", run(waits, yield_ms=30_000), say("never said"))
    model.on("be brief", run("echo second"), say("brief"))
    session_id = await browser.start("begin", **asks)
    path = f"/api/sessions/{session_id}/transcript"
    await browser.until(path, lambda page: page["entries"][-1]["item"]["type"] == "command_execution")
    await browser.post(f"/api/sessions/{session_id}/say", message="be brief", whenBusy="steer")
    *_, said = (await browser.get(path))["entries"]
    assert (said["index"], said["item"]["text"], said["item"]["status"]) == (2, "be brief", "in_progress")
    (folder / "go").touch()
    await browser.settled(session_id)
    page = await browser.get(path)
    assert [entry["item"].get("text") or entry["item"]["output"].strip() for entry in page["entries"]] == [
        *("begin", "first", "be brief", "second", "brief")
    ]
    assert page["entries"][2]["item"]["status"] == "completed"
    assert all("by" not in entry for entry in page["entries"])

    model.on(CONTINUE, say("More."))  # what Helmsman says by itself is not taken for a person's
    await browser.post(f"/api/sessions/{session_id}/say", message=CONTINUE)
    await browser.settled(session_id)
    *_, own, _ = (await browser.get(path))["entries"]
    assert (own["item"]["text"], own["by"]) == (CONTINUE, "helmsman")


async def test_a_review_shows_its_findings_once(helm: HelmsmanService, model: ScriptedModel, git_repo: Path) -> None:
    file = git_repo / "calc.py"
    file.write_text("a = 1\n", encoding="utf-8")
    place = {"absolute_file_path": str(file), "line_range": {"start": 1, "end": 1}}
    model.on("", say(json.dumps({"findings": [FINDING | {"code_location": place}], **VERDICT})))
    listening = Transcripts(helm)
    session = (await helm.extras.reviews.start(ReviewTarget(kind="uncommitted"), cwd=git_repo)).session
    assert session is not None
    with anyio.fail_after(SECONDS):
        await session.wait()
    for transcripts in (listening, Transcripts(helm)):  # as it was seen, and as Codex has written it down
        (turn,) = (await transcripts.of(session)).turns
        told = [item.summary() for item in turn.items]
        assert sum("Wrong sign" in line for line in told) == 1, told
        assert not any("Review the current code changes" in line for line in told)
