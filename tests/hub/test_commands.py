"""Commands that only ask: the hub renders what their own process would have said, in a tenth of the time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from helmsman.approvals.rule_book import RuleBook
from helmsman.base.structs import replace
from helmsman.hub.launch import LOG
from helmsman.model.rules import Rule
from helmsman.testing.hubs import hub_pid
from helmsman.testing.repository import make_repository
from tests.hub.commands import SECONDS, THIN, Done, done, home_with, on_terminal, thin, until_nobody_is_served, whole
from tests.hub.conftest import Place
from tests.mcp.test_stdio import Pipe

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there are no hubs")]


# --- options ---------------------------------------------------------------------------------------------------------


async def test_the_process_of_a_command_imports_next_to_nothing(bare_place: Place) -> None:
    program = (
        "import sys, os; before = set(sys.modules); sys.argv = ['helmsman', 'list']\n"
        "from helmsman.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "os.write(1, ' '.join(sorted(set(sys.modules) - before)).encode())"
    )
    ended = await done([sys.executable, "-c", program], bare_place)
    assert "There are no sessions" in ended.stderr
    imported = set(ended.stdout.split())
    assert {name for name in imported if name.partition(".")[0] == "helmsman"} == {
        *(
            "helmsman",
            "helmsman._version",
            "helmsman.cli",
            "helmsman.cli.command_names",
            "helmsman.cli.thin",
            "helmsman.hub",
            "helmsman.hub.control",
            "helmsman.hub.launch",
        ),
        *("helmsman.base", "helmsman.base.user_directories"),
    }
    assert not imported & {"click", "typing", "pathlib", "subprocess", "asyncio", "http", "email", "urllib"}


SAME = (
    ("list",),
    ("list", "--json"),
    ("list", "--query", ""),
    ("list", "--limit", "0"),
    ("list", "--no-such-option"),
    ("list", "--help"),
    ("status",),
    ("status", "0123"),
    ("status", "no"),
    ("status", "no", "--json"),
    ("tasks", "--json"),
    ("tasks", "--limit", "1", "show", "fix-parser"),
    ("tasks", "show", "fix-parser", "--json"),
    ("tasks", "no-such-command"),
    (
        "config",
        "rules",
    ),
    ("config", "rules", "-C", "nowhere"),
    ("config", "rules", "test", "git push", "--json"),
    ("config", "rules", "remove", "3f2a", "--json"),
    ("session", "rollback", "00000000-0000-7000-8000-000000000000"),
    ("respond", "00000000-0000-7000-8000-00000000ffff", "q_1", "approve", "--json"),
    ("session", "archive", "00000000-0000-7000-8000-00000000ffff"),
    ("agents", "models"),
    ("usage", "--since", "sometime"),
    ("session", "worktrees", "--json"),
    ("diff", "T-local-000000000000"),
)
RENDERED = (
    ("list",),
    ("list", "--json"),
    ("list", "--query", ""),
    ("status", "0123"),
    ("status", "no", "--json"),
    ("tasks", "--json"),
    ("tasks", "show", "fix-parser", "--json"),
    ("config", "rules"),
    ("config", "rules", "test", "git push", "--json"),
    ("agents", "models"),
    ("usage", "--since", "sometime"),
    ("session", "worktrees", "--json"),
    ("diff", "T-local-000000000000"),
)
"""The hub renders these. Errors of usage and changes are for the command's own process."""


@pytest.mark.long
async def test_it_says_and_ends_as_it_would_by_itself(served: Place) -> None:
    home_with(served, "codex", "Mend the parser", "Write a \x1b[2Jpoem ✓")
    (served.directory / "helmsman.toml").write_text('[[rules]]\neffect = "deny"\ncommand = ["git", "push"]\n')
    env = {"CODEX_HOME": "codex", "CODEX_CLI_PATH": str(served.directory / "no-codex")}
    differing: dict[tuple[str, ...], tuple[Done, Done]] = {}
    for arguments in SAME:
        here = await done(whole(*arguments), served, {**env, "HELMSMAN_DETACH": "0"})
        there = await done((thin if arguments in RENDERED else whole)(*arguments), served, env)
        if here != there:
            differing[arguments] = here, there
    assert differing == {}


async def test_codex_is_asked_by_an_engine_of_the_hub(place: Place) -> None:
    by_itself = await done(whole("agents", "models", "--json"), place, {"HELMSMAN_DETACH": "0"})
    assert by_itself.code == 0
    for _ in range(2):
        assert await done(thin("agents", "models", "--json"), place) == by_itself
    assert json.loads((await done(whole("engines", "--json"), place)).stdout) == {"engines": []}


async def test_wrong_settings_are_reported_as_ever(served: Place) -> None:
    ended = await done(thin("list", "--json"), served, {"MAX_SESSIONS": "many"})
    assert (ended.code, json.loads(ended.stdout)["error"]["code"]) == (2, "invalid_setting")


# --- owners ----------------------------------------------------------------------------------------------------------


async def test_commands_at_the_same_time_have_each_its_own_home_directory_and_terminal(served: Place) -> None:
    wide, narrow = (home_with(served, name, f"A session of {name} {'x' * 60}END") for name in ("wide", "narrow"))
    elsewhere = served.directory / "elsewhere"
    elsewhere.mkdir()
    other = replace(served, directory=elsewhere)

    async def shown(place: Place, home: Path, columns: int, *expected: str) -> None:
        for _ in range(5):
            command = thin("list")
            async with on_terminal(command, place, {"CODEX_HOME": str(home)}, columns=columns) as (terminal, process):
                with anyio.fail_after(SECONDS):
                    assert await process.wait() == 0
                for text in expected:
                    await terminal.shows(text)
            (_, line) = terminal.screen.splitlines()
            assert ("END" in line, len(line.rstrip()) <= columns) == (columns > 100, True)

    async def found(place: Place, home: Path, count: int) -> None:
        for _ in range(5):
            ended = await done(thin("list", "--directory", "."), place, {"CODEX_HOME": str(home)})
            assert (ended.code, ended.stdout.count("\n")) == (0, count)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shown, served, wide, 200, "of wide")
        tasks.start_soon(shown, other, narrow, 70, "of narrow")
        tasks.start_soon(found, served, wide, 1)
        tasks.start_soon(found, other, wide, 0)


async def test_colours_and_paths_are_those_of_the_caller(served: Place) -> None:
    home = home_with(served, "codex", "Mend the parser")
    at_home = {"HOME": str(served.directory), "CODEX_HOME": str(home)}
    async with on_terminal(thin("list"), served, {**at_home, "NO_COLOR": "1"}, columns=200) as (plain, process):
        await plain.shows("Mend")
        await process.wait()
    async with on_terminal(thin("list"), served, at_home, columns=200) as (coloured, process):
        await coloured.shows(" ~ ")
        await process.wait()
    assert "\x1b[36m" in coloured.raw
    assert "\x1b[36m" not in plain.raw


async def test_another_time_zone_is_for_a_process_of_its_own(served: Place) -> None:
    assert (await done(thin("list"), served, {"TZ": "Asia/Tokyo"})).stderr.count("it did the work itself") == 1
    assert (await done(whole("list"), served, {"TZ": "Asia/Tokyo"})).code == 0


async def test_logs_appear_at_the_level_that_the_user_sets(served: Place) -> None:
    (served.directory / "helmsman.toml").write_text('codex_path = "codex"\n')
    quiet = await done(thin("tasks"), served)
    loud = await done(whole("tasks"), served, {"LOG_LEVEL": "warning"})
    assert "WARNING" not in quiet.stderr
    assert "WARNING helmsman.hub.service_client: codex_path in" in loud.stderr
    assert "DEBUG" in (await done(whole("tasks"), served, {"LOG_LEVEL": "debug"})).stderr


async def test_logs_of_the_hub_come_to_the_pipe_that_wants_them(served: Place) -> None:
    """Each at its own level, and only what is done for it; the protocol on stdout stays clean."""
    written: dict[str, list[str]] = {}
    async with AsyncExitStack() as stack:
        for level in ("debug", "warning", ""):
            server = await stack.enter_async_context(served.started(env={"LOG_LEVEL": level} if level else {}))
            pipe = Pipe(server)
            await pipe.initialize()
            written[level] = server.errors
            await pipe.call("codex_list")
            await pipe.close()
            assert await pipe.rest() == []
            assert await server.ended() == 0
    assert all(any(line.startswith("helmsman: hub ") for line in lines) for lines in written.values())
    assert any(line.startswith("DEBUG ") for line in written["debug"])
    assert not [line for line in (*written["warning"], *written[""]) if line.startswith(("DEBUG ", "INFO "))]
    log = (served.state_dir / LOG).read_text(encoding="utf-8")
    assert " DEBUG " not in log, "the hub's own log keeps its level"


# --- its streams -----------------------------------------------------------------------------------------------------


async def test_stdin_is_read_to_its_end(served: Place) -> None:
    bad = await done(whole("run", "-"), served, stdin=b"x" * 300_000 + b"\xff")
    assert (bad.code, "not UTF-8" in bad.stderr) == (2, True)


async def test_a_long_list_goes_through_the_pager_of_the_terminal(served: Place) -> None:
    home = home_with(served, "codex", *(f"Session {number}" for number in range(700)))
    paging = {"PAGER": "sed s/^/paged:/", "CODEX_HOME": str(home)}
    long_list = whole("list", "--limit", "700")
    async with on_terminal(long_list, served, paging, columns=200, lines=30) as (terminal, process):
        await terminal.shows("paged:ID ")
        with anyio.fail_after(SECONDS):
            assert await process.wait() == 0
        await terminal.shows("Session 0 ")
    assert len(terminal.screen) > 64 * 1024
    assert terminal.screen.count("paged:") == terminal.screen.count("\npaged:") + 1 == 701
    async with on_terminal(thin("list", "--limit", "5"), served, paging, lines=9) as (terminal, process):
        await terminal.shows("Session 695")
        assert await process.wait() == 0
    assert "paged:" not in terminal.screen


@pytest.mark.needs_git
async def test_a_diff_goes_through_the_pager_for_git_of_the_terminal(served: Place) -> None:
    home = home_with(served, "codex", "Change it")
    make_repository(served.directory)
    (served.directory / "made.txt").write_text("hello\n")
    (listed,) = json.loads((await done(thin("list", "--json"), served, {"CODEX_HOME": str(home)})).stdout)["sessions"]
    paging = {"GIT_PAGER": "sed s/^/paged:/", "CODEX_HOME": str(home)}
    async with on_terminal(thin("diff", listed["sessionId"]), served, paging) as (terminal, process):
        await terminal.shows("paged:+hello")
        with anyio.fail_after(SECONDS):
            assert await process.wait() == 0


async def test_a_reader_may_close_the_pipe_early(served: Place) -> None:
    home = home_with(served, "codex", *("A session with a long prompt " * 20 for _ in range(700)))
    env = {**served.env, "CODEX_HOME": str(home)}

    def read_a_little() -> tuple[int, bytes]:
        with subprocess.Popen(
            thin("list", "--limit", "700"), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            return process.wait(SECONDS), process.stderr.read()

    assert await anyio.to_thread.run_sync(read_a_little) == (1, b"")
    await until_nobody_is_served(served)
    whole_list = await done(thin("list", "--limit", "700"), served, {"CODEX_HOME": str(home)})
    assert (whole_list.code, whole_list.stdout.count("\n")) == (0, 700)


async def test_commands_that_ask_run_in_a_separate_process(bare_place: Place) -> None:
    bare_place.state_dir.mkdir(mode=0o700)
    rule = Rule(effect="allow", text="git status", directory=bare_place.directory, below=False, outside=True)
    RuleBook((), bare_place.state_dir).add(rule)
    listed = json.loads((await done(thin("config", "rules", "--json"), bare_place)).stdout)["rules"]
    async with on_terminal(whole("config", "rules", "remove", listed[0]["id"]), bare_place) as (terminal, process):
        await terminal.shows("Remove this rule?")
        terminal.press("y")
        with anyio.fail_after(SECONDS):
            assert await process.wait() == 0
    assert terminal.screen.count("git status") == 1
    assert json.loads((await done(thin("config", "rules", "--json"), bare_place)).stdout)["rules"] == []


# --- who is served ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")
async def test_a_refused_process_may_look_and_changes_nothing(served: Place) -> None:
    sandboxed = (
        "import ctypes, os, sys; assert not ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'helmsman', *sys.argv[1:]])"
    )
    looked = await done([sys.executable, "-c", sandboxed, "list"], served)
    assert (looked.code, "There are no sessions" in looked.stderr) == (0, True)
    changed = await done([sys.executable, "-c", sandboxed, "session", "archive", "0" * 36, "--json"], served)
    assert changed.code == 1
    assert "This process is not served" in json.loads(changed.stdout)["error"]["message"]


async def test_a_program_that_only_starts_a_command_is_no_agent(served: Place) -> None:
    script = served.directory / "helmsman"
    script.write_text(f"#!{sys.executable}\n{THIN}")
    script.chmod(0o755)
    ended = await done(["xargs", str(script)], served, stdin=b"list --json")
    assert (ended.code, json.loads(ended.stdout)) == (0, {"sessions": []}), ended.stderr


@pytest.mark.parametrize("word", ["0", "off"])
async def test_without_detaching_a_command_starts_no_hub(bare_place: Place, word: str) -> None:
    assert (await done(whole("list"), bare_place, {"HELMSMAN_DETACH": word})).code == 0
    assert hub_pid(bare_place.state_dir) is None


async def test_where_no_hub_can_be_the_command_does_it_itself(bare_place: Place) -> None:
    bare_place.state_dir.mkdir()
    bare_place.state_dir.chmod(0o777)
    ended = await done(whole("list"), bare_place)
    assert (ended.code, "There are no sessions" in ended.stderr) == (0, True)


async def test_the_users_file_may_name_another_state_directory(bare_place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    config = tmp_path / "home" / ".config" / "helmsman"
    config.mkdir(parents=True)
    (config / "helmsman.toml").write_text(f'state_dir = "{other}"\n')
    env = {name: value for name, value in bare_place.env.items() if name != "HELMSMAN_STATE_DIR"}
    place = replace(bare_place, env={**env, "HELMSMAN_HUB_IDLE_MS": "0"})
    assert (await done(thin("tasks"), place)).code == 0
    assert (other / "registry.sqlite3").exists()
    with anyio.fail_after(SECONDS):
        while hub_pid(other) or hub_pid(tmp_path / "home/.local/state/helmsman"):
            await anyio.sleep(0.01)


# --- completion ------------------------------------------------------------------------------------------------------


def asked(shell: str, *words: str) -> dict[str, str]:
    line = " ".join(("helmsman", *words))
    typed = words[-1] if shell == "fish" else str(len(words))
    return {"_HELMSMAN_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": typed}


def completions() -> Iterator[tuple[str, tuple[str, ...]]]:
    for shell in ("bash", "zsh", "fish"):
        for words in (
            ("",),
            ("ta",),
            ("status", "00"),
            ("list", "--di"),
            ("tasks", "show", ""),
            ("config", "rules", "-C", ""),
        ):
            yield shell, words


async def test_completions_come_from_the_hub_if_one_runs(bare_place: Place) -> None:
    home = home_with(bare_place, "codex", "Mend the parser", "Write a poem: now")
    env = {"CODEX_HOME": str(home)}
    by_itself = await done(whole(), bare_place, env | asked("fish", "status", "00"))
    assert by_itself.stdout.count("\n") == 4
    assert hub_pid(bare_place.state_dir) is None, "a key press starts none"
    await done(whole("list"), bare_place)
    for shell, words in completions():
        alone = await done(whole(), bare_place, env | asked(shell, *words) | {"HELMSMAN_DETACH": "0"})
        assert await done(thin(), bare_place, env | asked(shell, *words)) == alone, (shell, words)
        assert (alone.code, alone.stderr) == (0, "")


@pytest.mark.parametrize("command", [["list"], ["say", "0000", "go on"], ["run", "work"]])
def test_a_command_in_a_directory_that_was_removed_says_so(
    bare_place: Place, tmp_path: Path, command: list[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    shown = subprocess.run(
        ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone), sys.executable, "-m", "helmsman", *command],
        env=bare_place.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert shown.returncode != 0
    assert "The current directory no longer exists. Change to another one." in shown.stderr
    assert "Traceback" not in shown.stderr
