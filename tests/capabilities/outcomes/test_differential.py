"""Tests of differential checks: what touched functions return before and after a refactoring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from helmsman.capabilities.outcomes.differential import Comparison, affected_functions, compare
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


def reached(before: str, after: str) -> dict[str, str | None]:
    return {one.name: one.why for one in affected_functions("shop.py", before.encode(), after.encode())}


def test_the_functions_that_a_change_reaches_are_public_and_have_a_reason_if_they_are_not_compared() -> None:
    assert reached(CODE, SAME) == {"clamp": None, "fresh": None}
    assert reached(CODE, OTHER) == {"words": None}
    assert reached("def f(a): return a\n", "def f(b): return b\n") == {"f": "its parameters are others"}
    assert reached("def f(a): return a\n", "def f(a, b): return b\n") == {"f": "its parameters are others"}
    assert reached("def f(a): return a\n", "def f(a, b=1): return a\n") == {"f": None}
    assert reached("def f(a): return a\n", "g = 1\n") == {"f": "it is no longer there"}
    assert reached("def f(a): return a\n", "def f(a: return\n") == {}
    helper = "RATE = 2\ndef _g(a): return a * RATE\ndef f(a): return _g(a)\ndef h(a): return a\n"
    assert reached(helper, helper.replace("RATE = 2", "RATE = 3")) == {"f": None}, "through what it uses"
    cart = "class Cart:\n    def __init__(self, n): self.n = n\n    def twice(self): return 2 * self.n\n"
    assert reached(cart, cart.replace("2 *", "3 *")) == {"Cart.twice": None}
    assert reached(cart, cart.replace("self.n = n", "self.n = -n")) == {"Cart.__init__": None, "Cart.twice": None}


def test_a_counterexample_is_evidence_against_the_change_and_what_is_not_compared_is_said() -> None:
    assert not Comparison().verdict.evidence, "there was nothing to compare"
    one = {"call": "shop.words(text='a.')", "before": "returns ['a.']", "after": "returns ['a']"}
    seen = Comparison(functions={"shop.words": 3}, counterexamples=(one,)).verdict
    assert not seen.verified
    assert (
        seen.against[0].what == "`shop.words(text='a.')` returns ['a.'] before the change, and returns ['a'] after it."
    )
    seen = Comparison(not_compared={"shop.f": "it is no longer there"}).verdict
    assert [one.what for one in seen.evidence] == ["Not compared before and after: `shop.f`, as it is no longer there."]


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.needs_git
async def test_generated_calls_find_what_the_tests_do_not(bench: Callable[..., Bench]) -> None:
    place = bench({**CHECK_FILES, "page.js": "var a;\n"})
    place.put({"shop.py": OTHER})
    async with trial(place.runner) as checks:
        assert (await checks.after(PYTEST)).passed, "the tests do not tell"
        found = await compare(checks, PYTEST, 1.0)
    assert [*found.functions] == ["shop.words"], found
    assert [one["call"].startswith("shop.words(text=") for one in found.counterexamples] == [True]
    assert not found.verdict.verified
    place.put({"shop.py": SAME, "page.js": "let a;\n"})
    async with trial(place.runner) as checks:
        found = await compare(checks, PYTEST, 1.0)
        assert found.functions["shop.clamp"] > 50
        assert found.not_compared == {
            "shop.fresh": "what it returns differs from call to call",
            "page.js": "only Python is compared",
        }
        assert found.verdict.verified, found
        slow = await compare(checks, PYTEST, 100.0)
    assert not slow.functions
    assert slow.not_compared["shop.clamp"].startswith("the check takes 100 s, more than the 60 s")
    assert place.asked == [PYTEST], "all of it is part of the check"


CART = """\
import asyncio
from dataclasses import dataclass


@dataclass
class Line:
    price: int
    count: int = 1

    def total(self) -> int:
        return self.price * self.count


class Cart:
    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.sums = []

    def add(self, amount: int) -> None:
        self.sums.append(amount)

    @property
    def owed(self) -> int:
        return _rounded(sum(self.sums) + self.rate)

    @classmethod
    def free(cls, amount: int) -> int:
        return amount


class Open:
    def __init__(self, file) -> None:
        self.file = file

    def size(self) -> int:
        return len(self.file.name)


def _rounded(amount):
    return amount


async def later(amount: int) -> int:
    await asyncio.sleep(0)
    return amount


def each(amount: int, step=1):
    yield amount + step


def unused(amount: int) -> int:
    return amount


def reduced(how, amounts, times=1):
    return how(amounts) * times
"""
CART_TESTS = """\
import asyncio

import cart


def test_all():
    one = cart.Cart(2)
    one.add(3)
    assert (one.owed, one.free(4)) == (5, 4)
    assert cart.Line(2, 3).total() == 6
    assert asyncio.run(cart.later(1)) == 1
    assert list(cart.each(1)) == [2]
    assert cart.reduced(sum, [1, 2]) == 3
    assert cart.Open(open(__file__)).size()
"""
CHANGES = {
    "self.price * self.count": "self.price * min(self.count, 50)",
    "self.sums.append(amount)": "self.sums.append(amount if amount < 100 else 100)",
    "def _rounded(amount):\n    return amount": "def _rounded(amount):\n    return amount - (amount == 7)",
    "(cls, amount: int) -> int:\n        return amount": "(cls, amount: int) -> int:\n        return amount or 1",
    "sleep(0)\n    return amount": "sleep(0)\n    return abs(amount)",
    "how(amounts) * times": "how(amounts)",
    "step=1": "step=2 - 1 if True else 0",
    "len(self.file.name)": "len(self.file.name) + 0",
    "def unused(amount: int) -> int:\n    return amount": "def unused(amount: int) -> int:\n    return amount or 1",
}


@pytest.mark.anyio
@pytest.mark.needs_git
async def test_methods_properties_coroutines_and_defaults_are_compared_on_new_instances(
    bench: Callable[..., Bench],
) -> None:
    place = bench({"cart.py": CART, "test_cart.py": CART_TESTS})
    changed = CART
    for before, after in CHANGES.items():
        assert before in changed
        changed = changed.replace(before, after)
    place.put({"cart.py": changed})
    async with trial(place.runner) as checks:
        assert (await checks.after(PYTEST)).passed, "the tests do not tell"
        found = await compare(checks, PYTEST, 1.0)
    differing = {one["call"].partition("(")[0] for one in found.counterexamples}
    assert {"cart.Line", "cart.Cart", "cart.Cart.free", "cart.later", "cart.unused", "cart.reduced"} <= differing, found
    assert {"cart.Cart.add", "cart.Cart.owed", "cart.Line.total", "cart.each"} <= found.functions.keys(), found
    assert found.not_compared == {
        "cart.Open.size": "no test calls it with plain values, and its parameters do not say which to generate"
    }


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
    assert [*found.functions] == ["shop.words"], found
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
