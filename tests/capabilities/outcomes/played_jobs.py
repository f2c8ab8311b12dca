"""A repository with a bug and a check, and jobs on it that a scripted model does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from helmsman.capabilities.outcomes.request import Wanted
from helmsman.model.questions import Question
from helmsman.service import HelmsmanService
from helmsman.tasks.model import Task
from helmsman.testing import patch, say, update
from helmsman.testing.repository import git, make_repository
from helmsman.testing.script import Part
from tests.capabilities.outcomes.conftest import write

SECONDS = 60
CHECK = f"{sys.executable} -m unittest -q"
BROKEN = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n"
FIXED = BROKEN.replace("a - b", "a + b")
TESTS = """\
import unittest

from calc import add, double


class Calc(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)

    def test_double(self):
        self.assertEqual(double(4), 8)
"""
CAUSE = {"rootCause": "It subtracts.", "places": [{"file": "calc.py", "startLine": 2, "endLine": 2}]}


def repository(folder: Path, files: Mapping[str, str]) -> Path:
    root = make_repository(folder)
    write(root, {".gitignore": "__pycache__/\n", **files})
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=All")
    return root


def fenced(report: object) -> str:
    return f"Done.\n\n```json\n{json.dumps(report)}\n```"


def told(report: object) -> Part:
    return say(fenced(report))


def edit(path: str, old: str, new: str) -> Part:
    return patch(update(path, old, new))


FIX = edit("calc.py", "    return a - b", "    return a + b")


def wanted(kind: Any, directory: Path, request: str = "test_add fails", **given: Any) -> Wanted:
    return Wanted(
        kind=kind, request=request, directory=str(directory), **{"more": {}, "check": CHECK, "judge": "never", **given}
    )


@dataclass
class Answers:
    """Answers what jobs ask, and keeps what that was: `apply` whether a change is applied, `run` whether a check runs."""

    run: str = "approve"
    apply: str = "approve"
    asked: list[Question] = field(default_factory=list)

    async def __call__(self, _session: object, question: Question) -> str | None:
        self.asked.append(question)
        return self.run if question.type == "command_approval" else self.apply

    @property
    def commands(self) -> list[str]:
        return [str(one.details["command"]) for one in self.asked if one.type == "command_approval"]


async def done(
    helm: HelmsmanService, job: Wanted, answers: Answers, *, seconds: float = SECONDS
) -> tuple[Task, dict[str, Any]]:
    """A job to its end, and its report."""
    task = await helm.extras.outcomes.start(job)
    seen: set[str] = set()
    with anyio.fail_after(seconds):
        while (task := await helm.tasks.wait(task, timeout=seconds)).is_running:
            for session_id in task.job_sessions:
                session = await helm.session(session_id)
                for question in session.questions:
                    if question.id not in seen:
                        seen.add(question.id)
                        await session.respond(question.id, await answers(session, question) or "deny")
            await anyio.sleep(0.01)
    return task, dict((await helm.tasks.results(task)).report or {})
