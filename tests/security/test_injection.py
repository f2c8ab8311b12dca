"""Nothing a client says becomes a command-line option, another configuration key, a path of ours or a branch of git's."""

from __future__ import annotations

import json
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helmsman import Helmsman
from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.cloud import CloudClient
from helmsman.agents.codex.configuration import check_config, profile_config
from helmsman.agents.codex.exec import exec_command
from helmsman.agents.codex.features import Version
from helmsman.agents.codex.storage import CodexSessions
from helmsman.base.structs import replace
from helmsman.errors import HelmsmanError, InvalidInput, SessionNotFound
from helmsman.git.lifecycle import create, discard
from helmsman.model.options import SessionOptions, TurnInput
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, always, git, make_repository, say

pytestmark = pytest.mark.long

SECONDS = 60
EXEC_FLAGS = [
    *("--add-dir", "--cd", "--config", "--image", "--json", "--model", "--output-schema", "--profile", "--sandbox"),
    "--skip-git-repo-check",
]
ODD_IDS = [
    "--last",
    "-",
    "--all",
    "-c",
    "../../etc/passwd",
    "*",
    "rollout",
    "%",
    "' OR 1=1 --",
    "a\nb",
    "",
    "\ud800",
    "x" * 10_000,
]
"""What is given for the id of a session."""

odd = st.text(max_size=30) | st.sampled_from(["--last", "-c", "--config=x=1", "a=b", "-\n-", "--", "=", '"x"', "\x00"])


def codex(path: Path, version: str = "0.166.0") -> CodexBinary:
    return CodexBinary(
        path=path,
        version=Version.parse(version),
    )


# --- the command line of codex exec ----------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(
    prompt=odd.filter(str.strip), model=odd, instructions=odd, effort=odd, config=st.dictionaries(odd, odd, max_size=3)
)
def test_every_word_for_codex_exec_is_the_one_option_it_was_meant_for(
    tmp_path_factory: pytest.TempPathFactory,
    prompt: str,
    model: str,
    instructions: str,
    effort: str,
    config: dict[str, str],
) -> None:
    place = tmp_path_factory.getbasetemp()
    options = SessionOptions(
        cwd=place, model=model, writes="nothing", developer_instructions=instructions, config=dict(config)
    )
    turn = TurnInput(text=prompt, effort=effort)
    with suppress(InvalidInput):
        command = exec_command(codex(place), place, options, turn, directory=place, scratch=place, session_id=None)
        first, *words, last = command.arguments
        assert (first, last) == ("exec", "-")  # the prompt comes by standard input
        assert {word.partition("=")[0] for word in words} <= set(EXEC_FLAGS)
        assert words.count("--sandbox=read-only") == 1
        assert f"--model={model}" in words
        given_config = [word.removeprefix("--config=").partition("=") for word in words if word.startswith("--config=")]
        assert sorted(key for key, _, _ in given_config) == sorted(
            [*config, "model_reasoning_effort", "developer_instructions"]
        )
        for key, _, value in given_config:
            if key in config:
                assert tomllib.loads(f"value = {value}") == {"value": config[key]}


@pytest.mark.parametrize("session_id", ["--last", "-", "--all", "-c"])
def test_an_id_that_would_be_an_option_is_refused(tmp_path: Path, session_id: str) -> None:
    with pytest.raises(InvalidInput, match="not the id of a session"):
        exec_command(
            codex(tmp_path),
            tmp_path,
            SessionOptions(cwd=tmp_path),
            TurnInput(text="go"),
            directory=tmp_path,
            scratch=tmp_path,
            session_id=session_id,
        )


@pytest.mark.parametrize(
    "key",
    [
        'sandbox_mode="danger-full-access" #',
        "sandbox_mode=x",
        "a\nsandbox_mode",
        "a\rb",
        "a..b",
        ".a",
        "a.",
        "",
        " a",
        'projects."/"',
        "a#b",
    ],
)
def test_a_key_that_would_be_another_one_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="has the key"):
        check_config({key: 1})


@pytest.mark.parametrize("version", ["0.93.0", "0.166.0"])
@pytest.mark.parametrize("name", ["../evil", "..", ".hidden", "a/b", "a\\b", "c:evil", "a\nb", "", "/etc/passwd"])
def test_a_profile_cannot_lead_out_of_codexs_home(tmp_path: Path, name: str, version: str) -> None:
    (tmp_path / "evil.config.toml").write_text('sandbox_mode = "danger-full-access"\n', encoding="utf-8")
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(InvalidInput, match="cannot be the name of a profile"):
        profile_config(codex(tmp_path, version), home, name)


# --- ids of sessions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_id", ODD_IDS)
def test_an_odd_id_finds_nothing_on_disk(tmp_path: Path, session_id: str) -> None:
    folder = tmp_path / "sessions" / "2026" / "01" / "01"
    folder.mkdir(parents=True)
    name = "rollout-2026-01-01T00-00-00-0199a0f2-0000-7000-8000-000000000001.jsonl"
    (folder / name).write_text(json.dumps({"type": "session_meta", "payload": {"id": "x"}}), encoding="utf-8")
    assert CodexSessions(tmp_path).find(session_id) is None


@pytest.mark.anyio
@pytest.mark.parametrize("engine", ["app-server", "exec"])
async def test_no_verb_takes_an_odd_id_for_anything(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, engine: Any
) -> None:
    model.otherwise(say("ok"))
    async with Helmsman(replace(settings, engine=engine), env=codex_home.env) as helm:
        session = await helm.start("hello", cwd=git_repo)
        assert await session.wait(until="end", timeout=SECONDS)
        for session_id in ODD_IDS:
            for verb in (helm.say(session_id, "x"), helm.fork(session_id, "x"), helm.interrupt(session_id)):
                with pytest.raises(SessionNotFound):
                    await verb
        assert len(helm.sessions) == 1
    assert len(model.requests) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("engine", ["app-server", "exec"])
async def test_a_prompt_is_a_prompt(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, engine: Any
) -> None:
    model.otherwise(always(say("ok")))
    prompts = ["--help", "-", "--", "--yolo", "-c sandbox_mode=danger-full-access", "/quit", "@file"]
    async with Helmsman(replace(settings, engine=engine), env=codex_home.env) as helm:
        for prompt in prompts:
            session = await helm.start(prompt, cwd=git_repo)
            assert await session.wait(until="end", timeout=SECONDS)
            assert session.result == "ok", prompt
            await session.say(prompt)
            assert await session.wait(until="end", timeout=SECONDS)
    assert [request.last_user_text for request in model.requests] == [prompt for prompt in prompts for _ in range(2)]


@pytest.mark.anyio
@pytest.mark.parametrize("words", [["status", "--", "--last"], ["say", "--", "--last", "x"], ["interrupt", "--", "-"]])
async def test_the_command_line_takes_no_odd_id_either(
    codex_home: CodexHome, codex_binary: Path, words: list[str]
) -> None:
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process(
            [sys.executable, "-m", "helmsman", *words],
            env={**codex_home.env, "CODEX_CLI_PATH": str(codex_binary)},
            cwd=codex_home.home,
            check=False,
        )
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr


# --- git and the cloud -----------------------------------------------------------------------------------------------


@pytest.mark.needs_git
@pytest.mark.parametrize("name", ["--upload-pack=touch x", "-b", "..", "a b;touch x", "$(touch x)", "ünï", "a\nb"])
def test_the_name_of_a_repository_is_no_option_of_git(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in" / (name if name != ".." else "dots..")
    repository = make_repository(folder)
    tree = create(repository, tmp_path / "state")
    try:
        assert tree.path.is_dir()
        assert git(repository, "branch", "--list", tree.branch).strip().endswith(tree.branch)
        assert tree.path.parent == tmp_path / "state" / "worktrees"
    finally:
        discard(tree)
    assert not list(tmp_path.rglob("x"))


@pytest.mark.anyio
@pytest.mark.parametrize("branch", ["--upload-pack=touch x", "--attempts=4", "-x", "a b"])
async def test_prompts_for_the_cloud_stay_values(tmp_path: Path, branch: str) -> None:
    program = tmp_path / "codex"
    program.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {tmp_path}/words\nexit 1\n', encoding="utf-8")
    program.chmod(0o755)
    client = CloudClient(codex(program), tmp_path, {"PATH": "/usr/bin:/bin"})
    with suppress(HelmsmanError):
        await client.submit("-c x", environment=branch, branch=branch, attempts=2)
    *words, _ = (tmp_path / "words").read_text(encoding="utf-8").split("\0")
    assert [word for word in words if branch in word] == [f"--env={branch}", f"--branch={branch}"]
    assert not any(word == "-c x" for word in words)


@pytest.mark.anyio
@pytest.mark.parametrize("task_id", ["--help", "-", "task_e_1 --apply", "../x", ""])
async def test_an_odd_id_of_a_cloud_task_is_refused(tmp_path: Path, task_id: str) -> None:
    client = CloudClient(codex(tmp_path / "no-such-codex"), tmp_path, {})
    for call in (client.status(task_id), client.diff(task_id), client.results(task_id)):
        with pytest.raises(InvalidInput, match="not the id of a cloud task"):
            await call
