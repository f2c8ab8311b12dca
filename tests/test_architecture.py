"""The import directions of docs/architecture.md hold."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "helmsman"

BASE = {"_version", "base", "answered_by", "file_lock", "errors", "events", "questions", "engine", "inputs"}
BASE |= {
    "concurrency",
    "settings",
    "redaction",
    "repositories",
    "patches",
    "git",
    "allowed_roots",
    "unknown_names",
    "shortening",
}
BASE |= {"shown_text", "question_text", "unified_diff"}

ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "errors": {"redaction"},
    "events": {"questions"},
    "questions": {"errors"},
    "answered_by": {"questions"},
    "engine": {"errors", "events", "questions"},
    "shown_text": set(),
    "unified_diff": {"events"},
    "permission_words": {"shown_text"},
    "question_text": {"permission_words", "questions", "shown_text", "unified_diff"},
    "allowed_roots": {"errors"},
    "concurrency": set(),
    "redaction": {"secret_arguments"},
    "secret_arguments": set(),
    "unknown_names": set(),
    "shortening": set(),
    "repositories": set(),
    "git_view": set(),
    "git": {"errors", "git_view", "repositories", "settings"},
    "patches": {"errors", "git"},
    "cloud_settings": {"errors", "settings"},
    "github_guide": {"errors", "git", "repositories"},
    "settings": {"errors", "repositories", "unknown_names"},
    "inputs": {"allowed_roots", "engine", "errors", "unknown_names"},
    "codex": BASE - {"inputs", "settings"},
    "file_lock": set(),
    "worktrees": {"base", "errors", "file_lock", "git", "patches", "repositories", "settings", "unified_diff"},
    "sessions": BASE | {"worktrees"},
    "tasks": BASE,
    "router": BASE,
    "prices": {"errors", "events", "settings"},
    "clients": {"base", "errors", "redaction"},
    "engines": BASE | {"codex"},
    "kept_options": BASE,
    "engine_holder": BASE | {"engines"},
    "task_truth": BASE | {"engines", "tasks"},
    "ledger": BASE | {"kept_options", "sessions", "tasks"},
    "memory": BASE | {"kept_options", "ledger", "task_truth", "tasks"},
    "known_sessions": BASE | {"ledger", "memory", "sessions", "tasks", "worktrees"},
    "turn_failures": {"errors", "events"},
    "past_turns": {"engine", "errors"},
    "new_sessions": BASE | {"past_turns", "sessions", "worktrees"},
    "service": BASE
    | {
        "new_sessions",
        "turn_failures",
        "known_sessions",
        "engine_holder",
        "engines",
        "ledger",
        "memory",
        "task_truth",
        "tasks",
    }
    | {"all_tasks", "codex", "extras", "sessions", "worktrees"},
    "local_tasks": BASE | {"service", "sessions", "tasks", "prices"},
    "cloud_tasks": BASE | {"service", "tasks", "codex", "cloud_settings", "turn_failures"},
    "all_tasks": BASE | {"service", "tasks", "codex", "prices", "local_tasks", "cloud_tasks"},
    "extras": BASE
    | {"all_tasks", "engines", "ledger", "turn_failures", "prices", "service", "sessions", "tasks", "worktrees"},
    "step": BASE | {"service", "sessions"},
}
"""What a part may import, besides itself. Front doors (cli, terminal, …) and the test kit may import anything below."""

FRONT_DOORS = {"cli", "mcp", "terminal", "rendering", "testing", "web", "__main__"}


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("helmsman."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "helmsman":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("helmsman.")}
    return found


def parts() -> list[tuple[str, Path]]:
    files = sorted(SOURCE.rglob("*.py"))
    return [(file.relative_to(SOURCE).parts[0].removesuffix(".py"), file) for file in files]


@pytest.mark.parametrize(("part", "file"), parts(), ids=[str(file.relative_to(SOURCE)) for _, file in parts()])
def test_imports_point_downwards(part: str, file: Path) -> None:
    if part in FRONT_DOORS or part in ("__init__", "_version"):
        return
    assert imports(file) - {part} <= ALLOWED[part]


def test_nothing_below_the_front_doors_imports_one() -> None:
    guilty = {
        part for part, file in parts() if part not in FRONT_DOORS and part != "__init__" and imports(file) & FRONT_DOORS
    }
    assert guilty == set()


def test_git_is_started_in_one_place() -> None:
    """The one that keeps it from running what a repository names. The doctor asks for its version only."""
    starting = {
        str(file.relative_to(SOURCE))
        for _, file in parts()
        if re.search(r"""which\("git"\)|\["git",""", file.read_text("utf-8"))
    }
    assert starting == {"git.py", "cli/place_checks.py", "testing/repository.py", "sessions/rules_file.py"}


def test_no_file_is_two_things() -> None:
    long = {
        str(file.relative_to(SOURCE)) for _, file in parts() if len(file.read_text(encoding="utf-8").splitlines()) > 600
    }
    assert long == set()


def test_no_module_needs_posix_to_be_imported() -> None:
    posix = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
    for _, file in parts():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        top |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module}
        assert not top & posix, file
