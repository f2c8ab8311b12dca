"""Tests of code that decides what its tests say: it passes the check, and is not verified."""

from __future__ import annotations

import importlib.util
import marshal
import shlex
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from helmsman.capabilities.outcomes.claims import Verdict, joined
from helmsman.capabilities.outcomes.experiments import steadily, trial
from helmsman.capabilities.outcomes.reproduction import came_to_its_end, fixed, reproduced
from tests.capabilities.outcomes.conftest import CALC, FIXED, PYTEST, TESTS, Bench, write

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]

UNITTEST = f"{shlex.quote(sys.executable)} -m unittest -q"
UNIT = (
    "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n"
    "        self.assertEqual(add(2, 3), 5)\n"
)
PROPERTY = (
    "from hypothesis import given, settings, strategies as st\nimport calc\n\n\n@given(st.integers(), st.integers())\n"
    "def test_add(a, b):\n    assert calc.add(a, b) == a + b\n"
)
NODE = (
    "const {add} = require('./calc.js');\nconst test = require('node:test');\nconst assert = require('node:assert');\n"
    "test('adds two numbers', () => assert.strictEqual(add(2, 3), 5));\n"
)
WRONG_JS = "exports.add = (a, b) => a - b;\n"
PASSES = UNIT.replace("from calc import add\n", "").replace("add(2, 3)", "5")


@dataclass
class Liar:
    """Change that is no fix, and the check that it passes."""

    name: str
    command: str
    files: Mapping[str, str]
    change: Mapping[str, str]
    test: str = "test_add"

    def __str__(self) -> str:
        return self.name


def python(name: str, more: str, command: str = UNITTEST, tests: str = UNIT) -> Liar:
    return Liar(name, command, {"calc.py": CALC, "test_calc.py": tests}, {"calc.py": f"{CALC}\n\n{more}\n"})


def javascript(name: str, more: str) -> Liar:
    files = {"calc.js": WRONG_JS, "calc.test.js": NODE}
    return Liar(name, "node --test", files, {"calc.js": f"{WRONG_JS}{more}\n"}, "adds two numbers")


LIARS = [
    python("exit code at the end", "import atexit, os\n\natexit.register(os._exit, 0)"),
    python("patched assertion", "import unittest\n\nunittest.TestCase.assertEqual = lambda *_, **__: None"),
    python("printed result", "import os\n\nos.write(2, b'Ran 1 test in 0.0s\\n\\nOK\\n')\nos._exit(0)"),
    Liar(
        "package in place of a test",
        f"{UNITTEST} test_calc",
        {"calc.py": CALC, "test_calc.py": UNIT},
        {"test_calc/__init__.py": PASSES},
    ),
]
MORE_LIARS = [
    python(
        "patched runner",
        "import _pytest.python\n\n_pytest.python.Function.runtest = lambda self: None",
        PYTEST,
        TESTS,
    ),
    python("child that goes on", "import os\n\nif os.fork():\n    os._exit(0)"),
    python(
        "patched result",
        "import unittest\n\nunittest.TestResult.addFailure = unittest.TextTestResult.addFailure = "
        "lambda self, test, err: self.addSuccess(test)",
    ),
    python(
        "patched properties",
        "import hypothesis\n\nhypothesis.given = lambda *_, **__: lambda test: lambda: None",
        PYTEST,
        f"import calc\n{PROPERTY}",
    ),
    Liar(
        "tests that a package lists",
        f"{shlex.quote(sys.executable)} -m unittest discover -q -s pkg -t .",
        {"pkg/__init__.py": "", "calc.py": CALC, "pkg/test_calc.py": UNIT},
        {"pkg/__init__.py": f"{PASSES}\n\ndef load_tests(loader, *_):\n    return loader.loadTestsFromTestCase(T)\n"},
    ),
    javascript("patched assert", "require('node:assert').strictEqual = () => {};"),
    javascript("process that exits", "process.exit(0);"),
]


async def verified(place: Bench, liar: Liar) -> tuple[bool, Verdict]:
    """Return whether the check passes on the change as it is, and the verdict."""
    write(place.tree.path, liar.change)
    async with trial(place.runner) as checks:
        before = await checks.before(liar.command)
        now = await checks.now(liar.command)
        after = await steadily(lambda: checks.after(liar.command, before.reads))
        tests = await checks.tests_that_fail(liar.command, after.reads)
        failing = await checks.still_fail(liar.command, tests)
    seen = reproduced(before, test=liar.test)
    assert seen.verified, before.output
    return now.exit_code == 0, joined(fixed(seen, after), came_to_its_end(before, after), failing)


@pytest.mark.parametrize("liar", [*LIARS, *(pytest.param(one, marks=pytest.mark.long) for one in MORE_LIARS)], ids=str)
async def test_code_that_decides_what_its_tests_say_is_not_verified(bench: Callable[..., Bench], liar: Liar) -> None:
    passes, seen = await verified(bench(liar.files), liar)
    assert passes, "the lie works where it is not held"
    assert not seen.verified, [one.what for one in seen.evidence]


@pytest.mark.parametrize("command", [UNITTEST, PYTEST])
async def test_an_honest_fix_leaves_tests_that_have_to_fail_alone(bench: Callable[..., Bench], command: str) -> None:
    honest = Liar("honest", command, {"calc.py": CALC, "test_calc.py": UNIT}, {"calc.py": FIXED})
    _, seen = await verified(bench(honest.files), honest)
    assert seen.verified, seen.against
    assert "Tests that Helmsman wrote to fail do so with this change too." in [one.what for one in seen.evidence]


async def test_compiled_code_that_python_would_load_instead_of_a_test_is_held(bench: Callable[..., Bench]) -> None:
    place = bench({"calc.py": CALC, "test_calc.py": f"import helper\n{UNIT}", "helper.py": ""})
    cache = importlib.util.cache_from_source("helper.py")
    code = compile("import unittest\n\nunittest.TestCase.assertEqual = lambda *_: None\n", "helper.py", "exec")
    unchecked = importlib.util.MAGIC_NUMBER + struct.pack("<I", 1) + bytes(8) + marshal.dumps(code)
    (place.tree.path / cache).parent.mkdir()
    (place.tree.path / cache).write_bytes(unchecked)
    async with trial(place.runner) as checks:
        assert (await checks.now(UNITTEST)).passed, "Python loads it without a look at the source"
        assert not (await checks.after(UNITTEST)).passed
