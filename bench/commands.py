"""Commands on the shell with a hub running, beside the same ones without, and beside a Python that does nothing.

Without a hub is what every command did before there was one: import everything, do it, end. `helmsman list` has ten
thousand sessions to choose from. The files are made up and have just been written: it is not the disk that is measured.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio

from bench.figures import Row, Sample, by_turns, compared
from bench.model import ASK_SENTENCE
from bench.place import open_place
from bench.usage import write_sessions
from helmsman.agents.supervisor.records import read_records
from helmsman.testing.hubs import end_hub

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SESSIONS = 10_000
ROUNDS = 12
MOST_PASSES = 60 / 13
"""60 ms, where a Python that does nothing takes 13."""
FIRST_LINE_PASSES = 300 / 13
BESIDE_WITHOUT = 0.5
HELMSMAN = (sys.executable, "-m", "helmsman")
_COMPLETION = {"_HELMSMAN_COMPLETE": "bash_complete", "COMP_WORDS": "helmsman status 0000", "COMP_CWORD": "2"}
_LINE = re.compile(rb"\w[^\r\n]*\r?\n")
_SESSION = "00000000-0000-0000-0000-000000000001"
COMMANDS: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "list": (("list",), {}),
    "status": (("status", _SESSION), {}),
    "tasks": (("tasks",), {}),
    "completion": ((), _COMPLETION),
}


async def measure(rounds: int = ROUNDS) -> list[Row]:
    async with open_place() as place:
        home = place.home("home")
        write_sessions(home.path, SESSIONS)
        env = {**home.env, "CODEX_CLI_PATH": str(place.binary), "HELMSMAN_STATE_DIR": str(place.folder / "state")}
        with_hub, without = {**env, "HELMSMAN_DETACH": "1"}, {**env, "HELMSMAN_DETACH": "0"}

        async def run(command: tuple[str, ...], env: Mapping[str, str]) -> float:
            return await anyio.to_thread.run_sync(_seconds, command, env, place.repository)

        async def cold() -> float:
            end_hub(place.folder / "state")
            return await run((*HELMSMAN, "list"), with_hub)

        rows: list[Row] = []
        try:
            first = await by_turns(
                {"cold": cold, "without": partial(run, (*HELMSMAN, "list"), without)}, rounds // 2, warm_up=1
            )
            for name, (arguments, more) in COMMANDS.items():
                command = *HELMSMAN, *arguments
                times = await by_turns(
                    {
                        "hub": partial(run, command, {**with_hub, **more}),
                        "without": partial(run, command, {**without, **more}),
                        "bare": partial(run, (sys.executable, "-c", "pass"), env),
                    },
                    rounds,
                )
                rows += _rows(name, times)
            asked = *HELMSMAN, "run", "--sandbox", "read-only", ASK_SENTENCE
            begun = await by_turns(
                {
                    "run": partial(anyio.to_thread.run_sync, _first_line, asked, with_hub, place.repository),
                    "bare": partial(run, (sys.executable, "-c", "pass"), env),
                },
                rounds,
            )
            first_line = "first line of `helmsman run` in a terminal, hub running"
            rows.append(compared(first_line, begun["run"], begun["bare"], "python -c pass", FIRST_LINE_PASSES))
            rows.append(
                compared("`helmsman list` that starts the hub", first["cold"], first["without"], "without a hub", None)
            )
        finally:
            end_hub(place.folder / "state")
            for record in read_records(place.folder / "state"):
                record.stop()
        return rows


def _rows(name: str, times: Mapping[str, Sample]) -> list[Row]:
    what = f"`helmsman {name}`, {SESSIONS} sessions, hub running" if name == "list" else f"{name}, hub running"
    hub, bare = times["hub"], times["bare"]
    return [
        compared(what, hub, times["without"], "without a hub", BESIDE_WITHOUT),
        Row(
            what=f"{what}, beside a Python that does nothing",
            goal=f"at most {MOST_PASSES:.1f} × python -c pass (60 ms where that takes 13)",
            helmsman=hub.in_ms(),
            beside=f"python -c pass {bare.in_ms()}",
            ratio=hub.median / bare.median,
            met=hub.median <= MOST_PASSES * bare.median,
        ),
    ]


def _first_line(command: tuple[str, ...], env: Mapping[str, str], directory: Path) -> float:
    """Return the seconds until a command has written a line to its terminal, and let it end."""
    ours, theirs = pty.openpty()
    began = time.perf_counter()
    with subprocess.Popen(command, env=env, cwd=directory, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        while not _LINE.search(written):
            written += os.read(ours, 4096)
        taken = time.perf_counter() - began
        with suppress(OSError):  # Linux reports the end of a terminal as an error
            while os.read(ours, 4096):
                pass
        os.close(ours)
        assert process.wait() == 0
    return taken


def _seconds(command: tuple[str, ...], env: Mapping[str, str], directory: Path) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        command,
        env=env,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    taken = time.perf_counter() - began
    assert done.stdout or done.stderr or "helmsman" not in command, done
    return taken
