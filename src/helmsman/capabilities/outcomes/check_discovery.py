"""Find the check of a repository from its files, without running any of its code.

The result states its reason. Like any command of a repository, it needs consent before it runs.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_READ_BYTES: Final = 512 * 1024
_MAKEFILES: Final = ("GNUmakefile", "makefile", "Makefile")
_MAKE_TARGET: Final = re.compile(r"^(test|tests|check)[ \t]*:(?![=:])", re.MULTILINE)
_PLACEHOLDER: Final = "no test specified"
_LOCK_FILES: Final = (
    ("pnpm-lock.yaml", "pnpm test"),
    ("yarn.lock", "yarn test"),
    ("bun.lock", "bun run test"),
    ("bun.lockb", "bun run test"),
)


@dataclass(frozen=True, slots=True)
class FoundCheck:
    """Command that checks the repository, and the reason for this choice."""

    command: str
    why: str


def find_check(directory: Path) -> FoundCheck | None:
    """Return the check for a repository root; None if it is unclear. Reads files; blocks."""
    return next((found for find in _WAYS for found in find(directory)), None)


def _make(directory: Path) -> Iterator[FoundCheck]:
    for name in _MAKEFILES:  # in the order of make, which uses the first one
        text = _text(directory / name)
        if text is None:
            continue
        found = _MAKE_TARGET.search(text)
        if found is not None:
            yield FoundCheck(f"make {found[1]}", f"{name} has a target {found[1]}.")
        return


def _python(directory: Path) -> Iterator[FoundCheck]:
    runner = "python -m pytest"
    project = _toml(directory / "pyproject.toml")
    tool = project.get("tool")
    if isinstance(tool, dict) and isinstance(tool.get("pytest"), dict):
        yield FoundCheck(runner, "pyproject.toml configures pytest.")
        return
    for name, section in (("pytest.ini", "[pytest]"), ("tox.ini", "[pytest]"), ("setup.cfg", "[tool:pytest]")):
        if section in (_text(directory / name) or ""):
            yield FoundCheck(runner, f"{name} configures pytest.")
            return
    if (directory / "tox.ini").is_file():
        yield FoundCheck("tox", "There is a tox.ini.")
    tests = [folder for folder in ("tests", "test") if (directory / folder).is_dir()]
    places = [directory, *(directory / folder for folder in tests)]
    files = [path for place in places for path in [*place.glob("test_*.py"), *place.glob("*_test.py")]]
    if files or (directory / "conftest.py").is_file():
        where = (
            f"There are tests for Python ({files[0].relative_to(directory)})." if files else "There is a conftest.py."
        )
        yield FoundCheck(runner, where)


def _node(directory: Path) -> Iterator[FoundCheck]:
    scripts = (json_object(_text(directory / "package.json")) or {}).get("scripts")
    script = scripts.get("test") if isinstance(scripts, dict) else None
    if not isinstance(script, str) or not script.strip() or _PLACEHOLDER in script:
        return
    lock, command = next(
        ((lock, command) for lock, command in _LOCK_FILES if (directory / lock).is_file()), ("", "npm test")
    )
    yield FoundCheck(command, "package.json has a script test" + (f", and there is a {lock}." if lock else "."))


def _cargo(directory: Path) -> Iterator[FoundCheck]:
    if (directory / "Cargo.toml").is_file():
        yield FoundCheck("cargo test", "There is a Cargo.toml.")


def _go(directory: Path) -> Iterator[FoundCheck]:
    if (directory / "go.mod").is_file():
        yield FoundCheck("go test ./...", "There is a go.mod.")


def _java(directory: Path) -> Iterator[FoundCheck]:
    if (directory / "gradlew").is_file():
        yield FoundCheck("./gradlew test", "There is a gradlew.")
    elif (directory / "mvnw").is_file():
        yield FoundCheck("./mvnw test", "There is a mvnw.")
    elif (directory / "pom.xml").is_file():
        yield FoundCheck("mvn test", "There is a pom.xml.")


_WAYS: Final[tuple[Callable[[Path], Iterator[FoundCheck]], ...]] = (_make, _python, _node, _cargo, _go, _java)
"""Makefile first: `make test` states the author's intention."""


def _text(path: Path) -> str | None:
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _READ_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path) or "")
    except (ValueError, RecursionError):
        return {}
