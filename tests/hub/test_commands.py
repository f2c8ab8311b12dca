"""Commands that the hub runs for a thin process: what that process would have done itself, in a tenth of the time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from helmsman.approvals.policy import Rule
from helmsman.approvals.rule_book import RuleBook
from helmsman.base.processes import Process
from helmsman.cli.thin import PROTOCOL
from helmsman.hub.control import ask_hub
from helmsman.hub.launch import hexed
from helmsman.tasks.calls import CallId, CallLog
from helmsman.testing import say
from helmsman.testing.hubs import hub_pid
from tests import warm
from tests.pseudo_terminal import PseudoTerminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

    from helmsman.testing import ScriptedModel
    from tests.hub.conftest import Place

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there are no hubs")]

SECONDS = 60

THIN = """
import sys
sys.argv[0] = "helmsman"
from helmsman.cli import main
try:
    main()
finally:
    assert "click" not in sys.modules, "it did the work itself"
"""
"""`helmsman`, which fails where the hub did not run the command."""


def thin(*arguments: str) -> list[str]:
    return [sys.executable, "-c", THIN, *arguments]


def whole(*arguments: str) -> list[str]:
    """`helmsman`, however it does it. A hub that it starts has everything imported."""
    return warm.command(*arguments)


@pytest.fixture
async def served(bare_place: Place) -> Place:
    """A place with a hub that has run a command."""
    assert (await done(whole("list"), bare_place)).code == 0
    return bare_place


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str


async def done(
    command: Sequence[str], place: Place, env: Mapping[str, str] | None = None, *, stdin: bytes = b""
) -> Done:
    with anyio.fail_after(SECONDS):
        ended = await anyio.run_process(
            command,
            input=stdin,
            env={**place.env, **(env or {})},
            cwd=place.directory,
            check=False,
            start_new_session=True,
        )
    return Done(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


@asynccontextmanager
async def begun(command: Sequence[str], place: Place) -> AsyncIterator[anyio.abc.Process]:
    process = await anyio.open_process(command, env=place.env, cwd=place.directory, start_new_session=True)
    async with process:
        yield process


@asynccontextmanager
async def on_terminal(
    command: Sequence[str], place: Place, env: Mapping[str, str] | None = None, *, columns: int = 80, lines: int = 40
) -> AsyncIterator[tuple[PseudoTerminal, anyio.abc.Process]]:
    terminal = PseudoTerminal(columns=columns, lines=lines)
    side = terminal.program_side
    try:
        process = await anyio.open_process(
            command,
            stdin=side,
            stdout=side,
            stderr=side,
            env={**place.env, "TERM": "xterm", **(env or {})},
            cwd=place.directory,
            start_new_session=True,
        )
        async with process:
            yield terminal, process
    finally:
        terminal.close()


async def until_nobody_is_served(place: Place) -> None:
    def doors() -> list[Any]:
        status = ask_hub(place.state_dir, "status")
        return [] if status is None else list(status["doors"])

    with anyio.fail_after(SECONDS):
        while await anyio.to_thread.run_sync(doors):
            await anyio.sleep(0.02)


def write_session(home: Path, number: int, directory: str, prompt: str) -> None:
    """A session as Codex leaves it on disk."""
    stamp = f"2026-11-0{1 + number // 1000}T10:{number // 60 % 60:02}:{number % 60:02}.000Z"
    session_id = f"00000000-0000-7000-8000-{number:012x}"
    place = home / "sessions" / "2026" / "11" / stamp[8:10]
    place.mkdir(parents=True, exist_ok=True)
    head = {"id": session_id, "timestamp": stamp, "cwd": directory, "originator": "test", "source": "cli"}
    lines = [
        {"timestamp": stamp, "type": "session_meta", "payload": head},
        {"timestamp": stamp, "type": "event_msg", "payload": {"type": "user_message", "message": prompt}},
    ]
    name = f"rollout-{stamp[:19].replace(':', '-')}-{session_id}.jsonl"
    (place / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def home_with(place: Place, name: str, *prompts: str) -> Path:
    home = place.directory / name
    home.mkdir()
    for number, prompt in enumerate(prompts):
        write_session(home, number, str(place.directory), prompt)
    return home


# --- what it is ------------------------------------------------------------------------------------------------------


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
    assert set(ended.stdout.split()) - {"coverage"} == {
        *("__future__", "_socket", "fcntl", "itertools"),
        *("helmsman", "helmsman._version", "helmsman.cli", "helmsman.cli.thin", "helmsman.hub", "helmsman.hub.launch"),
    }


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
    ("rules",),
    ("rules", "-C", "nowhere"),
    ("rules", "test", "git push", "--json"),
    ("rules", "remove", "3f2a", "--json"),
    ("rollback", "00000000-0000-7000-8000-000000000000"),
    ("respond", "00000000-0000-7000-8000-00000000ffff", "q_1", "approve", "--json"),
    ("archive", "00000000-0000-7000-8000-00000000ffff"),
    ("models",),
    ("usage", "--since", "sometime"),
    ("worktrees", "--json"),
    ("diff", "T-local-000000000000"),
)


async def test_it_says_and_ends_as_it_would_by_itself(served: Place) -> None:
    home_with(served, "codex", "Mend the parser", "Write a \x1b[2Jpoem ✓")
    (served.directory / "helmsman.toml").write_text('[[rules]]\neffect = "deny"\ncommand = ["git", "push"]\n')
    env = {"CODEX_HOME": "codex", "CODEX_CLI_PATH": str(served.directory / "no-codex")}
    differing: dict[tuple[str, ...], tuple[Done, Done]] = {}
    for arguments in SAME:
        here = await done(whole(*arguments), served, {**env, "HELMSMAN_DETACH": "0"})
        there = await done(thin(*arguments), served, env)
        if here != there:
            differing[arguments] = here, there
    assert differing == {}


async def test_codex_is_asked_by_an_engine_of_the_hub(place: Place) -> None:
    by_itself = await done(whole("models", "--json"), place, {"HELMSMAN_DETACH": "0"})
    assert by_itself.code == 0
    for _ in range(2):
        assert await done(thin("models", "--json"), place) == by_itself
    assert json.loads((await done(whole("engines", "--json"), place)).stdout) == {"engines": []}


async def test_wrong_settings_are_told_as_ever(served: Place) -> None:
    ended = await done(thin("list", "--json"), served, {"MAX_SESSIONS": "many"})
    assert (ended.code, json.loads(ended.stdout)["error"]["code"]) == (2, "invalid_setting")


# --- whose it is -----------------------------------------------------------------------------------------------------


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


async def test_colours_and_paths_are_those_of_whoever_asks(served: Place) -> None:
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


async def test_logs_come_to_whoever_wants_them(served: Place) -> None:
    (served.directory / "helmsman.toml").write_text('codex_path = "codex"\n')
    quiet = await done(thin("tasks"), served)
    loud = await done(thin("tasks"), served, {"LOG_LEVEL": "warning"})
    assert "WARNING" not in quiet.stderr
    assert "WARNING helmsman.steering.turns: codex_path in" in loud.stderr
    assert "DEBUG" in (await done(whole("tasks"), served, {"LOG_LEVEL": "debug"})).stderr


# --- its streams -----------------------------------------------------------------------------------------------------


async def test_what_comes_on_stdin_is_read_to_its_end(served: Place) -> None:
    message = b"x" * 300_000
    good = await done(thin("steer", "01234567", "-"), served, stdin=message)
    assert "There is no session 01234567" in good.stderr
    bad = await done(thin("steer", "01234567", "-"), served, stdin=message + b"\xff")
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


async def test_whoever_has_read_enough_may_close_the_pipe(served: Place) -> None:
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


async def test_what_has_to_be_asked_is_asked_by_a_process_of_its_own(bare_place: Place) -> None:
    bare_place.state_dir.mkdir(mode=0o700)
    rule = Rule(effect="allow", text="git status", directory=bare_place.directory, below=False, outside=True)
    RuleBook((), bare_place.state_dir).add(rule)
    listed = json.loads((await done(thin("rules", "--json"), bare_place)).stdout)["rules"]
    async with on_terminal(whole("rules", "remove", listed[0]["id"]), bare_place) as (terminal, process):
        await terminal.shows("Remove this rule?")
        terminal.press("y\n")
        with anyio.fail_after(SECONDS):
            assert await process.wait() == 0
    assert terminal.screen.count("git status") == 1
    assert json.loads((await done(thin("rules", "--json"), bare_place)).stdout)["rules"] == []


# --- ends ------------------------------------------------------------------------------------------------------------


async def test_ctrl_c_ends_the_command_in_the_hub_too(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "At last."))
    task_id = await working_task(place, "slow")
    async with begun(thin("tasks", "wait", task_id), place) as process:
        await until_served(place, process.pid)
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(SECONDS):
            assert await process.wait() == 130
    await until_nobody_is_served(place)
    gate.release()
    assert (await done(thin("tasks", "wait", task_id), place)).code == 0


async def test_a_command_that_waits_goes_on_when_its_hub_is_killed(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "At last."))
    task_id = await working_task(place, "slow")
    async with begun(thin("tasks", "wait", "--json", task_id), place) as process:
        await until_served(place, process.pid)
        await place.kill_hub()
        await until_served(place, process.pid)
        gate.release()
        assert process.stdout is not None
        with anyio.fail_after(SECONDS):
            shown = b"".join([part async for part in process.stdout])
            assert await process.wait() == 0
    assert json.loads(shown)["result"] == "At last."


async def test_ctrl_c_leaves_a_message_queued(place: Place, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "At last."))
    model.on("And then?", say("Nothing more."))
    task_id = await working_task(place, "slow")
    shown = await done(thin("tasks", "show", "--json", task_id), place)
    session_id = json.loads(shown.stdout)["sessionId"]
    async with begun(thin("say", "--queue", session_id, "And then?"), place) as process:
        with anyio.fail_after(SECONDS):
            while "And then?" not in (await done(thin("tasks", "--status", "pending"), place)).stdout:
                await anyio.sleep(0.02)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
    gate.release()
    with anyio.fail_after(SECONDS):
        while "Nothing more." not in (await done(thin("status", session_id), place)).stdout:
            await anyio.sleep(0.05)


async def test_a_hub_that_is_stopped_is_not_waited_for(served: Place) -> None:
    rule = Rule(effect="allow", text="git status", directory=served.directory, below=False, outside=True)
    RuleBook((), served.state_dir).add(rule)
    (listed,) = json.loads((await done(thin("rules", "--json"), served)).stdout)["rules"]
    impatient = "from helmsman.cli import main, thin; import sys; thin._WELCOME_SECONDS = 0.2; main()"
    os.kill(served.hub, signal.SIGSTOP)
    try:
        removing = ["rules", "remove", "--yes", listed["id"]]
        removed = await done([sys.executable, "-c", impatient, *removing], served)
    finally:
        os.kill(served.hub, signal.SIGCONT)
    assert (removed.code, "Removed rule" in removed.stderr) == (0, True)
    await until_nobody_is_served(served)
    assert json.loads((await done(thin("rules", "--json"), served)).stdout)["rules"] == []


async def working_task(place: Place, prompt: str) -> str:
    """A task that works in an engine which outlives whoever began it."""
    from helmsman import Helmsman, load_settings

    settings = load_settings(env=place.env, cwd=place.directory)
    async with Helmsman(settings, env=place.env) as helm:
        session = await helm.start(prompt, cwd=place.directory)
        assert session.task_id is not None
        return session.task_id


async def until_served(place: Place, pid: int) -> None:
    def is_served() -> bool:
        status = ask_hub(place.state_dir, "status")
        return status is not None and pid in [door["pid"] for door in status["doors"]]

    with anyio.fail_after(SECONDS):
        while not await anyio.to_thread.run_sync(is_served):
            await anyio.sleep(0.02)


async def test_stdin_that_was_read_is_there_for_the_next_hub(served: Place) -> None:
    async with begun(thin("steer", "01234567", "-"), served) as process:
        await until_served(served, process.pid)
        await served.kill_hub()
        assert process.stdin is not None
        assert process.stderr is not None
        await process.stdin.send(b"Mind the gap.")
        await process.stdin.aclose()
        with anyio.fail_after(SECONDS):
            said = b"".join([part async for part in process.stderr])
            assert await process.wait() == 2
    assert b"There is no session 01234567" in said


class Door:
    """A thin process made by hand. What it says of itself is the same whenever it asks."""

    def __init__(self, place: Place, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self._address = str(place.state_dir / "hub.sock")
        variables = {**place.env, **(env or {})}
        fields = (
            *(PROTOCOL, "0.0.1", name, str(os.getpid()), hexed((str(place.directory),)), hexed(arguments)),
            *(hexed(f"{key}={value}" for key, value in variables.items()), "000", "0", "0"),
        )
        self._hello = "\t".join(fields).encode() + b"\n"

    def ask(self) -> list[bytes]:
        """All that the hub says, in lines."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SECONDS)
            connection.connect(self._address)
            connection.sendall(self._hello)
            said = b""
            while part := connection.recv(65536):
                said += part
                if b"\nx" in said:
                    break
            return said.splitlines()


async def test_what_was_done_for_a_hub_that_died_is_not_done_again(served: Place) -> None:
    """A hub that dies in between leaves what it has entered; here that is made by hand."""
    calls = CallLog(served.state_dir)
    answer = json.dumps({"code": 7, "said": [["o", b"what it said\n".hex()], ["e", b"and this\n".hex()]]})
    for name, given in (("done", answer), ("begun", None)):
        call = CallId(name, 1, Process.me())
        await calls.begin(call, "This", repeatable=False)
        if given is not None:
            await calls.answer(call, given)
    welcome, *said = await anyio.to_thread.run_sync(Door(served, "done", "archive", "0" * 36).ask)
    assert welcome.startswith(b"w\t")
    assert said == [b"o13", b"what it said", b"", b"e9", b"and this", b"", b"x7"]
    _, _, *said = await anyio.to_thread.run_sync(Door(served, "begun", "archive", "0" * 36).ask)
    assert b"Look whether it was done before" in said[0]
    assert said[-1] == b"x1"
    _, _, *said = await anyio.to_thread.run_sync(Door(served, "fresh", "archive", "0" * 36).ask)
    assert b"There is no session" in said[0]


async def test_nothing_that_a_command_does_ends_the_hub(served: Place) -> None:
    hub = served.hub
    asking = {"_HELMSMAN_COMPLETE": "bash_complete", "COMP_WORDS": "helmsman", "COMP_CWORD": "no number"}
    assert await done(thin(), served, asking) == Done(1, "", "")
    nonsense = Door(served, "nonsense")
    nonsense._hello = f"{PROTOCOL}\tnonsense\n".encode()
    assert await anyio.to_thread.run_sync(nonsense.ask) == []
    assert (await done(thin("list"), served)).code == 0
    assert served.hub == hub


# --- who is served ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")
async def test_a_refused_process_may_look_and_changes_nothing(served: Place) -> None:
    sandboxed = (
        "import ctypes, os, sys; assert not ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'helmsman', *sys.argv[1:]])"
    )
    looked = await done([sys.executable, "-c", sandboxed, "list"], served)
    assert (looked.code, "There are no sessions" in looked.stderr) == (0, True)
    changed = await done([sys.executable, "-c", sandboxed, "archive", "0" * 36, "--json"], served)
    assert changed.code == 1
    assert "The hub does nothing for this process" in json.loads(changed.stdout)["error"]["message"]


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


async def test_commands_that_come_while_a_hub_ends_are_served(served: Place) -> None:
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            for _ in range(5):
                assert (await done(whole("list"), served, {"HELMSMAN_HUB_IDLE_MS": "0"})).code == 0

        for _ in range(3):
            tasks.start_soon(ask)


# --- completion ------------------------------------------------------------------------------------------------------


def asked(shell: str, *words: str) -> dict[str, str]:
    line = " ".join(("helmsman", *words))
    typed = words[-1] if shell == "fish" else str(len(words))
    return {"_HELMSMAN_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": typed}


def completions() -> Iterator[tuple[str, tuple[str, ...]]]:
    for shell in ("bash", "zsh", "fish"):
        for words in (("",), ("ta",), ("status", "00"), ("list", "--di"), ("tasks", "show", ""), ("rules", "-C", "")):
            yield shell, words


async def test_what_a_shell_offers_comes_from_the_hub_if_there_is_one(bare_place: Place) -> None:
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
    assert "The directory you are in does not exist any more. Go to another one." in shown.stderr
    assert "Traceback" not in shown.stderr
