"""How often a person is asked: a scripted day of Node work and one of Python work, on a real Codex with the scripted model.

    python bench/questions_of_a_day.py            # the rules that the documentation leads with, under on-request
    python bench/questions_of_a_day.py --as 0.1   # those of 0.1's documentation, under untrusted

It needs nothing but the `helmsman` package, so an older one is measured with the same days: `PYTHONPATH=<its src> python …`.
npm, pip, pytest and the like are stand-ins that do nothing, since only the questions count. The model asks to leave the
sandbox where it has to: for the network, and for what changes `.git`, which Codex's sandbox keeps read-only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import helmsman
from helmsman import Helmsman
from helmsman.settings import load_settings
from helmsman.testing import ScriptedModel, add, patch, run, say, update
from helmsman.testing.binaries import codex_version, installed_codex
from helmsman.testing.home import HomeTemplates
from helmsman.testing.repository import make_repository

if TYPE_CHECKING:
    from helmsman.model.options import ApprovalPolicy
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session

STAND_INS = ("npm", "npx", "node", "pip", "pytest", "ruff", "mypy", "python", "tsc", "eslint", "curl", "gh")
SECONDS = 600


@dataclass(frozen=True)
class Leaves:
    """Command that must leave the sandbox."""

    command: str


def changes(folder: str, suffix: str, count: int) -> list[Any]:
    return [patch(add(f"{folder}/part{number}.{suffix}", "one\n")) for number in range(count)]


def edit(path: str) -> Any:
    return patch(update(path, "one", "two"))


NODE: list[Any] = [
    "git status --short", "ls", "cat package.json", "rg -n TODO src", Leaves("npm ci"), "npm test",
    *changes("src", "js", 4), "npm test", "npx eslint src", edit("src/part0.js"), "npm run build",
    "npm test -- --watch=false", "git diff", "git diff --stat", Leaves("git add -A && git commit -m 'Add the parts'"),
    "rm -rf dist", "npm run build", Leaves("npm install left-pad"), edit("src/part1.js"), edit("src/part2.js"),
    "npm test", "node scripts/check.js", "git log --oneline -5", "npm run lint", "npx tsc --noEmit",
    Leaves("git add -A && git commit -m 'Use left-pad'"), "npm test", "rm -f debug.log", "git status --short",
    Leaves("npm ci"), "npm test", Leaves("git push"), "git log --oneline -5",
]  # fmt: skip

PYTHON: list[Any] = [
    "git status --short", "ls", "cat pyproject.toml", "rg -n TODO app", Leaves("pip install -r requirements.txt"),
    "pytest -q", *changes("app", "py", 4), "pytest -q", "ruff check .", edit("app/part0.py"), "ruff format .",
    "pytest -q tests/test_part0.py", "mypy app", "git diff", "git diff --stat",
    Leaves("git add -A && git commit -m 'Add the parts'"), "rm -rf build", "python -m build",
    Leaves("pip install httpx"), edit("app/part1.py"), edit("app/part2.py"), "pytest -q", "python scripts/check.py",
    "git log --oneline -5", "ruff check .", "mypy app", Leaves("git add -A && git commit -m 'Use httpx'"), "pytest -q",
    "rm -f debug.log", "git status --short", Leaves("pip install -r requirements.txt"), "pytest -q",
    Leaves("git push"), "git log --oneline -5",
]  # fmt: skip

DAYS = {"Node": NODE, "Python": PYTHON}


def rules(*commands: str, outside: tuple[str, ...] = ()) -> str:
    tables = [f'[[rules]]\neffect = "allow"\ncommand = {json.dumps(text.split())}\n' for text in (*outside, *commands)]
    leaving = [table + "outside = true\n" for table in tables[: len(outside)]]
    return "allow_workspace_patches = true\n\n" + "\n".join([*leaving, *tables[len(outside) :]])


WAYS: dict[str, tuple[ApprovalPolicy, dict[str, str]]] = {
    "0.1": (
        "untrusted",
        {
            "Node": rules("git status", "git diff", "git log", "npm test", "npm run"),
            "Python": rules("git status", "git diff", "git log", "pytest", "ruff"),
        },
    ),
    "now": (
        "on-request",
        {
            "Node": rules("rm -rf dist", outside=("npm ci", "git push")),
            "Python": rules("rm -rf build", outside=("pip install -r requirements.txt", "git push")),
        },
    ),
}
"""Approval policy and rules for each day."""


def prepare(folder: Path, home: Path) -> Path:
    """Create a repository, and no-op programs that come first on PATH."""
    programs = folder / "programs"
    programs.mkdir()
    for name in STAND_INS:
        (programs / name).write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    (home / ".bash_profile").write_text(f'PATH="{programs}:$PATH"\n', encoding="utf-8")
    return make_repository(folder / "repository")


async def count(day: str, way: str, answer: str) -> Counter[str]:
    """Count the questions of a day that reach a user, who answers `answer` if offered and otherwise yes."""
    policy, files = WAYS[way]
    binary = installed_codex()
    if binary is None:
        raise SystemExit("There is no Codex here. Install openai-codex-cli-bin.")
    asked: Counter[str] = Counter()

    async def person(_session: Session, question: Question) -> str:
        asked[question.type] += 1
        return answer if answer in question.prompts[0].options else question.prompts[0].options[0]

    with tempfile.TemporaryDirectory(prefix="helmsman-day-", dir="/var/tmp") as name:
        folder = Path(name)
        home = HomeTemplates(folder / "template").new_home(binary, folder / "home")
        repository = prepare(folder, home.home)
        own = folder / "helmsman.toml"
        own.write_text(files[day], encoding="utf-8")
        settings = load_settings({"codex_path": str(binary)}, home.env, folder, user_file=own)
        async with ScriptedModel() as model, Helmsman(settings, env=home.env, on_question=person) as helm:
            home.use_model(model.base_url, codex_version(binary))
            model.on("work", *map(step, DAYS[day]), say("done"))
            session = await helm.start("work", cwd=repository, sandbox="workspace-write", approval_policy=policy)
            if not await session.wait(until="end", timeout=SECONDS) or session.status != "done":
                raise SystemExit(f"The day did not end well: {session.status}")
    return asked


def step(entry: Any) -> Any:
    match entry:
        case Leaves(command):
            return run(command, escalate="It has to leave the sandbox.")
        case str(command):
            return run(command)
        case _:
            return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--as", dest="way", choices=WAYS, default="now")
    parser.add_argument("--answer", default="approve", help="what the person says where it is offered")
    given = parser.parse_args()
    print(f"helmsman from {Path(helmsman.__file__).parent}, as {given.way}, answered with {given.answer}")
    for day, entries in DAYS.items():
        asked = anyio.run(count, day, given.way, given.answer)
        print(f"{day}: {sum(asked.values())} questions in {len(entries)} steps ({dict(asked)})")


if __name__ == "__main__":
    main()
