"""Tests of the cost that the real Claude Code reports, per turn and later from its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helmsman.agents.claude.normalise import usage_of
from helmsman.agents.claude.storage import ClaudeSessions
from helmsman.service import HelmsmanService
from helmsman.tasks.registry import REGISTRY_NAME
from helmsman.testing import ScriptedModel, run, say
from tests.agents.claude.test_story import Place, ended, opened, place

__all__ = ["place"]
pytestmark = pytest.mark.anyio

CALL = 0.000524
"""Cost of one answer of the scripted model, at the prices of Claude Code's default model."""
ID = "01234567-0123-0123-0123-0123456789ab"


async def costs(helm: HelmsmanService, session_id: str) -> list[float | None]:
    tasks = (await helm.tasks.of_sessions([session_id]))[session_id]
    return [None if task.usage is None else task.usage.cost_usd for task in reversed(tasks)]


async def test_each_turn_is_reported_once_also_by_the_next_process(place: Place, model: ScriptedModel) -> None:
    model.otherwise(say("done"))
    async with opened(place) as helm:
        session = await helm.start("first", cwd=place.repo, agent="claude", unenforced=True)
        await ended(session)
        await session.say("second")
        await ended(session)
        assert session.usage.cost_usd == pytest.approx(2 * CALL)
    async with opened(place) as helm:
        session = await helm.say(session.id, "third")  # its process counts on from what the first one had
        await ended(session)
        assert await costs(helm, session.id) == [pytest.approx(CALL)] * 3
        told = await helm.extras.usage.report(group_by="agent")
        claude = next(group for group in told.groups if group.key == "claude")
        assert (claude.turns, claude.sessions) == (3, 1)
        assert claude.cost_usd == pytest.approx(3 * CALL)
    # Without the registry, its files give the same result.
    (place.settings.state_dir / REGISTRY_NAME).unlink()
    async with opened(place) as helm:
        told = await helm.extras.usage.report(group_by="agent", agent="claude")
        assert told.total.turns == 3
        assert told.total.cost_usd == pytest.approx(3 * CALL)


async def test_a_task_that_costs_more_than_it_may_is_stopped_in_mid_turn(place: Place, model: ScriptedModel) -> None:
    model.on("work", *[run("true")] * 20, say("never"))
    async with opened(place) as helm:
        session = await helm.start(
            "work", cwd=place.repo, agent="claude", unenforced=True, sandbox="danger-full-access",
            approval_policy="never", max_cost_usd=2.5 * CALL,
        )  # fmt: skip
        await ended(session)
        (task,) = (await helm.tasks.of_sessions([session.id]))[session.id]
        assert (task.status, session.result) == ("canceled", None)
        assert f"its limit is ${2.5 * CALL:g}" in (task.note or "")
        assert len(model.requests) < 20


@pytest.mark.rare
async def test_a_model_whose_price_it_does_not_know_has_no_cost(place: Place, model: ScriptedModel) -> None:
    model.otherwise(say("done"))
    async with opened(place) as helm:
        session = await helm.start("first", cwd=place.repo, agent="claude", model="my-own-1", unenforced=True)
        await ended(session)
        assert await costs(helm, session.id) == [None]
    async with opened(place) as helm:
        told = await helm.extras.usage.report(group_by="model", agent="claude")
        assert (told.total.cost_usd, told.unpriced_models) == (None, ("my-own-1",))


def lines(path: Path, *given: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in given), encoding="utf-8")


def asked(turn: str, at: str) -> dict[str, object]:
    said = {"role": "user", "content": "do it"}
    return {"type": "user", "message": said, "uuid": turn, "timestamp": at, "cwd": "/src"}


def answered(message: str, model: str, tokens: int, at: str, **more: object) -> dict[str, object]:
    usage = {"input_tokens": tokens, "output_tokens": 0}
    return {"type": "assistant", "message": {"id": message, "model": model, "usage": usage}, "timestamp": at, **more}


def cost(total: float, tokens: int) -> dict[str, object]:
    used = {"m": {"inputTokens": tokens, "outputTokens": 0}}
    return {"type": "cost-state", "totalCostUSD": total, "modelUsage": used, "hasUnknownModelCost": False}


def test_each_call_counts_once_for_its_turn_and_model_also_those_of_sub_agents(tmp_path: Path) -> None:
    project = tmp_path / "projects" / "-src"
    lines(
        project / f"{ID}.jsonl",
        asked("t1", "2026-11-16T10:00:00Z"),
        answered("a", "big", 100, "2026-11-16T10:00:01Z"),
        answered("a", "big", 100, "2026-11-16T10:00:01Z"),
        answered("b", "<synthetic>", 5, "2026-11-16T10:00:02Z"),
        asked("t2", "2026-11-16T11:00:00Z"),
        answered("c", "big", 50, "2026-11-16T11:00:01Z"),
    )
    sub = answered("d", "small", 7, "2026-11-16T10:30:00Z", isSidechain=True)
    lines(
        project / ID / "subagents" / "agent-1.jsonl", {**asked("x", "2026-11-16T10:29:00Z"), "isSidechain": True}, sub
    )
    source = ClaudeSessions(tmp_path)
    [(key, size, changed)] = source.files()
    found = source.read(key)
    assert found is not None
    assert (found.session_id, found.directory) == (ID, "/src")
    assert [(turn.turn_id, turn.model, turn.input_tokens) for turn in found.turns] == [
        ("t1", "big", 100),
        ("t1", "small", 7),
        ("t2", "big", 50),
    ]
    lines(project / ID / "subagents" / "agent-2.jsonl", sub, sub)
    assert list(source.files()) != [(key, size, changed)], "it is read again when a sub-agent has gone on"


def test_a_cost_counts_only_where_it_knows_of_all_that_was_used(tmp_path: Path) -> None:
    path = tmp_path / "projects" / "-src" / f"{ID}.jsonl"
    lines(
        path,
        asked("t1", "2026-11-16T10:00:00Z"),
        answered("a", "big", 100, "2026-11-16T10:00:01Z"),
        cost(1.0, 100),
        asked("t2", "2026-11-16T11:00:00Z"),
        answered("b", "big", 30, "2026-11-16T11:00:01Z"),
        asked("t3", "2026-11-16T12:00:00Z"),
        answered("c", "big", 10, "2026-11-16T12:00:01Z"),
        cost(3.0, 140),
        asked("t4", "2026-11-16T13:00:00Z"),  # the process of this one was killed, and told nothing
        answered("d", "big", 40, "2026-11-16T13:00:01Z"),
        asked("t5", "2026-11-16T14:00:00Z"),
        answered("e", "big", 10, "2026-11-16T14:00:01Z"),
        cost(3.5, 150),
        asked("t6", "2026-11-16T15:00:00Z"),  # runs still
        answered("f", "big", 10, "2026-11-16T15:00:01Z"),
    )
    found = ClaudeSessions(tmp_path).read(str(path))
    assert found is not None
    assert [turn.cost_usd for turn in found.turns] == [
        pytest.approx(1.0),
        pytest.approx(1.5),
        pytest.approx(0.5),
        None,
        None,
        None,
    ]


def test_no_count_makes_up_for_others() -> None:
    used = usage_of({"input_tokens": -1_000_000, "cache_read_input_tokens": 7, "output_tokens": 10**30})
    assert used is not None
    assert used.counts == (7, 7, 10**12, 0)
