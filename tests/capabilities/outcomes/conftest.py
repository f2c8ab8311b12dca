"""A repository with a check, a worktree of it, and a runner in the real sandbox."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from helmsman.capabilities.outcomes.checks import CheckRunner
from helmsman.capabilities.repository_commands import CommandAllowance
from helmsman.git import lifecycle
from helmsman.git.worktree import Worktree
from helmsman.settings import Settings
from helmsman.testing import CodexHome
from helmsman.testing.repository import git, make_repository

PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -p no:cacheprovider"
CALC = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n"
FIXED = CALC.replace("a - b", "a + b")
TESTS = (
    "from calc import add, double\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\n"
    "def test_double():\n    assert double(4) == 8\n"
)


@dataclass
class Bench:
    """Worktree with changes."""

    tree: Worktree
    runner: CheckRunner
    with_allowance: Callable[[CommandAllowance], CheckRunner]
    asked: list[str] = field(default_factory=list)

    def put(self, files: Mapping[str, str | None]) -> None:
        write(self.tree.path, files)


def write(root: Path, files: Mapping[str, str | None]) -> None:
    for name, text in files.items():
        if text is None:
            (root / name).unlink()
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")


@pytest.fixture
def bench(settings: Settings, codex_home: CodexHome, tmp_path: Path) -> Callable[..., Bench]:
    def make(
        files: Mapping[str, str],
        *,
        links: Mapping[str, str] | None = None,
        refuse: str | None = None,
        timeout: float = 60,
        executable: Sequence[str] = (),
    ) -> Bench:
        root = make_repository(tmp_path / "checked")
        write(root, files)
        for link, target in (links or {}).items():
            (root / link).unlink()
            (root / link).symlink_to(target)
        for name in executable:
            if (root / name).exists():
                (root / name).chmod(0o755)
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message=All")
        tree = lifecycle.create(root, settings.state_dir)
        asked: list[str] = []

        async def consent(command: str, _tree: Worktree, _allowance: CommandAllowance, _why: str) -> str | None:
            asked.append(command)
            return refuse

        env = {**codex_home.env, "SOME_API_KEY": "hidden from commands", "GH_PAT": "x"}

        def runner(allowance: CommandAllowance) -> CheckRunner:
            return CheckRunner(tree, consent, allowance, settings=settings, env=env, timeout=timeout)

        return Bench(tree, runner(CommandAllowance()), runner, asked)

    return make
