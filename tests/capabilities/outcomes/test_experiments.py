"""Outcomes checked by running: real pytest and make in the real sandbox, and the lies that a model can tell."""

from __future__ import annotations

import py_compile
import shlex
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.capabilities.outcomes import experiments
from helmsman.capabilities.outcomes.checks import CheckResult
from helmsman.capabilities.outcomes.claims import CitedLines
from helmsman.capabilities.outcomes.differential import interfaces
from helmsman.capabilities.outcomes.experiments import lines_taken_out, operators_changed, trial
from helmsman.capabilities.outcomes.reproduction import fixed, reproduced
from helmsman.capabilities.repository_commands import CommandAllowance
from helmsman.errors import CheckRefused, Unsupported
from helmsman.git import tree_changes
from helmsman.testing.repository import make_repository
from tests.capabilities.outcomes.conftest import CALC, FIXED, PYTEST, TESTS, Bench

pytestmark = [pytest.mark.long, pytest.mark.anyio, pytest.mark.needs_git]

MAKE = f"test:\n\t{PYTEST}\n"
IGNORED = "__pycache__/\n.venv/\nbin/\nbuild/\nnode_modules/\n"
FILES = {"calc.py": CALC, "tests/test_calc.py": TESTS, "conftest.py": "", "Makefile": MAKE}


async def test_a_fix_is_verified_by_the_named_failure_before_and_a_pass_after(bench: Callable[..., Bench]) -> None:
    place = bench(FILES)
    place.put({"calc.py": FIXED, "tests/test_more.py": "def test_more():\n    assert True\n"})
    before_diff = tree_changes.diff(place.tree).patch
    async with trial(place.runner) as checks:
        seen = reproduced(await checks.before("make test"), symptom="test_add fails with AssertionError")
        assert (seen.verified, seen.how, seen.tests) == (True, "test", ("tests/test_calc.py::test_add",))
        done = fixed(seen, await checks.after("make test"))
        assert done.verified, done.to_json()
        assert not await checks.edited()
    assert place.asked == ["make test"]
    assert tree_changes.diff(place.tree).patch == before_diff


async def test_tests_that_were_changed_to_pass_and_an_edited_check_count_for_nothing(
    bench: Callable[..., Bench],
) -> None:
    place = bench({**FILES, "tests/more.test.js": "check()\n"})
    place.put(
        {
            "tests/test_calc.py": TESTS.replace("== 5", "== -1"),
            "Makefile": "test:\n\ttrue\n",
            "GNUmakefile": "test:\n\ttrue\n",
            "conftest.py": "def pytest_collection_modifyitems(items):\n    items.clear()\n",
            "tests/conftest.py": "def pytest_collection_modifyitems(items):\n    items.clear()\n",
            "tests/more.test.js": "// \0\nok()\n",
            ".gitattributes": "*.py binary\n",
        }
    )
    assert "-    assert add(2, 3) == 5" in tree_changes.diff(place.tree).text, "nothing hides what was changed"
    async with trial(place.runner) as checks:
        assert (await checks.now("make test")).passed, "which is what its agent saw"
        seen = reproduced(await checks.before("make test"), test="test_add")
        done = fixed(seen, await checks.after("make test"))
        assert not done.verified
        assert any("Still failing: tests/test_calc.py::test_add" in one.what for one in done.against)
        edited = await checks.edited()
    assert [one.path for one in edited] == [
        ".gitattributes",
        "GNUmakefile",
        "Makefile",
        "conftest.py",
        "tests/conftest.py",
        "tests/more.test.js",
        "tests/test_calc.py",
    ]


async def test_a_check_is_not_edited_under_another_name_nor_run_elsewhere(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    place = bench({**FILES, "build/rules": MAKE, "app/calc.py": ""}, links={"Makefile": "build/rules"})
    place.put({"build/rules": "test:\n\ttrue\n"})
    async with trial(place.runner) as checks:
        assert not (await checks.after("make test")).passed, "with the rules as they were"
        assert [one.in_words for one in checks.held] == ["build/rules was changed (Makefile leads to it)"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (place.tree.path / "app" / "calc.py").unlink()
    (place.tree.path / "app").rmdir()
    (place.tree.path / "app").symlink_to(elsewhere)
    with pytest.raises(Unsupported, match="no longer a directory of the worktree"):
        await place.with_allowance(CommandAllowance(folder="app")).run("touch made.txt", place.tree.path)
    assert not [*elsewhere.iterdir()]


async def test_files_that_would_not_be_applied_are_not_in_the_clean_room(bench: Callable[..., Bench]) -> None:
    """Ignored files, compiled files, a repository within the tree and a renamed folder are no part of a change."""
    place = bench({**FILES, ".gitignore": IGNORED, "app/more.py": "A = 1\n"})
    forge = "import os\nprint('2 passed in 0.01s')\nos._exit(0)\n"
    sources = {"build/one.py": "def add(a, b):\n    return a + b\n", "own/two.py": "def double(a):\n    return 2 * a\n"}
    place.put(
        {
            **sources,
            "calc.py": "from build.one import add\nfrom own.two import double\n",
            "node_modules/.bin/jest": "exit 0\n",
            ".venv/bin/pytest": forge,
            "bin/sitecustomize.py": forge,
        }
    )
    make_repository(place.tree.path / "own")
    compiled = place.tree.path / "__pycache__" / f"calc.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(
        str(place.tree.path / "calc.py"),
        str(compiled),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    (place.tree.path / "bin").rename(place.tree.path / "build" / "lib")
    assert (await place.runner.run("make test", place.tree.path)).passed, "which is what its agent saw"
    async with trial(place.runner) as checks:
        assert await checks.changed() == {"calc.py": "M"}
        after = await checks.after("make test")
        assert not after.passed
        assert "No module named 'build" in after.output
    assert {name: (place.tree.path / name).read_text(encoding="utf-8") for name in sources} == sources


async def test_no_fix_is_in_a_new_test(bench: Callable[..., Bench]) -> None:
    place = bench(FILES)
    in_a_test = "import calc\n\ncalc.add = lambda a, b: a + b\n\n\ndef test_more():\n    assert True\n"
    place.put({"tests/test_aaa.py": in_a_test})
    async with trial(place.runner) as checks:
        assert (await checks.now("make test")).passed
        assert not (await checks.after("make test")).passed


async def test_nothing_that_a_check_leaves_is_there_for_the_next(bench: Callable[..., Bench]) -> None:
    """Check that code under test which writes to its room, also to installed files, has no effect."""
    place = bench({"a.txt": "a\n", "tool": "mkdir -p lib; echo good > lib/tool"})
    place.runner.set_up = "sh tool"
    async with trial(place.runner) as checks:
        seen = await checks.now("cat lib/tool a.txt; ls; touch left lib/more; echo bad > a.txt")
        assert seen.output.splitlines() == ["good", "a", "README.md", "a.txt", "lib", "tool"]
        seen = await checks.now("cat lib/tool a.txt; ls . lib; echo bad > lib/tool")
        assert "bad" not in seen.output
        assert not {"left", "more"} & {*seen.output.split()}
        assert (await checks.now("cat lib/tool")).output == "good\n", "it is installed again"
    assert not (place.tree.path / "lib").exists()


async def test_a_room_is_beyond_the_reach_of_the_session(bench: Callable[..., Bench]) -> None:
    """What the worktree becomes while a check runs changes nothing, and a check does not see it."""
    place = bench({"a.txt": "a\n"})
    place.put({"a.txt": "b\n"})
    async with trial(place.runner) as checks:
        place.put({"a.txt": "swapped\n"})
        seen = await checks.now(f"cat a.txt; cat {place.tree.path}/a.txt; pwd")
        assert seen.output.startswith("b\n")
        assert "swapped" not in seen.output
        room = seen.output.splitlines()[-1]
        swap = f"echo swapped > {room}/a.txt; ls {room}"
        agent = await place.runner.run(swap, place.tree.path)  # in the sandbox that commands of the session have
        assert agent.exit_code != 0
        assert "a.txt" not in agent.output.splitlines()
    assert tree_changes.diff(place.tree).text.count("+swapped") == 1


async def test_a_fix_that_breaks_another_test_is_none(bench: Callable[..., Bench]) -> None:
    place = bench(FILES)
    place.put({"calc.py": FIXED.replace("2 * a", "a + 3")})
    async with trial(place.runner) as checks:
        seen = reproduced(await checks.before(PYTEST), symptom="add(2, 3) == 5 does not hold: assert -1 == 5")
        done = fixed(seen, await checks.after(PYTEST))
    assert not done.verified
    assert "These did not fail before the change: tests/test_calc.py::test_double." in [
        one.what for one in done.against
    ]


@pytest.mark.rare
async def test_a_missing_dependency_is_no_reproduction(bench: Callable[..., Bench]) -> None:
    place = bench({"calc.py": f"import not_installed\n{CALC}", "tests/test_calc.py": TESTS, "conftest.py": ""})
    async with trial(place.runner) as checks:
        for command, why in (
            (PYTEST, "a dependency is missing"),
            ("no-such-program --test", "a program was not found"),
            ("make test", "a program was not found"),
            (f"{PYTEST} -k nothing_is_named_so", "a dependency is missing"),
        ):
            result = await checks.before(command)
            assert not result.passed
            assert result.not_checked is not None
            assert result.not_checked.why == why
            seen = reproduced(result, symptom="add(2, 3) gives -1, not 5: AssertionError")
            assert not seen.verified, seen
            assert not reproduced(result, test="test_add").verified
            assert not reproduced(result).verified
        named = reproduced(await checks.before(PYTEST), symptom="ModuleNotFoundError: No module named 'not_installed'")
        assert (named.verified, named.how) == (True, "message"), "that very message was named"


ADDS = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "conftest.py": "",
    "tests/test_old.py": "from calc import add\n\n\ndef test_old():\n    assert add(2, 3) == 5\n",
}
EMPTY_TEST = "from calc import add\n\n\ndef test_nothing():\n    add(1, 2)\n    assert True\n"


async def test_new_tests_must_be_able_to_fail(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "MOST_MUTATIONS", 2)
    place = bench(ADDS)
    target = (CitedLines(file="calc.py", start_line=1, end_line=2),)
    real = "from calc import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
    place.put({"tests/test_new.py": EMPTY_TEST})
    async with trial(place.runner) as checks:
        assert (await checks.steady(PYTEST, runs=1))[0].verified
        lie = await checks.can_fail(PYTEST, target)
    assert not lie.verified
    assert "No new test was seen to fail, whatever was wrong with the code." in [one.what for one in lie.against]
    place.put({"tests/test_new.py": real})
    async with trial(place.runner) as checks:
        shown = await checks.can_fail(PYTEST, target)
    assert shown.verified, shown.to_json()
    seen = [one.what for one in shown.evidence]
    assert "Against calc.py without line 2 a new test fails, 3 times of 3: tests/test_new.py::test_sum." in seen
    assert checks.mutants is not None
    assert checks.mutants["tests"] == {"tests/test_new.py::test_sum": "calc.py without line 2"}
    assert checks.mutants["killed"] == checks.mutants["tried"] > 1


@pytest.mark.rare
async def test_the_output_of_a_test_is_not_its_failure(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "MOST_MUTATIONS", 2)
    place = bench(ADDS)
    target = (CitedLines(file="calc.py", start_line=1, end_line=2),)
    said = "FAILED tests/test_new.py::test_nothing - assert 1 == 2"
    forged = f"{EMPTY_TEST}    import sys\n    print({said!r}, file=sys.__stderr__)\n"
    place.put({"tests/test_new.py": forged})
    async with trial(place.runner) as checks:
        assert (await checks.steady(f"{PYTEST} -s", runs=1))[0].verified
        lie = await checks.can_fail(f"{PYTEST} -s", target)  # the old tests fail then, and so does the check
    assert not lie.verified


@pytest.mark.rare
async def test_each_new_test_has_to_fail_against_a_mutant(bench: Callable[..., Bench]) -> None:
    place = bench({"calc.py": "def add(a, b):\n    return a + b\n", "test_old.py": "import unittest\n"})
    test = "import unittest\nfrom calc import add\n\n\nclass New(unittest.TestCase):\n    def test_sum(self):\n"
    test += "        self.assertEqual(add(1, 2), 3)\n\n    def test_nothing(self):\n        self.assertTrue(add)\n"
    place.put({"test_new.py": test})
    async with trial(place.runner) as checks:
        half = await checks.can_fail(f"{sys.executable} -m unittest", (CitedLines(file="calc.py"),))
    assert not half.verified
    seen = [one.what for one in half.against]
    assert seen == ["Whatever was wrong with the code, these new tests passed: test_nothing."]


@pytest.mark.rare
async def test_new_tests_of_new_code_fail_against_the_code_before_or_a_hunk_taken_back(
    bench: Callable[..., Bench],
) -> None:
    place = bench({"calc.py": CALC, "conftest.py": "", "tests/test_old.py": "def test_old():\n    pass\n"})
    place.put({"calc.py": FIXED, "tests/test_new.py": TESTS})
    async with trial(place.runner) as checks:
        shown = await checks.can_fail(PYTEST)
        interface = await interfaces(checks)
    seen = [one.what for one in shown.evidence]
    assert "Against the code before the change a new test fails, 3 times of 3: tests/test_new.py::test_add." in seen
    assert any(one.endswith("tests/test_new.py::test_double.") for one in seen), "the change does not concern it"
    assert shown.verified
    assert interface.same
    place.put({"calc.py": f"{FIXED}\n\ndef half(a):\n    return a / 2\n"})
    half = "from calc import half\n\n\ndef test_half():\n    assert half(4) == 2\n"
    place.put({"tests/test_new.py": half})
    async with trial(place.runner) as checks:
        shown = await checks.can_fail(PYTEST)
        interface = await interfaces(checks)
    seen = [one.what for one in shown.evidence]
    assert "Against calc.py without line 10 a new test fails, 3 times of 3: tests/test_new.py::test_half." in seen
    assert shown.verified
    assert dict(interface.added) == {"calc.half": "def half(a)"}


async def test_a_test_that_fails_now_and_then_proves_nothing(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes three times, then fails once, as if a mutation had done that: with the right code it fails, too."""
    flaky = "import time\nfrom calc import add\n\n\ndef test_now_and_then():\n    add(1, 2)\n    assert {} \n"
    place = bench({"calc.py": FIXED, "conftest.py": "", "tests/test_old.py": "def test_old():\n    pass\n"})
    target = (CitedLines(file="calc.py", start_line=1, end_line=2),)
    place.put({"tests/test_flaky.py": flaky.format("True")})
    async with trial(place.runner) as checks:
        assert (await checks.steady(PYTEST))[0].verified
        run, count = checks.run_narrow, 0

        async def coin(tree: str, command: str, narrow: str | None) -> CheckResult:
            nonlocal count
            count += 1
            result = await run(tree, command, narrow)
            if count % 4:
                return result
            said = "FAILED tests/test_flaky.py::test_now_and_then - assert False\n"
            return replace(result, exit_code=1, output=said)

        monkeypatch.setattr(checks, "run_narrow", coin)
        told = await checks.can_fail(PYTEST, target)
    assert not told.verified
    assert told.evidence[-1].what.startswith("It is flaky: ")


async def test_nothing_runs_unasked_and_what_runs_is_held_and_ended(bench: Callable[..., Bench]) -> None:
    trap = "test: $(shell touch ../trap trap)\n\ttouch trap\n"
    place = bench({"Makefile": trap}, refuse="it was refused")
    async with trial(place.runner) as checks:
        with pytest.raises(CheckRefused, match="was not run: it was refused"):
            await checks.before("make test")
    assert not (place.tree.path / "trap").exists()
    assert not (place.tree.path.parent / "trap").exists()


async def test_a_check_is_confined_bounded_and_its_processes_end(bench: Callable[..., Bench]) -> None:
    place = bench({"a.txt": "a\n"}, timeout=10)
    runner = place.runner
    path = place.tree.path
    held = await runner.run("touch inside; touch ../outside; ls ../../worktree-records; env", path)
    assert held.exit_code == 0
    assert (place.tree.path / "inside").exists()
    assert not (place.tree.path.parent / "outside").exists()
    assert ".json" not in held.output
    assert "hidden from commands" not in held.output
    assert "GH_PAT" not in held.output
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
        command = shlex.join([sys.executable, "-c", connect])
        assert (await runner.run(command, path)).exit_code == 1
        assert (await place.with_allowance(CommandAllowance(network=True)).run(command, path)).exit_code == 0
    reading = place.with_allowance(CommandAllowance(writes="nothing"))
    with pytest.raises(Unsupported, match="may write nothing"):
        await reading.run("touch b.txt", path)
    assert not (place.tree.path / "b.txt").exists()
    with anyio.fail_after(30):
        slow = await runner.run("echo begun; (sleep 300 &) ; sleep 300", path, timeout=5)
    assert (slow.exit_code, slow.passed, slow.output) == (None, False, "begun\n")
    assert reproduced(slow).verified is False
    loud = await runner.run("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end; exit 3", path)
    assert (loud.exit_code, len(loud.output) <= 256 * 1024) == (3, True)
    assert loud.output.endswith("end\n")


def test_mutations_are_small_distinct_and_never_of_comments_or_docstrings() -> None:
    code = b'''def f(a, b):
    """Return 1 if a == b."""
    # True or False
    if a == b and a <= 1:
        return True
    return a + b
'''
    seen = [one.what for one in operators_changed("f.py", code, None)]
    assert seen == [
        "f.py with line 4 as `if a != b and a <= 1:`",
        "f.py with line 4 as `if a == b and a < 1:`",
        "f.py with line 5 as `return False`",
        "f.py with line 5 as `return 0`",
        "f.py with line 6 as `return a - b`",
        "f.py with line 6 as `return 0`",
    ]
    assert not [one for one in lines_taken_out("f.py", code, None) if one.what.endswith(("line 2", "line 3"))]
