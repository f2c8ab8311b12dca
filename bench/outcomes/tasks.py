"""Tasks of the outcome benchmark: real code from sdists, each with a seeded defect, a check that shows it and a hidden test.

`tasks.toml` names the package, the file, the defect and the calls. The right results are computed from the code before
the defect is seeded, so that no expectation is written by hand. Nothing of the packages is committed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.place import NothingToMeasure
from helmsman.testing.repository import git, make_repository

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE = Path(__file__).parent
CACHE = _HERE.parents[1] / ".cache" / "sdists"
_SECONDS = 30
_FETCH_SECONDS = 90
"""pip builds the metadata of an sdist in an environment of its own, which takes a while on a busy machine."""


@dataclass(frozen=True, slots=True)
class Source:
    """Package with the files that tasks take from it: path in the sdist, path in the repository of a task."""

    requirement: str
    files: tuple[tuple[str, str], ...]

    def fetch(self) -> Path:
        """Return the unpacked sdist.

        Raises:
            NothingToMeasure: The package index does not have it.
        """
        folder = CACHE / self.requirement.replace("==", "-")
        if not folder.is_dir():
            CACHE.mkdir(parents=True, exist_ok=True)
            options = ("--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(CACHE))
            command = [sys.executable, "-m", "pip", "download", *options, self.requirement]
            try:
                done = subprocess.run(command, capture_output=True, check=False, timeout=_FETCH_SECONDS)
            except subprocess.TimeoutExpired:
                raise NothingToMeasure(f"{self.requirement} was not fetched in {_FETCH_SECONDS} s.") from None
            found = sorted(CACHE.glob(f"{folder.name}.tar.gz"))
            if not found:
                raise NothingToMeasure(f"{self.requirement} cannot be fetched: {done.stderr.decode()[-300:]}")
            with tarfile.open(found[0]) as archive:
                archive.extractall(CACHE, filter="data")
        return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Defect in a file: line `line` is `wrong` instead of `right`.

    `shown` are the calls of the failing check, `hidden` those of the hidden test. `over` (line, right, other) is another
    change of the right code that passes the check and fails the hidden test.
    """

    number: int
    source: str
    file: str
    function: str
    line: int
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    over: tuple[int, tuple[str, ...], tuple[str, ...]] | None = None

    @property
    def name(self) -> str:
        return f"task-{self.number:03} {self.function}"

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")

    @property
    def language(self) -> str:
        return "Python" if self.is_python else "JavaScript"

    @property
    def check(self) -> str:
        return f"{sys.executable} -m unittest -q" if self.is_python else "node --test"

    @property
    def test_file(self) -> str:
        return "test_shown.py" if self.is_python else "shown.test.js"

    @property
    def first_test(self) -> str:
        """Name of the test that shows the defect."""
        return f"test_{self.function}_0" if self.is_python else f"{self.function} 0"

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")

    def right_text(self) -> str:
        """Return the file without the defect."""
        for path, to in SOURCES[self.source].files:
            if self.file == to or self.file.startswith(f"{to}/"):
                return (SOURCES[self.source].fetch() / path / self.file.removeprefix(to).lstrip("/")).read_text("utf-8")
        raise KeyError(self.file)

    def wrong_text(self) -> str:
        """Return the file with the defect."""
        return replaced(self.right_text(), self.line, self.right, self.wrong)

    def expected(self) -> dict[str, str]:
        """Return the right results of all calls, as the tests spell them."""
        return _expected(self)

    def tests(self, calls: Sequence[str]) -> str:
        """Return a test file for calls."""
        rows = [(number, call, self.expected()[call]) for number, call in enumerate(calls)]
        if self.is_python:
            head = f"import unittest\n\nfrom {self.module} import *\nfrom {self.module} import {self.function}\n\n\n"
            tests = "".join(
                f"    def test_{self.function}_{number}(self):\n        self.assertEqual(repr({call}), {value!r})\n\n"
                for number, call, value in rows
            )
            return f"{head}class Shown(unittest.TestCase):\n{tests}"
        head = f"const test = require('node:test');\nconst assert = require('node:assert');\n{_JS}"
        return head + "".join(
            f"test('{self.function} {number}', () => assert.strictEqual(shown({call}), {json.dumps(value)}));\n"
            for number, call, value in rows
        )

    def make(self, folder: Path, *, is_right: bool = False) -> Path:
        """Create the repository of the task, with the check, and with the defect unless `is_right`."""
        root = make_repository(folder)
        self._write(root, self.right_text() if is_right else self.wrong_text())
        (root / self.test_file).write_text(self.tests(self.shown), encoding="utf-8")
        (root / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message=All")
        return root

    def _write(self, root: Path, text: str) -> None:
        folder = SOURCES[self.source].fetch()
        for path, to in SOURCES[self.source].files:
            origin = folder / path
            for one in [origin] if origin.is_file() else origin.rglob("*.py"):
                below = one.relative_to(origin)
                if below.parts[:1] != ("tests",):
                    (root / to / below).parent.mkdir(parents=True, exist_ok=True)
                    (root / to / below).write_bytes(one.read_bytes())
        (root / self.file).write_text(text, encoding="utf-8")

    def is_right(self, root: Path) -> bool:
        """Run the hidden test on a directory."""
        name = "test_hidden.py" if self.is_python else "hidden.test.js"
        (root / name).write_text(self.tests([*self.shown, *self.hidden]), encoding="utf-8")
        command = [sys.executable, "-B", "-m", "unittest", "-q", "test_hidden"] if self.is_python else ["node", name]
        try:
            return not subprocess.run(command, cwd=root, capture_output=True, timeout=_SECONDS, check=False).returncode
        except subprocess.TimeoutExpired:
            return False
        finally:
            (root / name).unlink()


_JS = """const _ = require('./underscore.js');
const plain = (key, value) =>
  value === undefined ? '(undefined)' : Math.abs(value) === Infinity ? `(${value})` : value;
const shown = value => JSON.stringify([value], plain);
"""
SOURCES = {
    "inflection": Source("inflection==0.5.1", (("inflection/__init__.py", "inflection.py"),)),
    "toolz": Source("toolz==1.2.0", (("toolz", "toolz"),)),
    "boltons": Source("boltons==26.2.0", (("boltons", "boltons"),)),
    "underscore": Source("js.underscore==1.5.2", (("js/underscore/resources/underscore.js", "underscore.js"),)),
}


def replaced(text: str, line: int, old: Sequence[str], new: Sequence[str]) -> str:
    """Replace lines of a text, which must be there."""
    lines = text.split("\n")
    assert lines[line - 1 : line - 1 + len(old)] == [*old], (line, old)
    return "\n".join([*lines[: line - 1], *new, *lines[line - 1 + len(old) :]])


@cache
def all_tasks() -> tuple[Task, ...]:
    """Return all tasks."""
    rows = tomllib.loads((_HERE / "tasks.toml").read_text(encoding="utf-8"))["task"]
    return tuple(_task(number, row) for number, row in enumerate(rows, 1))


def _task(number: int, row: dict[str, Any]) -> Task:
    over = (row.pop("over_line"), tuple(row.pop("over_right")), tuple(row.pop("over"))) if "over" in row else None
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Task(number=number, over=over, **given)


@cache
def _expected(task: Task) -> dict[str, str]:
    calls = [*task.shown, *task.hidden]
    if task.is_python:
        printed = f"import json\nfrom {task.module} import *\nfrom {task.module} import {task.function}\n"
        printed += f"print(json.dumps([{', '.join(f'repr({call})' for call in calls)}]))"
        command = [sys.executable, "-B", "-c", printed]
    else:
        command = ["node", "-e", f"{_JS}console.log(JSON.stringify([{', '.join(f'shown({one})' for one in calls)}]))"]
    folder = CACHE / f"right-{task.source}"
    if not folder.is_dir():
        task._write(folder, task.right_text())  # noqa: SLF001 - its own method
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_SECONDS, check=True)
    return dict(zip(calls, json.loads(done.stdout), strict=True))
