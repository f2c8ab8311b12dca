"""What a yes lets happen is known before it is given: a command counts as outside the sandbox unless it is proved to stay
inside, on every Codex. What counts is the file that it writes outside, or does not.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Helmsman
from helmsman.agents.codex import questions
from helmsman.agents.codex.questions import prove
from helmsman.approvals.policy import RuleSet, Workspace, decide
from helmsman.base.structs import replace
from helmsman.model.events import QuestionAsked
from helmsman.model.questions import Question
from helmsman.model.rules import Rule
from helmsman.sessions.session import Session
from helmsman.settings import Settings, load_settings
from helmsman.testing import CodexHome, ScriptedModel, add, call, call_tool, patch, run, say, spawn_agent, wait_agents
from helmsman.testing.binaries import VersionNumbers
from tests.hub_service import hub_service
from tests.shared_engine import on_its_own_engine, on_shared_engine
from tests.testing.test_scripted_model_on_codex import code_mode_model

pytestmark = [pytest.mark.anyio, on_shared_engine]

SECONDS = 60
ON_FAILURE_UNTIL = (0, 145, 0)
ESCALATION_UNDER_UNTRUSTED = (0, 155, 0)
HAS_TERMINALS = (0, 115, 0)
ASKS_ABOUT_INPUT = (0, 163, 0)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory where no sandbox lets Codex write; under /tmp it would."""
    path = Path(tempfile.mkdtemp(prefix="helmsman-outside-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


async def asked(session: Session) -> Question:
    assert await session.wait(timeout=SECONDS)
    (question,) = session.questions
    return question


async def answered(session: Session, answer: str = "approve") -> Session:
    await session.respond((await asked(session)).id, answer)
    assert await session.wait(until="end", timeout=SECONDS)
    return session


def options(repo: Path, sandbox: str = "workspace-write", approval_policy: str = "on-request") -> dict[str, Any]:
    return {"cwd": repo, "sandbox": sandbox, "approval_policy": approval_policy}


def leaves(outside: Path, *, escalate: str | None = None) -> Any:
    """A command that Codex asks about because it looks dangerous, and that tries to write outside."""
    return run(f"rm -f nothing; touch {outside}/made", escalate=escalate)


@pytest.mark.matrix
@pytest.mark.parametrize("sandbox", ["workspace-write", "read-only"])
async def test_under_on_request_what_is_proved_to_stay_inside_stays_there_and_what_leaves_is_outside(
    helm: Helmsman, model: ScriptedModel, folder: Path, outside: Path, sandbox: str
) -> None:
    model.on("plain", leaves(outside), say("done"))
    model.on("escalated", leaves(outside, escalate="please"), say("done"))
    session = await helm.start("plain", **options(folder, sandbox))
    assert (await asked(session)).details["sandbox"] == "inside"
    await answered(session)
    assert not (outside / "made").exists()
    await session.say("escalated")
    assert (await asked(session)).details["sandbox"] == "outside"
    await answered(session)
    assert (outside / "made").exists()


@pytest.mark.matrix
async def test_under_on_request_nothing_is_run_again_outside_however_quickly_it_fails(
    helm: Helmsman, model: ScriptedModel, folder: Path, outside: Path, codex_version: VersionNumbers
) -> None:
    """Newer versions notice a refusal only of what fails at once: under `untrusted` they then ran up to 11 of 12 again."""
    commands = [f"rm -f nothing; touch {outside}/made{number}" for number in range(5)]
    quick: list[Any] = [run(text) for text in commands]
    if codex_version >= (0, 115, 0):
        quick = [call("exec_command", {"cmd": text, "login": False}) for text in commands]
    model.on("go", *quick, say("done"))
    shown: list[str] = []

    async def person(_session: Session, question: Question) -> str:
        shown.append(question.details["sandbox"])
        return "approve"

    session = await helm.start("go", on_question=person, **options(folder))
    assert await session.wait(until="end", timeout=SECONDS)
    assert shown == ["inside"] * len(commands)
    assert list(outside.iterdir()) == []


@pytest.mark.matrix
@on_its_own_engine
async def test_a_command_that_a_rule_of_codexs_own_asks_about_stays_inside(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, outside: Path
) -> None:
    rules = codex_home.path / "rules"
    rules.mkdir(exist_ok=True)
    (rules / "default.rules").write_text('prefix_rule(pattern=["touch"], decision="prompt")\n', encoding="utf-8")
    model.on("go", run(f"touch {outside}/made"), say("done"))
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("go", **options(folder))
        assert (await asked(session)).details["sandbox"] == "inside"
        await answered(session)
    assert not (outside / "made").exists()


@pytest.mark.matrix
async def test_under_untrusted_a_yes_may_mean_both(
    helm: Helmsman, model: ScriptedModel, folder: Path, outside: Path, codex_version: VersionNumbers
) -> None:
    model.on("plain", run(f"touch {outside}/made"), say("done"))
    session = await helm.start("plain", **options(folder, approval_policy="untrusted"))
    assert (await asked(session)).details["sandbox"] == "inside-then-outside"
    await answered(session)
    if codex_version < (0, 115, 0):  # newer ones run it again only if it failed at once, which a busy machine decides
        assert (outside / "made").exists()
    if codex_version >= ESCALATION_UNDER_UNTRUSTED:
        model.on("escalated", leaves(outside, escalate="please"), say("done"))
        await session.say("escalated")
        assert (await asked(session)).details["sandbox"] == "outside"
        await session.interrupt()


@pytest.mark.matrix
async def test_under_on_failure_a_yes_is_for_outside(
    helm: Helmsman, model: ScriptedModel, folder: Path, outside: Path, codex_version: VersionNumbers
) -> None:
    if codex_version >= ON_FAILURE_UNTIL:
        pytest.skip("This Codex has no approval policy on-failure.")
    model.on("go", leaves(outside), say("done"))
    session = await helm.start("go", **options(folder, approval_policy="on-failure"))
    assert (await asked(session)).details["sandbox"] == "outside"
    await answered(session)
    if codex_version < (0, 115, 0):
        assert (outside / "made").exists()


@pytest.mark.matrix
@on_its_own_engine
async def test_in_code_mode_nothing_is_proved(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    folder: Path,
    outside: Path,
    codex_version: VersionNumbers,
) -> None:
    name = code_mode_model(codex_version)
    if name is None:
        pytest.skip("This Codex has no code mode.")
    codex_home.configure(model=name)
    model.on("go", leaves(outside), say("done"))
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("go", **options(folder))
        question = await asked(session)
        assert question.details["sandbox"] == "outside"
        assert (question.item_id or "").startswith("exec-")
        await session.interrupt()


# --- wherever a thread comes from ------------------------------------------------------------------------------------


@pytest.mark.matrix
async def test_a_resumed_and_a_forked_session_are_judged_by_what_holds_now(
    helm: Helmsman, settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, outside: Path
) -> None:
    model.on("hello", say("hello"))
    model.on("plain", leaves(outside), say("done"))
    model.on("escalated", leaves(outside, escalate="please"), say("done"))
    async with Helmsman(settings, env=codex_home.env) as another:
        first = await another.start("hello", **options(folder))
        await first.wait(until="end", timeout=SECONDS)
    policy: dict[str, Any] = {"sandbox": "workspace-write", "approval_policy": "on-request"}
    for prompt, expected in (("plain", "inside"), ("escalated", "outside")):
        resumed = await helm.say(first.id, prompt, **policy)
        assert (await asked(resumed)).details["sandbox"] == expected
        await answered(resumed, "deny")
        forked = await helm.fork(first.id, prompt, **policy)
        assert (await asked(forked)).details["sandbox"] == expected
        await answered(forked, "deny")


@pytest.mark.matrix
async def test_a_sub_agents_command_is_judged_by_its_own_call(
    helm: Helmsman, model: ScriptedModel, folder: Path, outside: Path, codex_version: VersionNumbers
) -> None:
    if codex_version < (0, 115, 0):
        pytest.skip("This Codex has no sub-agents without a feature switched on.")
    model.on("parent", spawn_agent("child work"), wait_agents(), say("parent done"))
    model.on("child work", leaves(outside), leaves(outside, escalate="please"), say("child done"))
    session = await helm.start("parent", **options(folder))
    question = await asked(session)
    assert (question.details["sandbox"], question.agent_id is not None) == ("inside", True)
    await session.respond(question.id, "approve")
    with anyio.fail_after(SECONDS):
        while session.questions[:1] in ([], [question]):
            await session.feed.changed()
    (second,) = session.questions
    assert second.details["sandbox"] == "outside"
    assert not (outside / "made").exists()
    await session.interrupt()


@on_its_own_engine
async def test_an_adopted_session_is_judged_by_what_holds_in_it(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    folder: Path,
    outside: Path,
    detached_engines: Path,
) -> None:
    detached = replace(settings, detach=True, state_dir=detached_engines)
    model.on("plain", leaves(outside), say("done"))
    async with hub_service(detached, codex_home.env) as helm:
        session = await helm.start("plain", **options(folder))
        await asked(session)
    async with hub_service(detached, codex_home.env) as helm:
        adopted = await helm.session(session.id)
        assert (await asked(adopted)).details["sandbox"] == "inside"
        await answered(adopted, "deny")


# --- an answer covers what was shown ---------------------------------------------------------------------------------


@pytest.mark.matrix
async def test_a_yes_for_the_session_to_what_stays_inside_does_not_let_the_same_words_leave(
    helm: Helmsman, model: ScriptedModel, folder: Path, outside: Path
) -> None:
    model.on("plain", leaves(outside), say("done"))
    model.on("escalated", leaves(outside, escalate="please"), say("done"))
    session = await helm.start("plain", **options(folder))
    await answered(session, "approve_session")
    await session.say("plain")
    assert await session.wait(timeout=SECONDS)
    assert session.status == "done"  # the rule of the session answered, not Codex itself
    await session.say("escalated")
    assert (await asked(session)).details["sandbox"] == "outside"
    assert not (outside / "made").exists()
    await session.interrupt()


@pytest.mark.matrix
async def test_a_yes_for_the_session_holds_in_exactly_its_directory(
    helm: Helmsman, model: ScriptedModel, folder: Path
) -> None:
    for place in (folder, folder / "vendor"):
        place.mkdir(exist_ok=True)
        (place / "run.sh").write_text(f"#!/bin/sh\ntouch {place}/ran\n", encoding="utf-8")
        (place / "run.sh").chmod(0o755)
    model.on("here", run("./run.sh", escalate="please"), say("done"))
    model.on("there", run("./run.sh", escalate="please", workdir=str(folder / "vendor")), say("done"))
    session = await helm.start("here", **options(folder))
    await answered(session, "approve_session")
    assert (folder / "ran").exists()
    await session.say("there")
    await asked(session)
    assert not (folder / "vendor" / "ran").exists()
    await session.interrupt()


@pytest.mark.matrix
async def test_files_approved_for_the_session_are_answered_by_helmsman_and_no_others(
    helm: Helmsman, model: ScriptedModel, folder: Path
) -> None:
    model.on("one", patch(add("one.txt", "1\n")), say("done"))
    model.on("again", run("rm one.txt"), patch(add("one.txt", "2\n")), say("done"))
    model.on("two", patch(add("two.txt", "1\n")), say("done"))
    session = await helm.start("one", **options(folder, "read-only"))
    assert (await asked(session)).details["sandbox"] == "outside"
    await answered(session, "approve_session")
    (folder / "one.txt").unlink()
    await session.say("again")
    assert await session.wait(timeout=SECONDS)
    assert (session.status, (folder / "one.txt").read_text(encoding="utf-8")) == ("done", "2\n")
    await session.say("two")
    await asked(session)
    assert not (folder / "two.txt").exists()
    await session.interrupt()


@pytest.mark.matrix
@on_its_own_engine
async def test_no_answer_to_an_mcp_tool_lasts(
    settings: Settings,
    codex_home: CodexHome,
    model: ScriptedModel,
    folder: Path,
    codex_version: VersionNumbers,
    mcp_server_config: dict[str, Any],
) -> None:
    if codex_version < (0, 115, 0):
        pytest.skip("This Codex runs MCP tools without asking.")
    codex_home.configure(mcp_servers=mcp_server_config)
    before = codex_home.config_path.read_bytes()
    model.on("go", call_tool("lab", "write", {"text": "note"}), say("done"))
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("go", **options(folder))
        for _ in range(2):
            question = await asked(session)
            yes, *others = question.prompts[0].options
            assert [option.lower() for option in others] in (["decline", "cancel"], ["deny", "cancel"], ["cancel"])
            await answered(session, yes)
            await session.say("go")
        await asked(session)
        await session.interrupt()
    assert b"approval_mode" not in codex_home.config_path.read_bytes().replace(before, b"")


# --- rules -----------------------------------------------------------------------------------------------------------


def with_rules(settings: Settings, codex_home: CodexHome, tmp_path: Path, text: str) -> Settings:
    user_file = tmp_path / "user" / "helmsman.toml"
    user_file.parent.mkdir()
    user_file.write_text(text, encoding="utf-8")
    flags = {"codex_path": str(settings.codex_path), "detach": False}
    return load_settings(flags, codex_home.env, tmp_path, user_file=user_file)


@pytest.mark.matrix
@on_its_own_engine
async def test_a_plain_rule_answers_what_stays_inside_and_asks_about_what_leaves(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, folder: Path, outside: Path, tmp_path: Path
) -> None:
    rules = '[[rules]]\neffect = "allow"\ncommand = ["rm"]\n[[rules]]\neffect = "allow"\ncommand = ["touch"]\n'
    model.on("plain", leaves(outside), say("done"))
    model.on("escalated", leaves(outside, escalate="please"), say("done"))
    async with Helmsman(with_rules(settings, codex_home, tmp_path, rules), env=codex_home.env) as helm:
        session = await helm.start("plain", **options(folder))
        assert await session.wait(timeout=SECONDS)
        assert session.status == "done"
        await session.say("escalated")
        await asked(session)
        assert not (outside / "made").exists()
        await session.interrupt()


@on_its_own_engine
async def test_a_planted_repository_gains_nothing_by_the_rule_for_git_status(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, outside: Path, tmp_path: Path
) -> None:
    """`git status` runs what `core.fsmonitor` of the repository says, and the model can plant a repository."""
    plant = (
        f"git init -q sub && git -C sub config core.fsmonitor 'touch {outside}/made; false' && touch {git_repo}/planted"
    )
    rules = f'[[rules]]\neffect = "allow"\ncommand = ["git", "status"]\ndirectory = "{git_repo}"\n'
    model.on("plant", run(plant), say("done"))
    model.on("inside", run("rm -f x; git status", workdir=str(git_repo / "sub")), say("done"))
    model.on("outside", run("git status", workdir=str(git_repo / "sub"), escalate="please"), say("done"))
    model.on("here", run("git status", escalate="please"), say("done"))
    rules += '[[rules]]\neffect = "allow"\ncommand = ["rm", "-f", "x"]\n'
    async with Helmsman(with_rules(settings, codex_home, tmp_path, rules), env=codex_home.env) as helm:
        session = await helm.start("plant", **options(git_repo))
        assert await session.wait(until="end", timeout=SECONDS)
        assert (git_repo / "planted").exists()
        await session.say("inside")
        assert await session.wait(timeout=SECONDS)
        assert session.status == "done"  # answered by the rules, and the sandbox held the planted program
        assert not (outside / "made").exists()
        await session.say("outside")
        await asked(session)  # the plain rule does not let it leave
        await answered(session, "deny")
        await session.say("here")
        await answered(session, "approve_session")
        await session.say("outside")
        await asked(session)  # and a yes for the repository is not one for the directory in it
        assert not (outside / "made").exists()
        await session.interrupt()


# --- proofs that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"sandbox_permissions": "require_escalated"},
        {"sandbox_permissions": "with_additional_permissions"},
        {"sandbox_permissions": "something new"},
        {"unknown_key": 1},
        {"environment_id": "local"},
        {"prefix_rule": ["rm"]},
    ],
)
async def test_a_call_with_anything_unknown_in_it_proves_nothing(
    helm: Helmsman, model: ScriptedModel, folder: Path, more: dict[str, Any]
) -> None:
    model.on("go", call("exec_command", {"cmd": "rm -f nothing", **more}), say("done"))
    session = await helm.start("go", **options(folder))
    assert await session.wait(timeout=SECONDS)
    assert all(question.details["sandbox"] == "outside" for question in session.questions)


@pytest.mark.parametrize("more", [{"sandbox_permissions": "use_default"}, {"login": False, "tty": False}])
async def test_harmless_words_in_a_call_do_not_hide_that_it_stays_inside(
    helm: Helmsman, model: ScriptedModel, folder: Path, more: dict[str, Any]
) -> None:
    model.on("go", call("exec_command", {"cmd": "rm -f nothing", **more}), say("done"))
    session = await helm.start("go", **options(folder))
    assert (await asked(session)).details["sandbox"] == "inside"
    await session.interrupt()


# --- a file that is written late -------------------------------------------------------------------------------------


async def test_a_call_that_is_written_down_late_is_waited_for(
    helm: Helmsman, model: ScriptedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = iter([None, None])
    monkeypatch.setattr(questions, "prove", lambda *about: next(late, prove(*about)))
    model.on("go", run("rm -f nothing"), say("done"))
    session = await helm.start("go", **options(folder))
    assert (await asked(session)).details["sandbox"] == "inside"
    assert (await answered(session)).status == "done"


@pytest.mark.matrix
async def test_input_to_a_terminal_outside_is_asked_about_each_time_and_deny_rules_see_it(
    helm: Helmsman, model: ScriptedModel, folder: Path, outside: Path, codex_version: VersionNumbers
) -> None:
    if codex_version < HAS_TERMINALS:
        pytest.skip("This Codex has no commands that one can type into.")
    shell = {"cmd": "bash", "tty": True, "yield_time_ms": 500, "sandbox_permissions": "require_escalated"}
    model.on("go", call("exec_command", shell), say("done"))
    session = await helm.start("go", **options(folder))
    await answered(session)
    terminal = re.search(r"session ID (\d+)", json.dumps(model.requests[-1].body["input"]))
    assert terminal is not None
    typed = {"session_id": int(terminal[1]), "chars": f"rm -rf x; touch {outside}/made\n"}
    model.on("type", call("write_stdin", typed), say("done"))
    await session.say("type")
    if codex_version < ASKS_ABOUT_INPUT:  # docs/security.md says so
        assert await session.wait(until="end", timeout=SECONDS)
        with anyio.fail_after(SECONDS):  # a shell does it in its own time
            while not (outside / "made").exists():
                await anyio.sleep(0.05)
        return
    question = await asked(session)
    assert question.details["sandbox"] == "outside"
    assert question.prompts[0].options == ("approve", "deny", "abort")
    assert "alwaysRule" not in question.details
    workspace = Workspace(directory=folder)
    whole = Rule(effect="allow", text=question.details["command"], outside=True)
    assert decide(question, RuleSet(rules=(whole,)), workspace).effect == "ask"
    denied = Rule(effect="deny", command=("rm", "-rf"))
    assert decide(question, RuleSet(rules=(whole, denied)), workspace).effect == "deny"
    await answered(session, "deny")
    assert not (outside / "made").exists()


async def test_a_call_that_is_never_written_down_is_asked_about_as_outside(
    helm: Helmsman, model: ScriptedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "prove", lambda *_: None)
    model.on("go", run("rm -f nothing"), say("done"))
    session = await helm.start("go", **options(folder))
    assert (await asked(session)).details["sandbox"] == "outside"
    assert (await answered(session)).status == "done"


async def test_a_question_whose_turn_ends_before_it_is_asked_is_not_asked(
    helm: Helmsman, model: ScriptedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = anyio.Event()

    def never(*_: object) -> None:
        looked.set()

    monkeypatch.setattr(questions, "prove", never)
    monkeypatch.setattr(questions, "_PROOF_SECONDS", SECONDS)
    model.on("go", run("rm -f nothing"), say("done"))
    session = await helm.start("go", **options(folder))
    with anyio.fail_after(SECONDS):
        await looked.wait()
    await session.interrupt()
    assert (session.status, len(session.questions)) == ("interrupted", 0)
    assert not any(isinstance(event, QuestionAsked) for event in session.feed.since(0).events)
