"""`python -m bench.fleet.soak`: a fleet on real Codex, with machines, engines, hubs, clients and Postgres killed or stopped
at random.

Every task's command writes into a journal outside of the database when it begins, and every 0.1 s that it lives. At the end:
`lost`: acknowledged, and not ended; `twice`: two processes worked on a task at once, or one key has two tasks; `untrue`: the
result is not what the agent said, or a client said something else of it. Prints its seed first. Ends with 1 if any of these
is not 0.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from tests.left_processes import hub_processes
from tests.postgres import Postgres

import helmsman
from bench.fleet.pages import DOCS, put
from bench.fleet.soak_client import prompt_of
from helmsman.agents.supervisor.records import read_records
from helmsman.fleet.client import FleetClient
from helmsman.fleet.setup import init_fleet
from helmsman.testing import always, codex_version, installed_codex, make_repository, run, say
from helmsman.testing.home import CodexHome, HomeTemplates
from helmsman.testing.model import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEASE = 6.0
_FAULTS = (
    "kill machine",
    "stop machine",
    "end machine",
    "kill engine",
    "kill machine and engine",
    "kill hub",
    "stop hub",
    "kill client",
    "restart postgres",
    "stop postgres",
)


_NONE = ("lost", "twice at once", "untrue")


class Machine:
    """Machine with a supervisor that restarts what ends."""

    def __init__(self, name: str, home: CodexHome, url: str, binary: Path) -> None:
        self.name, self.home, self._url, self._binary = name, home, url, binary
        self.exits: Counter[int] = Counter()
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        env = {**self.home.env, "HELMSMAN_FLEET_URL": self._url, "CODEX_CLI_PATH": str(self._binary)}
        command = [
            sys.executable,
            "-m",
            "helmsman",
            "fleet",
            "worker",
            "--name",
            self.name,
            "--lease",
            str(LEASE),
            "--capacity",
            "2",
        ]
        with (self.home.home / "worker.log").open("ab") as log:
            return subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home.home
            )

    def look(self) -> None:
        if (code := self.process.poll()) is not None:
            self.exits[code] += 1
            self.process = self._start()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def engines(self) -> list[int]:
        state_dir = Path(self.home.env["HELMSMAN_STATE_DIR"]) / "fleet" / "service"
        return [record.child.pid for record in read_records(state_dir)]


class Laptop:
    """Machine with a hub and a client, which runs none of the work."""

    def __init__(self, home: CodexHome, url: str, repository: Path) -> None:
        self._repository = repository
        self.state_dir = Path(home.env["HELMSMAN_STATE_DIR"])
        self._env = {**home.env, "HELMSMAN_FLEET_URL": url, "HELMSMAN_DETACH": "1"}
        self._log = home.home / "client.log"
        self.client: subprocess.Popen[bytes] | None = None
        self.asked: set[int] = set()
        """Tasks that the client was asked for and has not acknowledged."""

    def signal_hub(self, number: int) -> None:
        for pid in hub_processes(self.state_dir):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        self.signal_hub(signal.SIGCONT)
        if self.client is not None:
            self.client.kill()
            self.client.wait()
        self.signal_hub(signal.SIGTERM)

    def ask(self, number: int) -> None:
        self.asked.add(number)
        if self.client is not None and self.client.stdin is not None:
            with suppress(OSError):  # it was killed just now
                self.client.stdin.write(f"{number}\n".encode())
                self.client.stdin.flush()

    def _open(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bench.fleet.soak_client", str(self._repository)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=DOCS.parent
            )

    async def serve(self, hear: Callable[[dict[str, Any]], None], again: Callable[[set[int]], None]) -> None:
        """Run clients in turn. What one did not acknowledge is requested again: the key of a task is its number."""
        while True:
            self.client = self._open()
            assert self.client.stdout is not None
            while line := await anyio.to_thread.run_sync(self.client.stdout.readline, abandon_on_cancel=True):
                told = json.loads(line)
                if "task" in told:
                    self.asked.discard(told["number"])
                if "error" in told and told["number"] in self.asked:
                    self.asked.discard(told["number"])
                    again({told["number"]})
                hear(told)
            await anyio.to_thread.run_sync(self.client.wait)
            left, self.asked = self.asked, set()
            again(left)


class Soak:
    def __init__(self, folder: Path, seed: int, machines: int) -> None:
        self.folder, self.random, self.count = folder, random.Random(seed), machines
        self.journal = folder / "journal"
        self.journal.touch()
        self.accepted: dict[str, str] = {}
        self.tasks: dict[int, set[str]] = {}
        """Tasks that clients named for each number: exactly one is correct."""
        self.said: dict[int, set[tuple[str, str | None, str]]] = {}
        """Outcome of each task, as clients report it."""
        self.to_do: list[int] = []
        self.faults: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    async def run(self, seconds: float) -> dict[str, Any]:
        binary = installed_codex()
        assert binary is not None, "There is no Codex."
        templates = HomeTemplates(self.folder / "templates")
        (self.folder / "templates").mkdir()
        with Postgres(self.folder) as server:
            await init_fleet(server.url())
            async with ScriptedModel() as model:
                for number in range(10_000):
                    model.on(prompt_of(number), run(self._command(number)), always(say(f"said {number}")))
                repository = make_repository(self.folder / "repository")
                self.machines = []
                for number in range(self.count):
                    home = templates.new_home(binary, self.folder / f"m{number}")
                    home.use_model(model.base_url, codex_version(binary))
                    home.keep_quiet(codex_version(binary))
                    self.machines.append(Machine(f"m{number}", home, server.url(), binary))
                homes = [templates.new_home(binary, self.folder / f"laptop{number}") for number in range(2)]
                self.laptops = [Laptop(home, server.url(), repository) for home in homes]
                try:
                    return await self._soak(server, seconds)
                finally:
                    for laptop in self.laptops:
                        laptop.end()
                    for machine in self.machines:
                        machine.signal(signal.SIGCONT)
                        machine.signal(signal.SIGTERM)
                    for machine in self.machines:
                        with suppress(subprocess.TimeoutExpired):
                            machine.process.wait(25)
                        machine.signal(signal.SIGKILL)
                        machine.process.wait()

    def _command(self, number: int) -> str:
        line = f'echo "{number} $$ $(date +%s.%N)" >> {self.journal}'
        return f"{line}; for i in $(seq {self.random.randint(3, 60)}); do sleep 0.1; {line}; done"

    async def _soak(self, server: Postgres, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._supervise)
            for laptop in self.laptops:
                tasks.start_soon(laptop.serve, self._hear, self.to_do.extend)
            with anyio.move_on_after(seconds):
                async with anyio.create_task_group() as running:
                    running.start_soon(self._submit)
                    running.start_soon(self._break, server)
            for machine in self.machines:
                machine.signal(signal.SIGCONT)
            for laptop in self.laptops:
                laptop.signal_hub(signal.SIGCONT)
            server.go_on()
            print(f"{len(self.accepted)} tasks, {sum(self.faults.values())} faults: waiting for the rest", flush=True)
            await self._hand_out_rest()
            found = await self._judge(server.url())
            tasks.cancel_scope.cancel()
        return {"seconds": round(time.monotonic() - until + seconds), **found}

    def _hear(self, told: dict[str, Any]) -> None:
        number = told["number"]
        if "task" in told:
            self.tasks.setdefault(number, set()).add(told["task"])
            self.accepted[told["task"]] = f"said {number}"
        elif "error" in told:
            self.refused[told["error"]] += 1
        else:
            self.said.setdefault(number, set()).add((told["status"], told["result"], told["failure"]))

    async def _supervise(self) -> None:
        while True:
            for machine in self.machines:
                machine.look()
            await anyio.sleep(0.5)

    async def _submit(self) -> None:
        """Submit work occasionally through any client, and repeat what a client did not acknowledge."""
        number = 0
        while True:
            self._hand_out()
            self.random.choice(self.laptops).ask(number)
            number += 1
            await anyio.sleep(self.random.uniform(0.2, 2.5))

    def _hand_out(self) -> None:
        while self.to_do:
            self.random.choice(self.laptops).ask(self.to_do.pop())

    async def _hand_out_rest(self) -> None:
        with anyio.move_on_after(120):
            while self.to_do or any(laptop.asked for laptop in self.laptops):
                self._hand_out()
                await anyio.sleep(0.5)

    async def _break(self, server: Postgres) -> None:
        while True:
            await anyio.sleep(self.random.uniform(2, 12))
            fault, machine = self.random.choice(_FAULTS), self.random.choice(self.machines)
            laptop = self.random.choice(self.laptops)
            self.faults[fault] += 1
            match fault:
                case "kill hub":
                    laptop.signal_hub(signal.SIGKILL)
                case "stop hub":
                    laptop.signal_hub(signal.SIGSTOP)
                    await anyio.sleep(self.random.uniform(1, 2 * LEASE))
                    laptop.signal_hub(signal.SIGCONT)
                case "kill client":
                    if laptop.client is not None:
                        laptop.client.kill()
                case "kill machine":
                    machine.signal(signal.SIGKILL)
                case "end machine":
                    machine.signal(signal.SIGTERM)
                case "stop machine":
                    machine.signal(signal.SIGSTOP)
                    await anyio.sleep(self.random.uniform(1, 3 * LEASE))
                    machine.signal(signal.SIGCONT)
                case "kill engine" | "kill machine and engine":
                    if fault != "kill engine":
                        machine.signal(signal.SIGKILL)
                    for pid in machine.engines():
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                case "restart postgres":
                    await anyio.to_thread.run_sync(server.stop, signal.SIGQUIT)
                    await anyio.sleep(self.random.uniform(0, 2 * LEASE))
                    await anyio.to_thread.run_sync(server.start)
                case "stop postgres":
                    server.freeze()
                    try:
                        await anyio.sleep(self.random.uniform(1, 2 * LEASE))
                    finally:
                        server.go_on()

    async def _judge(self, url: str) -> dict[str, Any]:
        lost, untrue, statuses, failures = [], [], Counter[str](), Counter[str]()
        lost += [f"task {number} was never acknowledged" for laptop in self.laptops for number in laptop.asked]
        twice = [f"task {number} is {', '.join(ids)}" for number, ids in self.tasks.items() if len(ids) > 1]
        numbers = {task_id: number for number, ids in self.tasks.items() for task_id in ids}
        async with FleetClient(url) as client:
            until = time.monotonic() + 600
            for task_id, said in self.accepted.items():
                task, has = await client.until(
                    task_id, lambda task: not task.is_running, timeout=max(1, until - time.monotonic())
                )
                statuses[task.status] += 1
                if task.error is not None:
                    failures[f"{task.error.get('code')}: {task.error.get('message')}"] += 1
                if not has:
                    lost.append(task_id)
                elif task.status == "completed" and task.result != said:
                    untrue.append(f"{task_id} says {task.result}")
                for status, result, failure in self.said.get(numbers[task_id], ()):
                    if (status == "done", result) != (task.status == "completed", task.result):
                        told = f"{status} ({result or failure})"
                        untrue.append(f"{task_id} is {task.status} ({task.result}), a client says {told}")
        spans: dict[str, dict[str, tuple[float, float]]] = {}
        for line in self.journal.read_text(encoding="ascii").splitlines():
            number, pid, at = line.split()
            of_task = spans.setdefault(number, {})
            of_task[pid] = of_task.get(pid, (float(at), 0.0))[0], float(at)
        twice += [
            number
            for number, runs in spans.items()
            if any(later[0] <= earlier[1] for earlier, later in pairwise(sorted(runs.values())))
        ]
        again = sum(len(runs) > 1 for runs in spans.values())
        exits = sum((machine.exits for machine in self.machines), Counter[int]())
        return {
            "tasks": len(self.accepted),
            "begun again": again,
            "statuses": dict(statuses),
            "failures": dict(failures),
            "faults": dict(self.faults),
            "ends of workers, by exit code": dict(exits),
            "ends that clients were told": sum(map(len, self.said.values())),
            "refused at clients": dict(self.refused),
            "lost": lost,
            "twice at once": twice,
            "untrue": untrue,
        }


def report(found: Mapping[str, Any], minutes: float, seed: int) -> str:
    """Return the table of docs/appendix/reliability.md."""
    binary = installed_codex()
    codex = ".".join(map(str, codex_version(binary))) if binary is not None else ""
    counted = {name: value for name, value in found.items() if name not in _NONE and not isinstance(value, dict)}
    rows = {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "how long": f"{minutes:g} minutes, seed {seed}",
        "versions": f"Helmsman {helmsman.__version__}, Codex {codex}, Python {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        **{name: value for name, value in counted.items() if name != "seconds"},
        **{
            name: ", ".join(f"{count} {key}" for key, count in sorted(found[name].items(), key=str)) or "none"
            for name in ("statuses", "faults", "ends of workers, by exit code", "refused at clients")
        },
        **{name: f"**{len(found[name])}**" for name in _NONE},
    }
    return "\n".join(
        ("| what | a fleet |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items()))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults happen (default: %(default)g)")
    parser.add_argument("--machines", type=int, default=3, help="how many machines (default: %(default)d)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="to make the same choices again")
    parser.add_argument("--report", action="store_true", help="write the result into docs/appendix/reliability.md")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="helmsman-soak-fleet-"))
    print(f"logs in {place}", flush=True)
    outcome = anyio.run(Soak(place, options.seed, options.machines).run, options.minutes * 60)
    print(json.dumps(outcome, indent=2))
    if options.report:
        put(DOCS / "appendix" / "reliability.md", report(outcome, options.minutes, options.seed))
    return int(any(outcome[name] for name in _NONE))


if __name__ == "__main__":
    sys.exit(main())
