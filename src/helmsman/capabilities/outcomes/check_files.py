"""Which files are a check's own: its tests, the file that says how to run it, scripts, the configuration of its runner.

A change is checked with these as they were before it, and without what is new among them: a new test, too, could change
what the old ones mean. Then new tests are run beside the old ones.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

OwnKind = Literal["test", "how"]
"""A test, or something that says how tests are run and what they mean."""

_HOW: Final = re.compile(
    r"(?:GNUmakefile|[Mm]akefile|.*\.mk|\.?pytest\.(?:ini|toml)|tox\.ini|setup\.cfg|noxfile\.py|conftest\.py|pyproject\.toml"
    r"|package\.json|(?:jest|vitest|vite|karma|mocha|ava|playwright|cypress)\.(?:config|setup)\.\w+|\.mocharc(?:\.\w+)?"
    r"|jest\.setup\.\w+|sitecustomize\.py|usercustomize\.py|\.coveragerc|justfile|Justfile|Taskfile\.ya?ml|Rakefile"
    r"|.*\.(?:sh|bash|bats)|build\.gradle(?:\.kts)?|pom\.xml|\.npmrc|\.env\.test|CMakeLists\.txt|.*\.cmake|meson\.build"
    r"|Cargo\.toml|phpunit\.xml(?:\.dist)?|\.rspec|bunfig\.toml|babel\.config\.\w+|\.babelrc|\.gitattributes)"
)
_TEST: Final = re.compile(
    r"(?:test[_-].*\.\w+|tests?\.\w+|.*[._-](?:tests?|spec|unittest)\.\w+|runtests\.jl|.*\.t"
    r"|.*Tests?\.(?:java|kt|cs|swift|php|scala|m|mm|cc|cpp)|.*Spec\.(?:hs|scala|groovy|kt))"
)
_TEST_FOLDERS: Final = frozenset(
    {"test", "tests", "__tests__", "spec", "specs", "testdata", "__snapshots__", "fixtures"}
)
_SCRIPT_FOLDERS: Final = frozenset({"scripts", "ci", ".github", ".cargo"})
_RUNNERS: Final = frozenset(
    {"pytest", "_pytest", "pluggy", "unittest", "coverage", "tox", "nox", "nose2", "hypothesis"}
)
_TOOL_FOLDERS: Final = frozenset({"site-packages", ".venv", "venv", "env", ".tox", ".nox"})
_CACHES: Final = frozenset({"__pycache__", ".cache", ".vite", ".pytest_cache"})


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A file of a check that a change touched: `A` added, `M` modified, `D` deleted, `T` of another type."""

    path: str
    kind: OwnKind
    status: str

    @property
    def in_words(self) -> str:
        what = {"A": "is new", "D": "was deleted"}.get(self.status, "was changed")
        return f"{self.path} {what}"


def stands_for_a_runner(path: str) -> bool:
    """Whether Python would take a file for the program that runs the tests, or for a part of it."""
    pure = PurePosixPath(path)
    if pure.suffix != ".py":
        return False
    name = pure.parent.name if pure.name == "__init__.py" else pure.stem
    return name in _RUNNERS or (len(pure.parts) == 1 and name in sys.stdlib_module_names)


def runs_with(path: str, folders: Container[str]) -> bool:
    """Whether a check runs with a file that git does not know: installed programs, or what says how tests are run and lies
    in one of the folders that git knows. What was built elsewhere (`bin`, `build`) is not meant: agents build, too.
    """
    pure = PurePosixPath(path)
    parts = pure.parts[:-1]
    if _CACHES & {*parts}:
        return False
    if "node_modules" in parts:
        package = pure.parts[pure.parts.index("node_modules") + 1]
        return package == ".bin" or not package.startswith(".")
    if _TOOL_FOLDERS & {*parts} or parts[-2:] == ("vendor", "bin"):
        return True
    return (own_kind(path) == "how" or stands_for_a_runner(path)) and "/".join(parts) in folders


def own_kind(path: str) -> OwnKind | None:
    """Whether a file is a check's own, by its name and place; None of what is checked."""
    pure = PurePosixPath(path)
    if _HOW.fullmatch(pure.name) or _SCRIPT_FOLDERS & {*pure.parts[:-1]}:
        return "how"
    if _TEST.fullmatch(pure.name) or _TEST_FOLDERS & {*pure.parts[:-1]}:
        return "test"
    return None


def own_files_in(changed: Mapping[str, str], links: Mapping[str, str] | None = None) -> tuple[OwnFile, ...]:
    """The files of a check among those that a change touched (`Lent.changed`). What a link leads to (`Lent.links`) is what
    the link is: or a Makefile that is one could be edited under its other name.
    """
    led = [(target, link) for link, target in (links or {}).items()]

    def kind_of(path: str, status: str) -> OwnKind | None:
        if status == "A" and stands_for_a_runner(path):  # one that was there before is code like any other
            return "how"
        names = [path, *(link + path[len(target) :] for target, link in led if f"{path}/".startswith(f"{target}/"))]
        return next((kind for kind in map(own_kind, names) if kind is not None), None)

    kinds = ((path, kind_of(path, status), status) for path, status in sorted(changed.items()))
    return tuple(OwnFile(path, kind, status) for path, kind, status in kinds if kind is not None)


def as_before(own: Iterable[OwnFile], base: str) -> dict[str, str | None]:
    """What to change in a tree so that the check's own files are as in `base`, for `Lent.mixed`."""
    return {file.path: None if file.status == "A" else base for file in own}
