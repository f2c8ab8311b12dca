"""A class that is made lazily cannot be told from one of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any

import pytest

from helmsman.base import lazy_dataclass


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Ours:
    name: str
    size: int = 3
    words: list[str] = field(default_factory=list)
    secret: str = field(default="", repr=False)
    raw: object = field(default=None, compare=False, kw_only=True)


@lazy_dataclass.dataclass(frozen=True, slots=True, kw_only=True)
class OursBelow(Ours):
    more: int


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    name: str
    size: int = 3
    words: list[str] = field(default_factory=list)
    secret: str = field(default="", repr=False)
    raw: object = field(default=None, compare=False, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TheirsBelow(Theirs):
    more: int


PAIRS = pytest.mark.parametrize(
    ("ours", "theirs", "arguments"), [(Ours, Theirs, {}), (OursBelow, TheirsBelow, {"more": 4})]
)


@PAIRS
def test_instances_are_made_shown_and_compared_alike(ours: Any, theirs: Any, arguments: dict[str, int]) -> None:
    for given in (("a",), ("a", 5), ("a", 5, ["b"], "c")):
        one, other = ours(*given, **arguments), theirs(*given, **arguments)
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        assert repr(one) == repr(other).replace("Theirs", "Ours")
        assert one == ours(*given, raw=1, **arguments)
        assert one != ours("b", **arguments)
        assert one != other
        assert dataclasses.replace(one, name="z").name == "z"
        assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    assert ours("a", **arguments).words is not ours("a", **arguments).words
    assert hash(ours("a", words=(), **arguments)) == hash(theirs("a", words=(), **arguments))
    with pytest.raises(TypeError, match="unhashable"):
        hash(ours("a", **arguments))


@PAIRS
def test_what_is_wrong_is_refused_alike(ours: Any, theirs: Any, arguments: dict[str, int]) -> None:
    for cls in (ours, theirs):
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            cls(**arguments)
        with pytest.raises(TypeError, match="nothing"):
            cls("a", nothing=1, **arguments)
        one = cls("a", **arguments)
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.name = "b"
        with pytest.raises(dataclasses.FrozenInstanceError):
            del one.name


@PAIRS
def test_what_python_says_of_the_class_is_the_same(ours: Any, theirs: Any, arguments: dict[str, int]) -> None:
    def kinds(cls: Any) -> list[Any]:
        return [(one.name, one.kind, one.annotation) for one in inspect.signature(cls).parameters.values()]

    assert kinds(ours) == kinds(theirs)
    assert ours.__match_args__ == theirs.__match_args__
    assert not hasattr(ours("a", **arguments), "__dict__")


def test_a_class_that_is_not_frozen_can_be_changed_and_has_no_hash() -> None:
    @lazy_dataclass.dataclass(slots=True)
    class Open:
        name: str
        words: list[str] = field(default_factory=list)

    one = Open("a")
    one.name = "b"
    assert one == Open("b", [])
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_what_does_more_than_take_its_fields_is_refused() -> None:
    class Counted:
        number: int = field(init=False, default=0)

    class Checked:
        number: int

        def __post_init__(self) -> None: ...

    for cls in (Counted, Checked):
        with pytest.raises(TypeError, match="make it with `dataclasses`"):
            lazy_dataclass.dataclass(slots=True)(cls)


def test_an_init_is_compiled_when_the_first_instance_is_made() -> None:
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Fresh:
        name: str

    before = Fresh.__init__
    assert Fresh("a") == Fresh(name="a")
    assert Fresh.__init__ is not before
