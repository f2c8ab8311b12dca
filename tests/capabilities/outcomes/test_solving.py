"""debug, refactor and test on a real Codex: what is verified, and the lies that are caught."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helmsman.testing import always, say
from tests.capabilities.outcomes.played_jobs import (
    BROKEN,
    CAUSE,
    CHECK,
    FIX,
    FIXED,
    TESTS,
    Answers,
    done,
    repository,
    told,
    wanted,
)

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman import Helmsman
    from helmsman.testing import ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, pytest.mark.usefixtures("shared_engine")]

BUGGY = {"calc.py": BROKEN, "test_calc.py": TESTS}


async def test_a_bug_is_reproduced_fixed_verified_asked_about_and_applied(
    helm: Helmsman, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    model.on("test_add fails", FIX, told(CAUSE))
    answers = Answers()
    task, report = await done(helm, wanted("debug", root), answers)
    assert (task.status, report["verified"], report["applied"]) == ("completed", True, "applied"), report
    assert (root / "calc.py").read_text(encoding="utf-8") == FIXED
    assert answers.commands == [CHECK], "asked once, for the base and for the change"
    assert (report["before"]["passed"], report["after"]["passed"], report["reproduced"]) == (False, True, "test")
    assert report["rootCause"]["places"] == CAUSE["places"]
    assert [one["ok"] for one in report["evidence"]] == [True] * len(report["evidence"])
    apply = answers.asked[-1]
    assert "Apply this verified change" in apply.prompts[0].text
    assert "+    return a + b" in apply.details["diff"]
    assert "## debug: verified" in (task.result or "")
