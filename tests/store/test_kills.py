"""The hub is killed before and after each of its durable writes: the next one tells the truth, and does nothing twice.

`pytest -m rare -k from20 tests/store` runs a piece of the sweep: the writes 20 to 39, on SQLite and on Postgres.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from helmsman import Helmsman, Settings
from helmsman.base.structs import replace
from helmsman.hub import launch
from helmsman.testing import CodexHome, ScriptedModel, codex_versions
from tests import warm
from tests.notices.receivers import Receiver
from tests.store import killed_hub
from tests.store.story import Story

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.needs_git,
    pytest.mark.skipif(sys.platform == "win32", reason="There are no hubs here."),
]

Point = tuple[str, int]
"""Before or after a write, and the number of that."""

MOST = 80
"""The story has fewer writes than this."""
_PIECE = 20
_POINTS = [
    pytest.param(when, number, id=f"from{number // _PIECE * _PIECE}-{when}-{number}")
    for number in range(1, MOST)
    for when in ("before", "after")
]

_FIRST_KILLS = (
    *(("after", 9), ("after", 13), ("after", 19), ("after", 27)),
    *(("before", 51), ("after", 57), ("after", 65)),
)
_RECOVERY_WRITES = 6
"""The next hub finds out what happened in about so many writes."""
_PAIRS = [
    pytest.param(first, (when, number), id=f"{'-'.join(map(str, first))}-then-{when}-{number}")
    for first in _FIRST_KILLS
    for number in range(1, _RECOVERY_WRITES + 1)
    for when in ("before", "after")
]


@pytest.fixture(scope="session")
def codex_binary() -> Path:
    """The newest Codex there is."""
    versions = codex_versions()
    if not versions:
        pytest.skip("There is no Codex: run scripts/fetch_codex.py.")
    return list(versions.values())[-1]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def in_hub(
    settings: Settings,
    codex_home: CodexHome,
    detached_engines: Path,
    receiver: Receiver,
    store_address: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    """Settings of a program that asks a hub, which notifies the receiver."""
    monkeypatch.setenv("HOME", str(codex_home.home))  # the hub reads the user's own file there
    own = codex_home.home / ".config" / "helmsman" / "helmsman.toml"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(
        f'codex_path = "{settings.codex_path}"\n'
        + ("" if store_address is None else f'store = "{store_address}"\n')
        + '[notify]\nevents = ["question", "done", "failed", "schedule"]\nunanswered_sec = 0\n'
        f'[[notify.to]]\nway = "webhook"\nurl = "{receiver.url}"\n',
        encoding="utf-8",
    )
    return replace(settings, detach=True, state_dir=detached_engines, store=store_address, snapshots=True)


class Laboratory:
    """Tells the story to a hub that is killed, and asks the next one for the truth."""

    def __init__(self, settings: Settings, env: Mapping[str, str], story: Story, writes: Path) -> None:
        self._settings, self._env, self._story, self._writes = settings, env, story, writes

    async def tell(self, *points: Point) -> list[list[str]]:
        """Tell the story to hubs that are killed at these writes, one after the other. Return the writes of each.

        The hub after the last of them is an ordinary one.
        """
        state_dir = self._settings.state_dir
        try:
            with self._killed_at(points):
                assert launch.start(str(state_dir))
                async with Helmsman(self._settings, env=self._env) as helm:
                    await self._story.tell(helm)
            async with Helmsman(self._settings, env=self._env) as helm:
                await self._story.check(helm)
        except BaseException as error:
            story, log = self._story, (state_dir / launch.LOG).read_text(encoding="utf-8")
            last = [writes[-1:] for writes in self._seen(points)]
            error.add_note(f"At {story.at!r}, killed at {points} {last}, unknown: {story.unknown}\n{log}")
            raise
        return self._seen(points)

    def _seen(self, points: Sequence[Point]) -> list[list[str]]:
        files = [self._writes_of(hub) for hub in range(len(points))]
        return [file.read_text(encoding="utf-8").splitlines() if file.exists() else [] for file in files]

    def _writes_of(self, hub: int) -> Path:
        return self._writes.with_name(f"{self._writes.name}-{hub}")

    @contextmanager
    def _killed_at(self, points: Sequence[Point]) -> Iterator[None]:
        """Start another program than the hub's own, once for each point."""
        environment, hubs = launch.environment, enumerate(points)

        def with_point(state: str, env: Mapping[str, str]) -> dict[str, str]:
            if (following := next(hubs, None)) is None:
                return environment(state, env)
            hub, (when, number) = following
            return environment(state, env) | {
                warm.OTHER_HUB: killed_hub.__file__,
                killed_hub.KILL_AT: f"{when} {number}",
                killed_hub.WRITES: str(self._writes_of(hub)),
            }

        with mock.patch.object(launch, "environment", with_point):
            yield


@pytest.fixture
def laboratory(
    in_hub: Settings, codex_home: CodexHome, model: ScriptedModel, receiver: Receiver, git_repo: Path, tmp_path: Path
) -> Laboratory:
    story = Story(model, receiver, git_repo, in_hub.state_dir)
    return Laboratory(in_hub, codex_home.env, story, tmp_path / "writes")


@pytest.mark.rare
async def test_the_sweep_has_every_write_of_the_story(laboratory: Laboratory) -> None:
    (writes,) = await laboratory.tell(("before", 0))
    assert len(writes) < MOST


async def killed_at(laboratory: Laboratory, *points: Point) -> None:
    writes = await laboratory.tell(*points)
    if any(len(seen) < number for seen, (_, number) in zip(writes, points, strict=True)):
        pytest.skip("There were fewer writes.")


@pytest.mark.long
@pytest.mark.parametrize("server_of_store", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("when", "number"),
    [
        pytest.param("after", 9, id="starting", marks=pytest.mark.rare),
        pytest.param("after", 19, id="answering"),
        pytest.param("after", 27, id="queueing", marks=pytest.mark.rare),
        pytest.param("before", 51, id="applying"),
        pytest.param("after", 57, id="rewinding", marks=pytest.mark.rare),
        pytest.param("after", 65, id="scheduling", marks=pytest.mark.rare),
    ],
)
async def test_the_next_hub_tells_the_truth(laboratory: Laboratory, when: str, number: int) -> None:
    """A sample: the numbers are about those of the writes that are named."""
    await killed_at(laboratory, (when, number))


@pytest.mark.long
@pytest.mark.parametrize("server_of_store", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("when", "number"),
    [pytest.param("after", 21, id="answering", marks=pytest.mark.rare), pytest.param("before", 53, id="applying")],
)
async def test_the_next_hub_tells_the_truth_on_postgres(laboratory: Laboratory, when: str, number: int) -> None:
    await killed_at(laboratory, (when, number))


@pytest.mark.rare
@pytest.mark.parametrize(("when", "number"), _POINTS)
async def test_the_next_hub_tells_the_truth_after_every_write(laboratory: Laboratory, when: str, number: int) -> None:
    await killed_at(laboratory, (when, number))


@pytest.mark.long
@pytest.mark.parametrize("server_of_store", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(("after", 9), ("after", 2), id="starting", marks=pytest.mark.rare),
        pytest.param(("after", 19), ("before", 3), id="answering"),
        pytest.param(("after", 27), ("after", 3), id="queueing", marks=pytest.mark.rare),
    ],
)
async def test_the_hub_after_one_that_was_killed_while_it_recovered_tells_the_truth(
    laboratory: Laboratory, first: Point, then: Point
) -> None:
    await killed_at(laboratory, first, then)


@pytest.mark.rare
@pytest.mark.parametrize(("first", "then"), _PAIRS)
async def test_the_hub_after_one_that_was_killed_at_any_write_of_its_recovery_tells_the_truth(
    laboratory: Laboratory, first: Point, then: Point
) -> None:
    await killed_at(laboratory, first, then)
