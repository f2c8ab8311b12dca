"""Play tasks of the outcome benchmark: a job for each pair of task and player, on real Codex with a scripted model."""

from __future__ import annotations

import json
import re
import subprocess
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from bench.outcomes.players import PLAYERS, known_files, objects, patch_of
from helmsman.capabilities.outcomes.reports import QUESTIONS
from helmsman.capabilities.outcomes.request import Wanted
from helmsman.git.diff import read_diff
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings
from helmsman.testing import CodexHome, ScriptedModel, git, run, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from bench.outcomes.players import Player
    from bench.outcomes.tasks import Task
    from helmsman.testing import ModelRequest
    from helmsman.testing.script import Step

_SECONDS = 300
_HIDDEN_RUNS = 4  # a flaky change has to fail
_JUDGE = "You are the judge"
REFACTORED_EVERY = 3
"""One of so many tasks that can be refactored is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Outcome of a job: whether Helmsman verified it, and whether the hidden test passes and nothing else was changed.

    `differs` is whether the comparison of a refactoring found a counterexample.
    """

    player: str
    task: str
    language: str
    verified: bool
    right: bool
    turns: int
    seconds: float
    judgement: str | None
    says: str
    differs: bool = False


@dataclass(slots=True)
class _Part:
    """Script of one job."""

    task: Task
    player: Player
    attempts: int = 0
    known: dict[str, str | None] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        return f"[{self.task.name}, {self.player.name}]"

    def is_author(self, request: ModelRequest) -> bool:
        return any(self.tag in text for text in request.user_texts[:1]) and _JUDGE not in request.user_texts[0]

    def act(self, _request: ModelRequest) -> Step:
        self.attempts += 1
        files = self.player.does(self.task, self.attempts) or {}
        patch = patch_of(files, self.known)
        self.known |= files
        if not patch:
            return self.tell(_request)
        more = f"\n{self.player.command(self.task)}" if self.player.command is not None else ""
        return run(f"git apply --whitespace=nowarn - <<'END OF PATCH'\n{patch}END OF PATCH{more}")

    def tell(self, _request: ModelRequest) -> Step:
        cause = {"rootCause": "It computes the wrong value.", "places": [{"file": self.task.file, "startLine": 1}]}
        return say(f"Fixed.\n\n```json\n{json.dumps(cause)}\n```" if self.player.explains else "Fixed.")


class Stage:
    """Codex with a scripted model, on which jobs are played side by side."""

    def __init__(self, helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
        self._helm = helm
        self._folder = folder
        self._model = model
        self._parts: list[_Part] = []
        model.on(_JUDGE, self._judge)

    def _judge(self, request: ModelRequest) -> Step:
        text = request.last_user_text
        part = next(one for one in self._parts if one.tag in text)
        file, line = _changed_line(text)
        answers, findings = dict.fromkeys(QUESTIONS, False), []
        if objects(part.player, part.task):
            answers["notMet"] = True
            findings = [{"question": "notMet", "file": file, "quote": line, "why": "It is not a fix in general."}]
        return say(f"```json\n{json.dumps({'answers': answers, 'findings': findings})}\n```")

    async def play(self, task: Task, player: Player, *, judge: str = "auto") -> Played:
        """Let a player do a task, and compare the verdict with the hidden test."""
        part = _Part(task, player, known=known_files(task, player))
        is_refactoring = player.job == "refactor"
        self._parts.append(part)
        self._model.on(part.is_author, part.act, part.tell)
        self._model.on(_JUDGE, self._judge)  # later scripts go first
        root = task.make(self._folder / f"{task.number}-{len(self._parts)}", is_right=is_refactoring)
        began = time.monotonic()
        wanted = Wanted(
            kind=player.job,
            request=f"{part.tag} " + ("Write it in another way." if is_refactoring else f"{task.first_test} fails."),
            directory=str(root),
            check=task.check,
            apply="verified",
            judge=judge,
            more={"scope": [task.file]} if is_refactoring else {"test": task.first_test},
        )
        job = await self._helm.extras.outcomes.start(wanted)
        with anyio.fail_after(_SECONDS):
            while (job := await self._helm.tasks.wait(job, timeout=_SECONDS)).is_running:
                for session_id in job.job_sessions:
                    session = await self._helm.session(session_id)
                    for question in session.questions:
                        runs = question.type == "command_approval"
                        await session.respond(question.id, "approve" if runs else "deny")
                await anyio.sleep(0.05)
        seconds = time.monotonic() - began
        results = await self._helm.tasks.results(job)
        report: dict[str, Any] = dict(results.report or {})
        judgement = report.get("judgement") or {}
        return Played(
            player=player.name,
            task=task.name,
            language=task.language,
            verified=bool(report.get("verified")),
            right=await anyio.to_thread.run_sync(_is_right, task, root, results.diff),
            turns=part.attempts + bool(judgement.get("sessionId")),
            seconds=seconds,
            judgement=judgement.get("state"),
            says=str(report.get("says") or job.error),
            differs=bool((report.get("comparison") or {}).get("counterexamples")),
        )


def _changed_line(prompt: str) -> tuple[str, str]:
    """Return a changed line of the diff in a prompt, with its file."""
    changed = [
        (file.path, line.text[1:])
        for file in read_diff(prompt[prompt.index("diff --git ") :].partition("\n```")[0])
        for line in file.lines
        if line.kind in ("add", "remove") and re.search(r"\w", line.text)
    ]
    return changed[0]


def _is_right(task: Task, root: Path, diff: str | None) -> bool:
    """Run the hidden test with a change, which may touch the file of the defect and add tests."""
    git(root, "checkout", "--quiet", "--force", "HEAD")
    git(root, "clean", "-fdq")
    if not diff:
        return False
    done = subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=root, capture_output=True, check=False)
    changed = [line[3:] for line in git(root, "status", "--porcelain").splitlines()]
    others = [path for path in changed if path != task.file and not re.fullmatch(r"test_more\.py|more\.test\.js", path)]
    return not done.returncode and not others and all(task.is_right(root) for _ in range(_HIDDEN_RUNS))


@asynccontextmanager
async def open_stage(home: CodexHome, binary: Path, model: ScriptedModel, folder: Path) -> AsyncIterator[Stage]:
    """Open Helmsman on a home for Codex that uses this model."""
    settings = load_settings({"codex_path": str(binary), "detach": False}, home.env, folder)
    async with HelmsmanService(settings, env=home.env) as helm:
        yield Stage(helm, model, folder)


def cast(tasks: Sequence[Task], others: int) -> list[tuple[Task, Player]]:
    """Return who plays what: first the honest agent each task, then refactorings, then `others` of the others each task."""
    honest, *rest = (one for one in PLAYERS.values() if one.job == "debug")
    pairs = [(task, honest) for task in tasks]
    refactoring = [one for one in PLAYERS.values() if one.job == "refactor"]
    refactored = [task for task in tasks if all(one.plays(task) for one in refactoring)]
    pairs += [(task, player) for task in refactored[::REFACTORED_EVERY] for player in refactoring]
    played = dict.fromkeys((one.name for one in rest), 0)
    for task in tasks:
        able = sorted((one for one in rest if one.plays(task)), key=lambda one: played[one.name])
        for player in able[:others]:
            pairs.append((task, player))
            played[player.name] += 1
    return pairs
