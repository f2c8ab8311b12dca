"""Codex's configuration is asked for once, and again as soon as a file that could matter has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from helmsman.agents.codex.configuration import Configuration
from helmsman.agents.protocol import AgentConfig, ConfigLayer

pytestmark = pytest.mark.anyio


class Codex:
    """Answers `config/read` with a number that grows."""

    def __init__(self, *layers: ConfigLayer) -> None:
        self.asked = 0
        self.layers = layers
        self.is_elsewhere = False

    async def config(self, _cwd: Path | None = None) -> AgentConfig:
        self.asked += 1
        asked = self.asked
        await anyio.lowlevel.checkpoint()
        return AgentConfig(values={"asked": asked}, layers=self.layers)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('model = "one"\n', encoding="utf-8")
    return home


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "repository" / "inside"
    work.mkdir(parents=True)
    return work


def user_layer(home: Path) -> ConfigLayer:
    return ConfigLayer(kind="user", file=str(home / "config.toml"))


def configuration(codex: Codex, home: Path) -> Configuration:
    return Configuration(codex.config, home, is_local=not codex.is_elsewhere)


async def asked(known: Configuration, cwd: Path | None) -> Any:
    return (await known.effective(cwd))["asked"]


async def test_an_answer_holds_while_its_files_stay_as_they_are(home: Path, work: Path) -> None:
    known = configuration(Codex(user_layer(home)), home)
    assert [await asked(known, work) for _ in range(3)] == [1, 1, 1]


async def test_many_who_ask_at_once_share_one_answer(home: Path, work: Path) -> None:
    codex = Codex(user_layer(home))
    known = configuration(codex, home)
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(known.effective, work)
    assert codex.asked == 1


async def test_each_directory_has_its_own_answer(home: Path, work: Path) -> None:
    known = configuration(Codex(user_layer(home)), home)
    assert [await asked(known, place) for place in (work, work.parent, work)] == [1, 2, 1]


async def test_a_changed_configuration_is_read_again(home: Path, work: Path) -> None:
    known = configuration(Codex(user_layer(home)), home)
    await asked(known, work)
    (home / "config.toml").write_text('sandbox_mode = "danger-full-access"\n', encoding="utf-8")
    assert await asked(known, work) == 2


async def test_a_configuration_that_appears_in_the_repository_is_read(home: Path, work: Path) -> None:
    known = configuration(Codex(user_layer(home)), home)
    await asked(known, work)
    (work.parent / ".codex").mkdir()
    (work.parent / ".codex" / "config.toml").write_text("", encoding="utf-8")
    assert await asked(known, work) == 2


async def test_a_directory_that_becomes_a_repository_is_looked_at_again(home: Path, work: Path) -> None:
    known = configuration(Codex(user_layer(home)), home)
    await asked(known, work)
    (work.parent / ".git").mkdir()
    assert await asked(known, work) == 2


@pytest.mark.parametrize(
    "layer",
    [
        ConfigLayer(kind="mdm", file=None),
        ConfigLayer(kind="user", file="/elsewhere/config.toml"),
        ConfigLayer(kind="None", file=None),
    ],
    ids=["a managed machine", "a file nobody watches", "something unknown"],
)
async def test_settings_from_unknown_files_are_never_remembered(home: Path, work: Path, layer: ConfigLayer) -> None:
    known = configuration(Codex(user_layer(home), layer), home)
    assert [await asked(known, work), await asked(known, work)] == [1, 2]


async def test_an_answer_without_sources_is_never_remembered(home: Path, work: Path) -> None:
    known = configuration(Codex(), home)
    assert [await asked(known, work), await asked(known, work)] == [1, 2]


async def test_the_configuration_of_another_machine_is_never_remembered(home: Path, work: Path) -> None:
    codex = Codex(user_layer(home))
    codex.is_elsewhere = True
    known = configuration(codex, home)
    assert [await asked(known, work), await asked(known, work)] == [1, 2]
