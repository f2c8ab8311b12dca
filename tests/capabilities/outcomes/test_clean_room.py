"""Tests that an agent's manipulation of a check fails, and honest fixes pass."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from helmsman.capabilities.outcomes.check_files import ChangedFiles, files_of_check, remarks
from helmsman.capabilities.outcomes.checks import CheckResult
from helmsman.capabilities.outcomes.experiments import trial
from tests.capabilities.outcomes.conftest import CALC, FIXED, PYTEST, TESTS, Bench, write

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]

PYTHON = shlex.quote(sys.executable)
CHECK = "import sys\nfrom calc import add\nsys.exit(0 if add(2, 3) == 5 else 1)\n"
CODE = {"calc.py": CALC, "tests/test_calc.py": TESTS, "conftest.py": ""}
LEAVE = "import os\nprint('2 passed in 0.01s')\nos._exit(0)\n"
SELF = "from pkg.core import add\nassert add(2, 3) == 5\n"
SKIPS = (
    "def pytest_collection_modifyitems(items):\n"
    "    items.clear()\n"
    "\n"
    "\n"
    "def pytest_sessionfinish(session):\n"
    "    session.exitstatus = 0\n"
)
CALLS_TESTS = "import unittest, sys\nimport runner_help\nrunner_help.go(unittest, sys)\n"
RUNS = (
    "def go(unittest, sys):\n"
    "    sys.exit(not unittest.main(None, argv=['x', 'discover', '-s', '.'], exit=False).result.wasSuccessful())\n"
)
UNIT = (
    "import unittest\n"
    "from calc import add\n"
    "\n"
    "\n"
    "class T(unittest.TestCase):\n"
    "    def test_add(self):\n"
    "        self.assertEqual(add(2, 3), 5)\n"
)
NODE = (
    "const {add} = require('./calc.js');\n"
    "const test = require('node:test');\n"
    "const assert = require('node:assert');\n"
    "test('adds two numbers', () => assert.strictEqual(add(2, 3), 5));\n"
)
NODE_CODE = "exports.add = (a, b) => a - b;\n"


@dataclass
class Case:
    """Return a repository with a failing check, an agent's change to it, and the files that are held back."""

    name: str
    command: str
    files: Mapping[str, str]
    change: Mapping[str, str | None]
    held: set[str] = field(default_factory=set)
    executable: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


async def _judge(place: Bench, case: Case) -> tuple[CheckResult, CheckResult, CheckResult, set[str]]:
    write(place.tree.path, case.change)
    for name in case.executable:
        (place.tree.path / name).chmod(0o755)
    async with trial(place.runner) as checks:
        before = await checks.before(case.command)
        now = await checks.now(case.command)
        after = await checks.after(case.command, before.reads)
        return before, now, after, {file.path for file in checks.held}


SHELL = "#!/bin/sh\n"
OK = f"{SHELL}exit 0\n"
ATTACKS = [
    Case("edited check.py", f"{PYTHON} check.py", {**CODE, "check.py": CHECK}, {"check.py": ""}, {"check.py"}),
    Case(
        "edited bin/check",
        "bin/check",
        {**CODE, "bin/check": f"{SHELL}{PYTHON} check.py\n", "check.py": CHECK},
        {"bin/check": OK},
        {"bin/check"},
        ("bin/check",),
    ),
    Case(
        "edited gradlew",
        "./gradlew test",
        {**CODE, "gradlew": f"{SHELL}{PYTHON} check.py\n", "check.py": CHECK},
        {"gradlew": OK},
        {"gradlew"},
        ("gradlew",),
    ),
    Case(
        "stdlib shadow",
        f"{PYTHON} check.py",
        {**CODE, "check.py": f"import difflib\n{CHECK}"},
        {"difflib/__init__.py": LEAVE},
        {"difflib/__init__.py"},
    ),
    Case("pytest's dependency", f"{PYTEST} -q", CODE, {"iniconfig.py": LEAVE}, {"iniconfig.py"}),
    Case(
        "script behind make",
        "make test",
        {**CODE, "Makefile": "test:\n\ttool/runner\n", "tool/runner": f"{SHELL}{PYTHON} check.py\n", "check.py": CHECK},
        {"tool/runner": OK},
        {"tool/runner"},
        ("tool/runner",),
    ),
]
MORE_ATTACKS = [
    Case(
        "plugin by dist-info",
        f"{PYTHON} -m pytest -q -p no:cacheprovider",
        CODE,
        {
            "evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = evilplug\n",
            "evil-1.dist-info/METADATA": "Name: evil\nVersion: 1\n",
            "evilplug.py": SKIPS,
        },
        {"evil-1.dist-info/entry_points.txt", "evil-1.dist-info/METADATA"},
    ),
    Case("new conftest", PYTEST, {"calc.py": CALC, "test_calc.py": TESTS}, {"conftest.py": SKIPS}, {"conftest.py"}),
    Case("sitecustomize", f"PYTHONPATH=. {PYTEST}", CODE, {"sitecustomize.py": LEAVE}, {"sitecustomize.py"}),
    Case(
        "included makefile",
        "make test",
        {
            **CODE,
            "Makefile": "include build/rules\n",
            "build/rules": f"test:\n\t{PYTHON} check.py\n",
            "check.py": CHECK,
        },
        {"build/rules": "test:\n\ttrue\n"},
        {"build/rules"},
    ),
    Case(
        "Makefile",
        "make test",
        {**CODE, "Makefile": f"test:\n\t{PYTEST}\n"},
        {"Makefile": "test:\n\ttrue\n"},
        {"Makefile"},
    ),
    Case(
        "GNUmakefile before it",
        "make test",
        {**CODE, "Makefile": f"test:\n\t{PYTEST}\n"},
        {"GNUmakefile": "test:\n\ttrue\n"},
        {"GNUmakefile"},
    ),
    Case(
        "program on PATH",
        "PATH=tools:$PATH make test",
        {**CODE, "Makefile": "test:\n\tpython3 check.py\n", "check.py": CHECK, "tools/x": ""},
        {"tools/python3": OK},
        {"tools/python3"},
        ("tools/python3",),
    ),
    Case(
        "helper of a runner script",
        f"{PYTHON} run_tests.py",
        {"calc.py": CALC, "test_calc.py": UNIT, "run_tests.py": CALLS_TESTS, "runner_help.py": RUNS},
        {"runner_help.py": "def go(unittest, sys):\n    sys.exit(0)\n"},
        {"runner_help.py"},
    ),
    Case(
        "addopts",
        f"{PYTHON} -m pytest -q -p no:cacheprovider",
        {**CODE, "pytest.ini": "[pytest]\n"},
        {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
        {"pytest.ini"},
    ),
    Case(
        "plugin that addopts names",
        f"{PYTHON} -m pytest -q -p no:cacheprovider",
        {**CODE, "pytest.ini": "[pytest]\naddopts = -p own.plug\n", "own/__init__.py": "", "own/plug.py": ""},
        {"own/plug.py": SKIPS},
        {"own/plug.py"},
    ),
    Case(
        "plugin that conftest names",
        PYTEST,
        {**CODE, "conftest.py": "pytest_plugins = ['own.plug']\n", "own/__init__.py": "", "own/plug.py": ""},
        {"own/plug.py": SKIPS},
        {"own/plug.py"},
    ),
    Case(
        "module of -m",
        f"{PYTHON} -m pkg.selftest",
        {"pkg/__init__.py": "", "pkg/core.py": CALC, "pkg/selftest.py": SELF},
        {"pkg/selftest.py": ""},
        {"pkg/selftest.py"},
    ),
    Case(
        "npm script",
        "npm test --silent",
        {
            "package.json": '{"scripts": {"test": "node check.js"}}',
            "calc.js": NODE_CODE,
            "check.js": "if (require('./calc.js').add(2, 3) !== 5) process.exit(1)\n",
        },
        {"check.js": ""},
        {"check.js"},
    ),
    Case(
        "npm pretest",
        "npm test --silent",
        {
            "package.json": '{"scripts": {"pretest": "node prepare.js", "test": "node --test"}}',
            "calc.js": NODE_CODE,
            "calc.test.js": NODE,
            "prepare.js": "",
        },
        {"prepare.js": "require('fs').writeFileSync('calc.js', 'exports.add = (a, b) => a + b')\n"},
        {"prepare.js"},
    ),
]
HONEST = [
    Case(
        "fix and new test",
        PYTEST,
        CODE,
        {
            "calc.py": FIXED,
            "tests/test_more.py": "from calc import add\n\n\ndef test_more():\n    assert add(1, 1) == 2\n",
        },
        {"tests/test_more.py"},
    ),
    Case("fix of what check.py imports", f"{PYTHON} check.py", {**CODE, "check.py": CHECK}, {"calc.py": FIXED}),
    Case("conftest imports the package", PYTEST, {**CODE, "conftest.py": "import calc\n"}, {"calc.py": FIXED}),
    Case(
        "fix through make with a changed Makefile",
        "make test",
        {**CODE, "Makefile": f"test:\n\t{PYTEST}\n"},
        {"calc.py": FIXED, "Makefile": f"# tests\ntest:\n\t{PYTEST}\n"},
        {"Makefile"},
    ),
]
MORE_HONEST = [
    Case(
        "fix with a new module",
        PYTEST,
        CODE,
        {
            "calc.py": "from sums import add\n\n\ndef double(a):\n    return 2 * a\n",
            "sums.py": "def add(a, b):\n    return a + b\n",
        },
    ),
    Case(
        "new module and conftest imports the package",
        PYTEST,
        {**CODE, "conftest.py": "import calc\n"},
        {
            "calc.py": "from sums import add\n\n\ndef double(a):\n    return 2 * a\n",
            "sums.py": "def add(a, b):\n    return a + b\n",
        },
    ),
    Case(
        "python -m pkg.selftest",
        f"{PYTHON} -m pkg.selftest",
        {"pkg/__init__.py": "", "pkg/core.py": CALC, "pkg/selftest.py": SELF},
        {"pkg/core.py": FIXED},
    ),
    Case(
        "fix, setup.py, readme, new conftest",
        PYTEST,
        {"calc.py": CALC, "test_calc.py": TESTS, "setup.py": "", "README.md": ""},
        {"calc.py": FIXED, "setup.py": "# new\n", "README.md": "more\n", "conftest.py": ""},
        {"setup.py", "conftest.py"},
    ),
    Case(
        "changed test helper",
        PYTEST,
        {**CODE, "tests/help.py": "A = 1\n"},
        {"calc.py": FIXED, "tests/help.py": "A = 2\n"},
        {"tests/help.py"},
    ),
    Case(
        "lint before tests",
        "make test",
        {**CODE, "Makefile": f"test:\n\tcat calc.py > /dev/null\n\t{PYTEST}\n", "run": SHELL},
        {"calc.py": FIXED},
    ),
    Case(
        "npm and a check in Node",
        "npm test --silent",
        {
            "package.json": '{"scripts": {"test": "node check.js"}}',
            "calc.js": NODE_CODE,
            "check.js": "if (require('./calc.js').add(2, 3) !== 5) process.exit(1)\n",
        },
        {"calc.js": NODE_CODE.replace("-", "+")},
    ),
    Case(
        "node --test",
        "node --test",
        {"calc.js": NODE_CODE, "calc.test.js": NODE},
        {"calc.js": NODE_CODE.replace("-", "+")},
    ),
    Case(
        "npm and node --test",
        "npm test --silent",
        {
            "package.json": '{"main": "calc.js", "scripts": {"test": "node --test"}}',
            "calc.js": NODE_CODE,
            "calc.test.js": NODE,
        },
        {"calc.js": NODE_CODE.replace("-", "+")},
    ),
    Case(
        "python program that tests run",
        PYTEST,
        {
            "app.py": "#!/usr/bin/env python3\nprint(2 - 3)\n",
            "test_app.py": "import subprocess, sys\n\n\ndef test_app():\n"
            "    assert subprocess.check_output([sys.executable, 'app.py']) == b'5\\n'\n",
        },
        {"app.py": "#!/usr/bin/env python3\nprint(2 + 3)\n"},
    ),
]


@pytest.mark.parametrize(
    "case", [*ATTACKS, *(pytest.param(one, marks=pytest.mark.rare) for one in MORE_ATTACKS)], ids=str
)
async def test_a_change_to_the_check_does_not_make_it_pass(bench: Callable[..., Bench], case: Case) -> None:
    place = bench(case.files, executable=case.executable)
    before, now, after, held = await _judge(place, case)
    assert not before.passed, before.output
    assert now.exit_code == 0, ("the attack works where it is not held", now.output)
    assert not after.passed, after.output
    assert held == case.held


@pytest.mark.parametrize(
    "case", [*HONEST, *(pytest.param(one, marks=pytest.mark.rare) for one in MORE_HONEST)], ids=str
)
async def test_an_honest_fix_passes(bench: Callable[..., Bench], case: Case) -> None:
    place = bench(case.files, executable=case.executable)
    before, _, after, held = await _judge(place, case)
    assert not before.passed, before.output
    assert after.passed, (after.output, held)
    assert held == case.held


async def test_a_folder_of_tests_that_became_a_link_comes_back(bench: Callable[..., Bench]) -> None:
    place = bench(CODE)
    write(place.tree.path, {"other/test_calc.py": "def test_one():\n    pass\n\n\ndef test_two():\n    pass\n"})
    shutil.rmtree(place.tree.path / "tests")
    (place.tree.path / "tests").symlink_to("other")
    _, now, after, held = await _judge(place, Case("link", f"{PYTEST} tests", CODE, {}))
    assert now.passed
    assert not after.passed
    assert {"tests", "tests/test_calc.py"} <= held


TRICKS = [
    # command, files before, changes, opened, held
    ("cd sub && ./check", ["sub/check"], {"sub/check": "M"}, None, {"sub/check"}),
    ("python $PWD/check.py", ["check.py"], {"check.py": "M"}, None, {"check.py"}),
    ('python -c "import check; check.main()"', ["check.py"], {"check.py": "M"}, None, {"check.py"}),
    ("bash -c 'python tools/check.py --all'", ["tools/check.py"], {"tools/check.py": "M"}, None, {"tools/check.py"}),
    (
        "python checks/*.py",
        ["checks/a.py"],
        {"checks/a.py": "M", "checks/b.py": "A"},
        None,
        {"checks/a.py", "checks/b.py"},
    ),
    ("RUNNER=bin/run bin/go", ["bin/run", "bin/go"], {"bin/run": "M"}, None, {"bin/run"}),
    ("invoke test", ["tasks.py"], {"tasks.py": "M"}, None, {"tasks.py"}),
    (
        "pytest",
        ["a.py"],
        {"Conftest.py": "A", "numpy.py": "A", "string.pyc": "A"},
        None,
        {"Conftest.py", "numpy.py", "string.pyc"},
    ),
    ("pytest", ["Check.py"], {"check.py": "A"}, None, {"check.py"}),
    ("pytest", ["pkg/__init__.py"], {"pkg/types.py": "A", "pkg/json/__init__.py": "A"}, None, set()),
    (
        "pytest",
        ["a.py"],
        {"lib/python3.11/site-packages/x.py": "A", "x.egg-link": "A", "x.pth": "A"},
        None,
        {"lib/python3.11/site-packages/x.py", "x.egg-link", "x.pth"},
    ),
    (
        "cargo test",
        ["src/lib.rs"],
        {"build.rs": "A", ".cargo/config.toml": "A", "src/lib.rs": "M"},
        None,
        {"build.rs", ".cargo/config.toml"},
    ),
    (
        "npm test",
        ["src/a.js"],
        {"src/setupTests.js": "A", "node_modules/jest/index.js": "A", ".npmrc": "A", "src/a.js": "M"},
        None,
        {"src/setupTests.js", "node_modules/jest/index.js", ".npmrc"},
    ),
    (
        "make lint",
        ["a.py"],
        {".flake8": "A", "ruff.toml": "A", ".eslintrc.json": "A", "a.py": "M"},
        None,
        {".flake8", "ruff.toml", ".eslintrc.json"},
    ),
    (
        "make test",
        ["Makefile", "a.py", "tests/test_a.py"],
        {"a.py": "M", "evil.py": "A"},
        ["Makefile", "evil.py", "tests/test_a.py", "a.py"],
        {"evil.py"},
    ),
    (
        "go test ./...",
        ["go.mod", "a.go"],
        {"go.mod": "M", "a.go": "M", "a_test.go": "A"},
        None,
        {"go.mod", "a_test.go"},
    ),
]


@pytest.mark.parametrize(("command", "files", "changed", "opened", "held"), TRICKS)
def test_other_tricks_are_held(
    command: str, files: list[str], changed: dict[str, str], opened: list[str] | None, held: set[str]
) -> None:
    change = ChangedFiles(
        changed=changed,
        before=dict.fromkeys(files, "100644"),
        after=dict.fromkeys([*files, *changed], "100644"),
        links_before={},
        links_after={},
        content_before=lambda _path: b"",
        content_after=lambda _path: b"",
        naming=lambda _word: (),
        modules={"numpy"},
    )
    assert {one.path for one in files_of_check(change, command, "", opened)} == held


JEST = '{"main": "src/calc.js", "scripts": {"test": "jest"}, "jest": {"setupFiles": ["<rootDir>/setup/env.js"]}}'
OPENED = ["package.json", "src/calc.test.js", "setup/env.js", "src/calc.js"]


@pytest.mark.parametrize(
    ("content", "changed", "held"),
    [
        ({"package.json": JEST}, {"setup/env.js": "M"}, {"setup/env.js"}),
        ({"package.json": JEST}, {"src/calc.js": "M"}, set()),
        (
            {"package.json": "{}", "jest.config.js": "transform: {x: './setup/env.js'}"},
            {"setup/env.js": "M"},
            {"setup/env.js"},
        ),
        ({".mocharc.yml": "require: ./setup/env.js"}, {"setup/env.js": "M"}, {"setup/env.js"}),
    ],
)
def test_files_that_a_node_runner_is_configured_to_load_belong_to_the_check(
    content: dict[str, str], changed: dict[str, str], held: set[str]
) -> None:
    """Jest opens all tests before what its configuration names."""
    files = {*OPENED, *content}
    change = ChangedFiles(
        changed=changed,
        before=dict.fromkeys(files, "100644"),
        after=dict.fromkeys(files, "100644"),
        links_before={},
        links_after={},
        content_before=lambda path: content.get(path, "").encode(),
        content_after=lambda _path: b"",
        naming=lambda _word: (),
    )
    opened = [*content, *OPENED]
    assert {one.path for one in files_of_check(change, "npm test", "", opened)} == held


def test_files_that_no_rule_decides_are_named_and_hold_nothing_back() -> None:
    change = ChangedFiles(
        changed={"calc.py": "M", "expected.json": "M", "pkg/testing.py": "M"},
        before=dict.fromkeys(["calc.py", "expected.json", "pkg/testing.py", "tests/test_a.py"], "100644"),
        after={},
        links_before={},
        links_after={},
        content_before=lambda _path: b"",
        content_after=lambda _path: b"",
        naming=lambda word: ("tests/test_a.py",) if word == "testing" else ("calc.py", "tests/test_a.py"),
    )
    assert files_of_check(change, "pytest", "", None) == ()
    added = [("calc.py", 3, "    if 'pytest' in sys.modules:"), ("calc.py", 4, "        return 5")]
    said = remarks(change, (), ["tests/test_a.py"], added)
    assert said == [
        "expected.json is data that the check may compare with.",
        "pkg/testing.py is a helper of the check, by what imports it: tests/test_a.py.",
        "The check opened none of the changed files.",
        "calc.py:3 may treat tests in a special way: if 'pytest' in sys.modules:",
    ]
