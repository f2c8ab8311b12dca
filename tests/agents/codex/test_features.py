"""Versions of Codex compare as they were released, and the table of features reads as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex import features
from helmsman.agents.codex.features import OLDEST, Feature, Version


def versions(*texts: str) -> list[Version]:
    return [Version.parse(text) for text in texts]


def test_versions_compare_by_number_and_prereleases_come_before_their_release() -> None:
    ordered = versions(
        "0.93.0", "0.115.0", "0.166.0-alpha", "0.166.0-alpha.2", "0.166.0-alpha.10", "0.166.0-beta", "0.166.0", "1.0.0"
    )
    backwards = ordered[::-1]
    assert sorted(backwards) == ordered


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("codex-cli 0.166.0", "0.166.0"),
        ("x/0.130.0 (Debian 12.0.0; x86_64) xterm", "0.130.0"),
        ("v1.2.3-alpha.4\n", "1.2.3-alpha.4"),
    ],
)
def test_the_first_version_in_a_text_is_found(text: str, expected: str) -> None:
    assert str(Version.parse(text)) == expected


@pytest.mark.parametrize("text", ["codex-cli 0.0.0", "codex-cli unknown", ""])
def test_a_development_build_is_newer_than_every_release(text: str) -> None:
    version = Version.parse(text)
    assert version.is_development
    assert version > Version.parse("999.0.0")
    assert "development" in str(version)


@given(st.text(), st.text())
def test_any_two_texts_give_versions_that_can_be_compared(one: str, other: str) -> None:
    first, second = versions(f"1.2.3-{one}", f"1.2.3-{other}")
    assert (first < second) + (first > second) + (first._order() == second._order()) == 1


@given(st.from_regex(r"[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}(-[a-z0-9.]{1,9})?", fullmatch=True))
def test_a_version_survives_being_written_and_read(text: str) -> None:
    version = Version.parse(text)
    assert version.is_development or Version.parse(str(version)) == version


@pytest.mark.parametrize(
    ("feature", "has", "has_not"),
    [
        (Feature.STEER, ("0.99.0", "0.115.0", "0.0.0"), ("0.93.0", "0.98.0", "0.99.0-alpha.1")),
        (Feature.ON_FAILURE_APPROVAL, ("0.93.0", "0.142.5"), ("0.143.0", "0.143.0-alpha.1", "0.0.0")),
        (Feature.TRUST_ON_START, ("0.120.0", "0.166.0"), ("0.118.0",)),
        (Feature.ROLLBACK, ("0.93.0", "0.155.1"), ("0.156.0",)),
        (Feature.APP_SERVER, ("0.93.0", "0.166.0", "0.0.0"), ("0.20.0",)),
    ],
)
def test_a_feature_is_in_the_versions_the_table_says(
    feature: Feature, has: tuple[str, ...], has_not: tuple[str, ...]
) -> None:
    assert all(feature.is_in(version) for version in versions(*has))
    assert not any(feature.is_in(version) for version in versions(*has_not))


def test_each_feature_says_in_words_what_it_is_and_which_codex_has_it() -> None:
    assert len({feature.text for feature in Feature}) == len(Feature)
    assert Feature.STEER.versions == "Codex 0.99.0 and newer"
    assert Feature.ROLLBACK.versions == "Codex 0.155.0 and older"
    assert Feature.APP_SERVER.versions == "Codex 0.93.0 and newer"


def test_each_difference_in_the_data_names_its_last_version_and_the_modules_that_read_it() -> None:
    rows = re.findall(r"^\| (.+) \| (0\.\d+) \| (.+) \|$", features.__doc__ or "", re.MULTILINE)
    last = [Version.parse(f"{until}.0") for _, until, _ in rows]
    assert last == sorted(last)
    assert all(version >= Version.parse("0.92.0") for version in last)  # older files may still be on disk
    assert Version.parse("0.93.0") == OLDEST
    modules = {name for _, _, names in rows for name in re.findall(r"`(\w+)`", names)}
    place = Path(features.__file__).parent
    assert {name for name in modules if not (place / f"{name}.py").exists()} == set()
