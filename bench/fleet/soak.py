"""`python -m bench.fleet.soak`: a fleet on real Codex, with machines, engines and Postgres killed or stopped at random.

Every task's command writes into a journal outside of the database when it begins, and every 0.1 s that it lives. At the end:
`lost`: acknowledged, and not ended; `twice`: two processes worked on a task at once; `untrue`: the result is not what the
agent said. Prints its seed first. Ends with 1 if any of these is not 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio

from helmsman.agents.codex.detached.records import read_records
from helmsman.errors import HelmsmanError
from helmsman.fleet.client import FleetClient
from helmsman.fleet.setup import init_fleet
from helmsman.fleet.values import FleetDraft
from helmsman.model.inputs import session_options
from helmsman.model.options import TurnInput
from helmsman.tasks.spec import TurnSpec
from helmsman.testing import always, codex_version, installed_codex, make_repository, run, say
from helmsman.testing.home import CodexHome, HomeTemplates
from helmsman.testing.model import ScriptedModel
from helmsman.testing.postgres import Postgres

LEASE = 6.0
_FAULTS = (
    "kill machine",
    "stop machine",
    "end machine",
    "kill engine",
    "kill machine and engine",
    "restart postgres",
    "stop postgres",
)


class Machine:
    """One machine with a supervisor: what ends is started again."""

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
        return [record.codex.pid for record in read_records(state_dir) if record.codex is not None]


class Soak:
    def __init__(self, folder: Path, seed: int, machines: int) -> None:
        self.folder, self.random, self.count = folder, random.Random(seed), machines
        self.journal = folder / "journal"
        self.journal.touch()
        self.accepted: dict[str, str] = {}
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
                    model.on(f"task {number} ", run(self._command(number)), always(say(f"said {number}")))
                repository = make_repository(self.folder / "repository")
                self.machines = []
                for number in range(self.count):
                    home = templates.new_home(binary, self.folder / f"m{number}")
                    home.use_model(model.base_url, codex_version(binary))
                    home.keep_quiet(codex_version(binary))
                    self.machines.append(Machine(f"m{number}", home, server.url(), binary))
                try:
                    return await self._soak(server, repository, seconds)
                finally:
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

    async def _soak(self, server: Postgres, repository: Path, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._supervise)
            with anyio.move_on_after(seconds):
                async with anyio.create_task_group() as running:
                    running.start_soon(self._submit, server.url(), repository)
                    running.start_soon(self._break, server)
            for machine in self.machines:
                machine.signal(signal.SIGCONT)
            server.go_on()
            print(f"{len(self.accepted)} tasks, {sum(self.faults.values())} faults: waiting for the rest", flush=True)
            found = await self._judge(server.url())
            tasks.cancel_scope.cancel()
        return {"seconds": round(time.monotonic() - until + seconds), **found}

    async def _supervise(self) -> None:
        while True:
            for machine in self.machines:
                machine.look()
            await anyio.sleep(0.5)

    async def _submit(self, url: str, repository: Path) -> None:
        """Doors that come and go: each puts in a few tasks, and leaves."""
        number = 0
        while True:
            try:
                async with FleetClient(url) as client:
                    for _ in range(self.random.randint(1, 5)):
                        await self._start(client, repository, number)
                        number += 1
                        await anyio.sleep(self.random.uniform(0.2, 3.0))
            except HelmsmanError as error:
                self.refused[error.code] += 1
                await anyio.sleep(0.5)

    async def _start(self, client: FleetClient, repository: Path, number: int) -> None:
        prompt = f"task {number} "
        full: Any = {"sandbox": "danger-full-access", "approval_policy": "never"}
        spec = TurnSpec(turn=TurnInput(text=prompt), options=session_options(repository, full, ())).as_dict()
        draft = FleetDraft(
            agent="codex",
            instruction=prompt,
            spec={**(spec or {}), "onMachineLoss": "continue"},
            idempotency_key=f"task-{number}",
        )
        while True:
            try:
                self.accepted[(await client.enqueue(draft)).id] = f"said {number}"
            except HelmsmanError as error:
                self.refused[error.code] += 1  # the same key again: it is accepted once
                await anyio.sleep(0.5)
            else:
                return

    async def _break(self, server: Postgres) -> None:
        while True:
            await anyio.sleep(self.random.uniform(2, 12))
            fault, machine = self.random.choice(_FAULTS), self.random.choice(self.machines)
            self.faults[fault] += 1
            match fault:
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
        lost, untrue, statuses = [], [], Counter[str]()
        async with FleetClient(url) as client:
            until = time.monotonic() + 600
            for task_id, said in self.accepted.items():
                task, has = await client.until(
                    task_id, lambda task: not task.is_running, timeout=max(1, until - time.monotonic())
                )
                statuses[task.status] += 1
                if not has:
                    lost.append(task_id)
                elif task.status == "completed" and task.result != said:
                    untrue.append(task_id)
        spans: dict[str, dict[str, tuple[float, float]]] = {}
        for line in self.journal.read_text(encoding="ascii").splitlines():
            number, pid, at = line.split()
            of_task = spans.setdefault(number, {})
            of_task[pid] = of_task.get(pid, (float(at), 0.0))[0], float(at)
        twice = [
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
            "faults": dict(self.faults),
            "ends of workers, by exit code": dict(exits),
            "refused at doors": dict(self.refused),
            "lost": lost,
            "twice at once": twice,
            "untrue": untrue,
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults happen (default: %(default)g)")
    parser.add_argument("--machines", type=int, default=3, help="how many machines (default: %(default)d)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="to make the same choices again")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="helmsman-soak-fleet-"))
    print(f"logs in {place}", flush=True)
    outcome = anyio.run(Soak(place, options.seed, options.machines).run, options.minutes * 60)
    print(json.dumps(outcome, indent=2))
    sys.exit(1 if outcome["lost"] or outcome["twice at once"] or outcome["untrue"] else 0)
