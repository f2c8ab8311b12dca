"""Fleet on one machine, shown: `make demo-fleet`.

A real Postgres, three workers as three machines (each with a home and a state directory of its own), twenty tasks of a real
Codex on a scripted model. One worker is killed with everything on it while it works. At the end all are done. Each task
writes into a file outside of the database when it begins and for as long as it works: that says that none was done twice at
once, and none was done again that had ended.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from tests.postgres import Postgres

from helmsman import Helmsman
from helmsman.model.options import Placement
from helmsman.settings import load_settings
from helmsman.testing import ScriptedModel, make_repository, run, say
from helmsman.testing.binaries import codex_version
from helmsman.testing.home import HomeTemplates

_SECONDS = 600.0
_LEASE = 6
_OPTIONS: Any = {
    "sandbox": "danger-full-access",
    "approval_policy": "never",
    "placement": Placement(on_machine_loss="continue"),
}


async def show(tasks: int, binary: Path, folder: Path) -> int:
    """Run the demo, and return the exit code."""
    journal = folder / "journal"
    journal.touch()
    repository = make_repository(folder / "shop")
    templates = HomeTemplates(folder / "templates")
    workers: dict[str, subprocess.Popen[bytes]] = {}
    async with AsyncExitStack() as exits:
        model = await exits.enter_async_context(ScriptedModel())
        server = exits.enter_context(Postgres(folder / "database"))
        url = server.url()
        _tell("a Postgres is running")
        await anyio.run_process([sys.executable, "-m", "helmsman", "fleet", "init", url])
        homes = {name: templates.new_home(binary, folder / name) for name in ("north", "east", "south", "laptop")}
        for home in homes.values():
            home.use_model(model.base_url, codex_version(binary))
            home.keep_quiet(codex_version(binary))
        environments = {
            name: {**home.env, "HELMSMAN_DETACH": "1", "HELMSMAN_FLEET_URL": url, "CODEX_CLI_PATH": str(binary)}
            for name, home in homes.items()
        }
        exits.callback(_end, workers)
        for name in ("north", "east", "south"):
            workers[name] = _worker(name, environments[name], folder)
        for number in range(1, tasks + 1):
            beats = f'for i in 1 2 3 4 5 6 7 8; do echo "{number} $$ $(date +%s.%N)" >> {journal}; sleep 0.1; done'
            model.on(f"task {number}.", run(beats), say(f"task {number} is done"))
        env = environments["laptop"]
        helm = await exits.enter_async_context(Helmsman(load_settings({}, env, repository), env=env))
        sessions = [
            await helm.start(f"task {number}.", cwd=repository, idempotency_key=f"demo-{number}", **_OPTIONS)
            for number in range(1, tasks + 1)
        ]
        _tell(f"{len(sessions)} tasks are accepted")
        with anyio.fail_after(_SECONDS):
            await anyio.to_thread.run_sync(_until_begun, journal)
            lost = await _busiest(helm)
            workers[lost].kill()
            _tell(f"{lost} is killed, with everything on it")
            for session in sessions:
                await session.wait(until="end")
        done, _ = await helm.tasks.list(origin="fleet", limit=1000)
        places: dict[str, int] = {}
        for task in done:
            machine = str(task.placement.get("machine"))
            places[machine] = places.get(machine, 0) + 1
    for task in done:
        if task.status != "completed":
            _tell(f"{task.instruction} is {task.status}: {task.note or (task.error or {}).get('message')}")
    completed = sum(task.status == "completed" for task in done)
    twice = sum(_overlap(journal, number) for number in range(1, tasks + 1))
    _tell(f"{completed} of {tasks} done: " + ", ".join(f"{count} on {name}" for name, count in sorted(places.items())))
    _tell(f"{twice} done twice at once")
    return 0 if completed == tasks and len(done) == tasks and not twice else 1


def _worker(name: str, env: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        command = ["helmsman", "fleet", "worker", "--name", name, "--capacity", "2", "--lease", str(_LEASE)]
        return subprocess.Popen(
            [sys.executable, "-m", *command], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
        )


def _end(workers: dict[str, subprocess.Popen[bytes]]) -> None:
    for worker in workers.values():
        with suppress(ProcessLookupError):
            worker.send_signal(signal.SIGTERM)
    for worker in workers.values():
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _until_begun(journal: Path) -> None:
    until = time.monotonic() + _SECONDS
    while not journal.read_text(encoding="ascii") and time.monotonic() < until:
        time.sleep(0.05)


async def _busiest(helm: Helmsman) -> str:
    """Return the machine that has the most to lose."""
    while True:
        working, _ = await helm.tasks.list(origin="fleet", status=["working"], limit=1000)
        machines = [str(task.placement["machine"]) for task in working if task.placement.get("machine")]
        if machines:
            return max(set(machines), key=machines.count)
        await anyio.sleep(0.1)


def _overlap(journal: Path, number: int) -> bool:
    """Return whether two processes worked on a task at once."""
    spans: dict[str, tuple[float, float]] = {}
    for line in journal.read_text(encoding="ascii").splitlines():
        task, pid, at = line.split()
        if task == str(number):
            first, _ = spans.get(pid, (float(at), 0.0))
            spans[pid] = first, float(at)
    ordered = sorted(spans.values())
    return any(later[0] <= earlier[1] for earlier, later in pairwise(ordered))


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--codex", type=Path, default=None, help="the Codex binary; that of the PyPI wheel by default")
    given = parser.parse_args()
    binary = given.codex
    if binary is None:
        from helmsman.agents.codex.binary import find_codex

        binary = anyio.run(find_codex).path
    folder = Path(tempfile.mkdtemp(prefix="helmsman-fleet-"))
    folder.chmod(0o755)
    try:
        return anyio.run(show, given.tasks, binary, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
