"""Tests of differential checks: what touched functions return before and after a refactoring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from helmsman.capabilities.outcomes.differential import Comparison, compare, touched_functions
from helmsman.capabilities.outcomes.experiments import trial
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, say
from tests.capabilities.outcomes.conftest import PYTEST, Bench
from tests.capabilities.outcomes.played_jobs import Answers, done, edit, repository, wanted

CODE = """\
import itertools

counter = itertools.count()


def clamp(value: int, low: int, high: int) -> int:
    if value < low:
        return low
    if value > high:
        return high
    return value


def words(text):
    found = []
    for word in text.split():
        found.append(word.strip(","))
    return found


def fresh(prefix):
    return prefix + str(next(counter))


def _hidden(a):
    return a
"""
SAME = CODE.replace(
    "    if value < low:\n        return low\n    if value > high:\n        return high\n    return value",
    "    return low if value < low else min(value, high)",
).replace("prefix + str(next(counter))", 'f"{prefix}{next(counter)}"')
OTHER = CODE.replace('word.strip(",")', 'word.strip(".,")')
TESTS = """\
import unittest

from shop import clamp, fresh, words


class Shop(unittest.TestCase):
    def test_all(self):
        self.assertEqual(clamp(5, 0, 3), 3)
        self.assertEqual(words("a, b"), ["a", "b"])
        self.assertTrue(fresh("x").startswith("x"))
"""
SECONDS = 100
CHECK_FILES = {"shop.py": CODE, "test_shop.py": TESTS}


def test_touched_functions_are_public_and_keep_their_parameters() -> None:
    assert touched_functions(CODE.encode(), SAME.encode()) == ["clamp", "fresh"]
    assert touched_functions(CODE.encode(), OTHER.encode()) == ["words"]
    assert touched_functions(b"def f(a): return a\n", b"def f(a, b=1): return a\n") == []
    assert touched_functions(b"def f(a): return a\n", b"def f(a: return\n") == []
    assert touched_functions(b"def _f(a): return a\n", b"def _f(a): return 2\n") == []


def test_a_counterexample_is_evidence_against_the_change() -> None:
    assert not Comparison().verdict.evidence, "nothing was compared"
    one = {"call": "shop.words(text='a.')", "before": "returns ['a.']", "after": "returns ['a']"}
    seen = Comparison(functions=("shop.words",), calls=3, counterexamples=(one,)).verdict
    assert not seen.verified
    assert seen.against[0].what == "shop.words(text='a.') returns ['a.'] before the change, and returns ['a'] after it."


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.needs_git
async def test_generated_calls_find_what_the_tests_do_not(bench: Callable[..., Bench]) -> None:
    place = bench(CHECK_FILES)
    place.put({"shop.py": OTHER})
    async with trial(place.runner) as checks:
        assert (await checks.after(PYTEST)).passed, "the tests do not tell"
        found = await compare(checks, PYTEST, 1.0)
    assert found.functions == ["shop.words"]
    assert [one["call"].startswith("shop.words(text=") for one in found.counterexamples] == [True]
    assert not found.verdict.verified
    place.put({"shop.py": SAME})
    async with trial(place.runner) as checks:
        found = await compare(checks, PYTEST, 1.0)
        assert "shop.clamp" in found.functions
        assert "shop.fresh" not in found.functions, "it returns something else each time"
        assert found.calls > 50
        assert found.verdict.verified, found
        assert not (await compare(checks, PYTEST, 100.0)).functions, "the check is too slow to be recorded"
    assert place.asked == [PYTEST], "all of it is part of the check"


LIAR = (
    OTHER
    + """

import atexit, json, os, pathlib

folder = pathlib.Path(__file__).with_name(".helmsman-probe")


def lie():
    told = json.loads((folder / "calls.json").read_text())["functions"]
    written = folder / "outcomes.json"
    written.unlink()
    LIE


if (folder / "calls.json").exists():
    atexit.register(lie)
"""
)
LIES = [
    "written.write_text(json.dumps(told))",
    "written.write_text(json.dumps([{**one, 'outcomes': []} for one in told]))",
    "written.write_text(json.dumps([{**one, 'outcomes': [1]} for one in told]))",
    "os.mkfifo(written)",
]


@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.parametrize("lie", [LIES[0], *(pytest.param(one, marks=pytest.mark.rare) for one in LIES[1:-1]), LIES[-1]])
async def test_code_after_the_change_cannot_say_what_it_returns_instead_of_the_probe(
    bench: Callable[..., Bench], lie: str
) -> None:
    place = bench(CHECK_FILES)
    place.put({"shop.py": LIAR.replace("LIE", lie)})
    async with trial(place.runner) as checks:
        with anyio.fail_after(SECONDS):
            found = await compare(checks, PYTEST, 1.0)
    assert found.functions == ["shop.words"]
    assert not found.verdict.verified, found


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.usefixtures("shared_engine")
async def test_a_refactoring_that_returns_something_else_goes_back_with_the_counterexample(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", CHECK_FILES)
    before, after = '        found.append(word.strip(","))', '        found.append(word.strip(".,"))'
    model.on("Shorter, please", edit("shop.py", before, after), say("It is shorter."))
    model.on("before the change, and returns", edit("shop.py", after, f"{before}  # a comma"), say("It is as before."))
    job = wanted("refactor", root, "Shorter, please", apply="never")
    task, report = await done(helm, job, Answers(), seconds=110)
    assert (task.status, report["attempts"]) == ("completed", 2), report
    assert report["comparison"]["counterexamples"] == []
