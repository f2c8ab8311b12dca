"""The toolset `capabilities` through a real client on a pipe, on a real Codex: each tool from its call to its verdict."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import CodexHome, ScriptedModel, add, patch, run, say
from helmsman.testing.repository import git
from mcp import Client
from tests.capabilities.outcomes.conftest import write
from tests.capabilities.outcomes.played_jobs import (
    BROKEN,
    CAUSE,
    CHECK,
    FIX,
    FIXED,
    TESTS,
    edit,
    fenced,
    repository,
    told,
)
from tests.capabilities.outcomes.test_judging import JUDGE, judgement
from tests.claude import claude_binary, claude_environment
from tests.clients.server_process import Serving
from tests.clients.test_killed_hubs import Victim, victim
from tests.mcp.caller import Caller

__all__ = ["victim"]

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, pytest.mark.long]

NEW_TEST = """\
import unittest

from calc import add


class Add(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(add(1, 2), 3)
"""


async def done(client: Caller, tool: str, **given: Any) -> dict[str, Any]:
    """A job to its end, with a yes to all it asks."""
    shown = await client(tool, **given)
    while shown["status"] == "working":
        if (question := shown.get("pendingQuestion")) is not None:
            await client("agent_respond", sessionId=question["sessionId"], id=question["id"], answers=["approve"])
        shown = await client(tool, taskId=shown["taskId"], waitSec=20)
    return shown


async def test_debug(serving: Serving, model: ScriptedModel, tmp_path: Path) -> None:
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    model.on("test_add fails", FIX, told(CAUSE))
    async with Client(serving.on_stdio("--tools", "capabilities")) as client:
        shown = await done(Caller(client), "debug", request="test_add fails", workingDirectory=str(root), check=CHECK)
    report = shown["report"]
    assert (shown["verified"], report["applied"], report["reproduced"]) == (True, "applied", "test")
    assert (report["before"]["passed"], report["after"]["passed"]) == (False, True)
    assert (root / "calc.py").read_text(encoding="utf-8") == FIXED


@pytest.mark.rare
async def test_refactor_and_test(serving: Serving, model: ScriptedModel, tmp_path: Path) -> None:
    root = repository(tmp_path / "repo", {"calc.py": FIXED, "test_calc.py": TESTS})
    model.on("simpler", edit("calc.py", "    return 2 * a", "    return add(a, a)"), say("double uses add"))
    under = {"underTest": [{"file": "calc.py", "startLine": 2, "endLine": 2}]}
    model.on("test the sum", patch(add("test_sum.py", NEW_TEST)), told(under))
    async with Client(serving.on_stdio("--tools", "capabilities")) as client:
        there = {"workingDirectory": str(root), "check": CHECK, "apply": "never"}
        better = await done(Caller(client), "refactor", request="make it simpler", scope=["calc.py"], **there)
        tested = await done(Caller(client), "test", request="test the sum", **there)
    assert (better["verified"], better["report"]["interfaces"]["same"]) == (True, True)
    assert (tested["verified"], tested["report"]["tests"]) == (True, ["test_sum.py"])
    assert not (root / "test_sum.py").exists()


async def test_review(serving: Serving, model: ScriptedModel, tmp_path: Path) -> None:
    root = repository(tmp_path / "repo", {"calc.py": FIXED})
    (root / "calc.py").write_text(BROKEN, encoding="utf-8")
    found = [
        {"title": "It subtracts", "body": "", "priority": 2, "file": "calc.py", "startLine": 2, "endLine": 2},
        {"title": "Invented", "body": "", "priority": 1, "file": "other.py", "startLine": 1, "endLine": 1},
    ]
    model.on("Review this change", told({"findings": found, "verdict": "wrong"}))
    async with Client(serving.on_stdio("--tools", "capabilities")) as client:
        diff = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a + b\n+    return a - b\n"
        shown = await done(Caller(client), "review", workingDirectory=str(root), diff=diff)
    report = shown["report"]
    assert [one["title"] for one in report["findings"]] == ["It subtracts"]
    assert [one["title"] for one in report["rejected"]] == ["Invented"]


@pytest.mark.rare
async def test_plan(serving: Serving, model: ScriptedModel, tmp_path: Path) -> None:
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    step = {"title": "Fix the sum", "details": "", "files": [{"file": "calc.py"}], "check": None}
    made = {"summary": "Add.", "steps": [step], "risks": [], "checks": [], "openQuestions": []}
    model.on("sums right", told(made))
    model.on("Do step 1 of the plan now", FIX, say("done"))
    async with Client(serving.on_stdio("--tools", "capabilities")) as client:
        shown = await done(
            Caller(client), "plan", request="get the sums right", workingDirectory=str(root), check=CHECK
        )
    report = shown["report"]
    assert (shown["verified"], report["approved"], report["applied"]) == (True, True, "applied")
    assert [one["status"] for one in report["steps"]] == ["done"]


@pytest.mark.parametrize("agent", [pytest.param("claude", marks=pytest.mark.rare)])
async def test_each_tool_on_another_agent(
    agent: str, codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, tmp_path: Path
) -> None:
    claude = claude_environment(model, tmp_path / "claude") | {"CLAUDE_CLI_PATH": str(claude_binary())}
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    serving = Serving.on(codex_home, codex_binary, root, **claude)
    fix = run("sed -i 's/a - b/a + b/' calc.py")
    step = {"title": "Fix the sum", "details": "", "files": [{"file": "calc.py"}], "check": None}
    model.on("sums right", told({"summary": "Add.", "steps": [step], "risks": [], "checks": [], "openQuestions": []}))
    model.on("Do step 1 of the plan now", fix, say("done"))
    model.on("test_add fails", fix, told(CAUSE))
    found = {"title": "It adds", "body": "", "priority": 2, "file": "calc.py", "startLine": 2, "endLine": 2}
    model.on("You are the reviewer", told({"findings": [found, found | {"startLine": 90, "endLine": 91}]}))
    model.on("simpler", run("sed -i 's/2 \\* a/add(a, a)/' calc.py"), say("double uses add"))
    under = {"underTest": [{"file": "calc.py", "startLine": 2, "endLine": 2}]}
    model.on("test the sum", patch(add("test_sum.py", NEW_TEST)), told(under))
    model.on(JUDGE, told(judgement()))
    async with Client(serving.on_stdio("--tools", "capabilities")) as client:
        there = {"workingDirectory": str(root), "agent": agent}
        checked = there | {"check": CHECK}
        planned = await done(Caller(client), "plan", request="get the sums right", apply="never", **checked)
        debugged = await done(Caller(client), "debug", request="test_add fails", **checked)
        assert (root / "calc.py").read_text(encoding="utf-8") == FIXED
        reviewed = await done(Caller(client), "review", **there)
        git(root, "commit", "--quiet", "--all", "--message=Fixed")
        better = await done(Caller(client), "refactor", request="make it simpler", scope=["calc.py"], **checked)
        git(root, "commit", "--quiet", "--all", "--message=Simpler")
        tested = await done(Caller(client), "test", request="test the sum", **checked)
    every = (planned, debugged, reviewed, better, tested)
    assert [(one["verified"], one["agent"]) for one in every] == [(True, agent)] * 5, every
    assert (len(reviewed["report"]["findings"]), len(reviewed["report"]["rejected"])) == (1, 1)
    assert (better["report"]["applied"], tested["report"]["applied"]) == ("applied", "applied")
    assert [one["report"]["judgement"]["agent"] for one in (debugged, better, tested)] == ["codex"] * 3


@pytest.mark.skipif(sys.platform == "win32", reason="there is no hub")
async def test_a_call_whose_hub_is_killed_is_one_job(victim: Victim, model: ScriptedModel, tmp_path: Path) -> None:
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    rules = Path(victim.serving.env["HOME"]) / ".config" / "helmsman"
    write(rules, {"helmsman.toml": f'[[rules]]\neffect = "allow"\ncommand = {json.dumps(CHECK.split())}\n'})
    model.on("test_add fails", FIX, say(victim.gate, fenced(CAUSE)))
    async with Client(victim.serving.on_stdio("--tools", "capabilities")) as client:
        asked = {"request": "test_add fails", "workingDirectory": str(root), "check": CHECK, "apply": "never"}
        shown = await victim.during(lambda: Caller(client)("debug", **asked, waitSec=50))
        if shown["status"] == "working":
            shown = await done(Caller(client), "debug", taskId=shown["taskId"], waitSec=20)
    assert (shown["verified"], shown["report"]["attempts"]) == (True, 1), shown
    with closing(Registry(victim.serving.state_dir / REGISTRY_NAME)) as registry:
        tasks, _ = registry.list(limit=50)
    assert [task.id for task in tasks if task.job] == [shown["taskId"]]
