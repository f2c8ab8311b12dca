"""A thread opened in advance is used only where nobody could tell it from a new one, and otherwise leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.agents.codex import threads
from helmsman.agents.codex.engine import AppServerEngine
from helmsman.model.options import SandboxMode
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say

pytestmark = [pytest.mark.long, pytest.mark.anyio]

SECONDS = 30


@pytest.fixture(autouse=True)
def _answers(model: ScriptedModel) -> None:
    model.otherwise(say("done"))


@pytest.fixture
async def engine(helm: HelmsmanService) -> AppServerEngine:
    engine = await helm.engine()
    assert isinstance(engine, AppServerEngine)
    return engine


async def finished(helm: HelmsmanService, cwd: Path, prompt: str = "hello", **options: Any) -> Session:
    session = await helm.start(prompt, cwd=cwd, **options)
    assert await session.wait(until="end", timeout=SECONDS)
    return session


async def unused(helm: HelmsmanService, engine: AppServerEngine) -> set[str]:
    """The threads that are open and belong to no session."""
    return set(await engine.api.loaded_threads()) - set(helm.sessions)


async def opened_in_advance(helm: HelmsmanService, engine: AppServerEngine) -> str:
    with anyio.fail_after(SECONDS):
        while not (found := await unused(helm, engine)):
            await anyio.sleep(0.01)
    (thread,) = found
    return thread


async def after_two_starts(helm: HelmsmanService, engine: AppServerEngine, cwd: Path, **options: Any) -> str:
    for _ in range(2):
        await finished(helm, cwd, **options)
    return await opened_in_advance(helm, engine)


async def test_the_third_start_of_a_kind_finds_its_thread_open(
    helm: HelmsmanService, engine: AppServerEngine, folder: Path
) -> None:
    await finished(helm, folder)
    assert await unused(helm, engine) == set()
    await finished(helm, folder)
    spare = await opened_in_advance(helm, engine)
    third = await finished(helm, folder)
    assert (third.id, third.result) == (spare, "done")
    assert await opened_in_advance(helm, engine) != spare


async def test_a_start_that_comes_while_the_thread_is_being_opened_waits_for_it(
    helm: HelmsmanService, engine: AppServerEngine, folder: Path
) -> None:
    for _ in range(5):
        await finished(helm, folder)
    await opened_in_advance(helm, engine)
    assert len(await engine.api.loaded_threads()) == 6


async def test_two_starts_at_once_do_not_share_it(helm: HelmsmanService, engine: AppServerEngine, folder: Path) -> None:
    spare = await after_two_starts(helm, engine, folder)
    sessions: list[Session] = []

    async def start() -> None:
        sessions.append(await finished(helm, folder))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(start)
    assert len({session.id for session in sessions}) == 3
    assert [session.id for session in sessions].count(spare) == 1
    assert [session.result for session in sessions] == ["done"] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"approval_policy": "never"},
        {"model": "another"},
        {"developer_instructions": "Be brief."},
        {"config": {"model_reasoning_effort": "low"}},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_a_start_with_other_options_opens_a_separate_thread(
    helm: HelmsmanService, engine: AppServerEngine, folder: Path, options: dict[str, Any]
) -> None:
    spare = await after_two_starts(helm, engine, folder)
    assert (await finished(helm, folder, **options)).id != spare
    assert (await finished(helm, folder)).id == spare


@pytest.mark.parametrize("sandbox", ["read-only", "workspace-write"])
async def test_the_sandbox_is_that_of_the_start_that_uses_it(
    helm: HelmsmanService, engine: AppServerEngine, model: ScriptedModel, folder: Path, sandbox: SandboxMode
) -> None:
    model.on("write", run("echo hi > made.txt"), say("tried"))
    spare = await after_two_starts(helm, engine, folder, sandbox="workspace-write", approval_policy="never")
    session = await finished(helm, folder, "write", sandbox=sandbox, approval_policy="never")
    assert session.id == spare
    assert (folder / "made.txt").exists() == (sandbox == "workspace-write")


def instructions(repository: Path, _home: CodexHome) -> None:
    (repository / "AGENTS.md").write_text("CHANGED\n", encoding="utf-8")


def own_instructions(_repository: Path, home: CodexHome) -> None:
    (home.path / "AGENTS.md").write_text("CHANGED\n", encoding="utf-8")


def configuration(_repository: Path, home: CodexHome) -> None:
    home.configure(developer_instructions="CHANGED")


@pytest.mark.parametrize("change", [instructions, own_instructions, configuration], ids=lambda change: change.__name__)
async def test_changed_files_and_settings_hold_for_the_next_session(
    helm: HelmsmanService,
    engine: AppServerEngine,
    model: ScriptedModel,
    folder: Path,
    codex_home: CodexHome,
    change: Callable[[Path, CodexHome], None],
) -> None:
    spare = await after_two_starts(helm, engine, folder)
    change(folder, codex_home)
    session = await finished(helm, folder)
    assert session.id != spare
    assert "CHANGED" in str(model.requests[-1].body)


async def test_a_new_rule_of_codex_holds_for_the_next_session(
    helm: HelmsmanService, engine: AppServerEngine, folder: Path, codex_home: CodexHome
) -> None:
    spare = await after_two_starts(helm, engine, folder)
    rules = codex_home.path / "rules"
    rules.mkdir(exist_ok=True)
    (rules / "default.rules").write_text('prefix_rule(pattern=["ls"], decision="allow")\n', encoding="utf-8")
    assert (await finished(helm, folder)).id != spare


async def test_git_and_skills_are_those_of_the_first_message(
    helm: HelmsmanService, engine: AppServerEngine, model: ScriptedModel, git_repo: Path, codex_home: CodexHome
) -> None:
    spare = await after_two_starts(helm, engine, git_repo)
    await anyio.run_process(["git", "checkout", "--quiet", "-b", "later"], cwd=git_repo)
    skill = codex_home.path / "skills" / "sail" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: sail\ndescription: How to sail.\n---\nHoist it.\n", encoding="utf-8")
    session = await finished(helm, git_repo)
    assert session.id == spare
    assert "How to sail." in str(model.requests[-1].body)
    (rollout,) = codex_home.path.rglob(f"rollout-*{spare}.jsonl")
    head = json.loads(rollout.read_text(encoding="utf-8").splitlines()[0])
    assert head["payload"]["git"]["branch"] == "later"


async def test_it_is_listed_nowhere_and_has_no_file(
    helm: HelmsmanService, engine: AppServerEngine, folder: Path, codex_home: CodexHome
) -> None:
    spare = await after_two_starts(helm, engine, folder)
    sessions, _next_page = await helm.list()
    assert spare not in {session.session_id for session in sessions}
    assert list(codex_home.path.rglob(f"rollout-*{spare}*")) == []
    assert await engine.running_sessions() == ()


async def test_an_unwanted_spare_thread_is_released(
    helm: HelmsmanService, engine: AppServerEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go: list[str] = []
    asked = anyio.Event()
    call = engine.api.call

    async def noticed(method: str, **params: Any) -> dict[str, Any]:
        answer = await call(method, **params)
        if method == "thread/unsubscribe":
            let_go.append(params["threadId"])
            asked.set()
        return answer

    monkeypatch.setattr(engine.api, "call", noticed)
    monkeypatch.setattr(threads, "SPARE_SECONDS", 0)
    for _ in range(2):
        await finished(helm, folder)
    with anyio.fail_after(SECONDS):
        await asked.wait()
    await finished(helm, folder)
    assert set(let_go).isdisjoint(helm.sessions)


async def test_none_is_opened_while_something_runs(
    helm: HelmsmanService, engine: AppServerEngine, model: ScriptedModel, folder: Path
) -> None:
    model.on("work long", hang())
    long = await helm.start("work long", cwd=folder)
    for _ in range(2):
        await finished(helm, folder)
    assert await unused(helm, engine) == set()
    await long.interrupt()
    await opened_in_advance(helm, engine)


async def test_a_spare_thread_starts_no_mcp_server(
    helm: HelmsmanService,
    engine: AppServerEngine,
    folder: Path,
    codex_home: CodexHome,
    mcp_server_config: dict[str, Any],
) -> None:
    codex_home.configure(mcp_servers=mcp_server_config)
    for _ in range(3):
        await finished(helm, folder)
    assert await unused(helm, engine) == set()


@pytest.mark.parametrize(
    "options",
    [
        {"trust_repository": True},
        {"config": {"tools": {"web_search": False}}},
    ],
    ids=["trusted", "a table"],
)
async def test_none_is_opened_for_options_that_bring_in_more_than_they_say(
    helm: HelmsmanService, engine: AppServerEngine, folder: Path, options: dict[str, Any]
) -> None:
    for _ in range(3):
        await finished(helm, folder, **options)
    assert await unused(helm, engine) == set()


@pytest.mark.parametrize("place", ["options", "configuration"])
async def test_none_is_opened_where_a_further_file_is_named(
    helm: HelmsmanService, engine: AppServerEngine, folder: Path, codex_home: CodexHome, tmp_path: Path, place: str
) -> None:
    (tmp_path / "brief.md").write_text("Be brief.", encoding="utf-8")
    named = {"model_instructions_file": str(tmp_path / "brief.md")}
    if place == "configuration":
        codex_home.configure(**named)
    for _ in range(3):
        await finished(helm, folder, config=named if place == "options" else None)
    assert await unused(helm, engine) == set()


@pytest.mark.parametrize("place", ["home", "repository"])
async def test_none_is_opened_where_hooks_would_run(
    helm: HelmsmanService, engine: AppServerEngine, folder: Path, codex_home: CodexHome, place: str
) -> None:
    place_of_hooks = codex_home.path if place == "home" else folder / ".codex"
    place_of_hooks.mkdir(exist_ok=True)
    (place_of_hooks / "hooks.json").write_text("{}", encoding="utf-8")
    for _ in range(3):
        await finished(helm, folder)
    assert await unused(helm, engine) == set()
