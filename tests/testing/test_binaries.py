from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.testing import FakeAppServer, codex_version, codex_versions, installed_codex
from helmsman.testing.binaries import BINARY_VARIABLE, CACHE_VARIABLE, parse_version, wheel_codex


def test_the_binary_under_test_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARY_VARIABLE, str(tmp_path / "mine"))
    assert installed_codex() == tmp_path / "mine"

    monkeypatch.delenv(BINARY_VARIABLE)
    assert installed_codex() == wheel_codex()


def test_the_versions_to_test_with_are_found_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("0.145.0", "0.93.0", "0.10.0"):
        FakeAppServer(tmp_path / version / "vendor" / "some-platform" / "bin", version=version)
    (tmp_path / "0.99.0").mkdir()  # a folder without a binary
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))

    found = [version for version, path in codex_versions().items() if path.is_relative_to(tmp_path)]

    assert found == ["0.10.0", "0.93.0", "0.145.0"]


def test_the_cache_is_looked_for_upwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeAppServer(tmp_path / ".cache" / "codex" / "0.1.0" / "vendor" / "some-platform" / "codex")
    (tmp_path / "deep" / "below").mkdir(parents=True)
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path / "deep" / "below")

    assert "0.1.0" in codex_versions()


def test_without_a_cache_there_is_only_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "nothing"))

    assert list(codex_versions().values()) == [path for path in [wheel_codex()] if path is not None]


def test_a_binary_is_asked_for_its_version(tmp_path: Path) -> None:
    assert codex_version(FakeAppServer(tmp_path, version="0.145.1").path) == (0, 145, 1)


def test_a_text_without_a_version_gives_none() -> None:
    assert parse_version("codex-cli unknown") == (0, 0, 0)
