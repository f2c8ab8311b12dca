"""What a turn costs through Helmsman's `codex` tool, compared with the built-in `codex mcp-server`.

Both serve the same Codex 0.145.0 (the last with that server) on the same scripted model. Both are warm: connected, with one
turn behind them. Then they take turns, each call a new thread, and the medians are compared, for two kinds of turn: one that
says a sentence, which is almost all overhead, and one that runs a command first. A ratio of at most 1 is the goal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
from tests.compat.servers import Client, Server

from helmsman.testing import ScriptedModel, always, run, say
from helmsman.testing.binaries import codex_version, codex_versions
from helmsman.testing.home import HomeTemplates
from helmsman.testing.repository import make_repository

LAST_WITH_SERVER = "0.145.0"
GOAL = 1.0
ROUNDS = 30
SENTENCE = "One sentence, and that is all."
TURNS: dict[str, list[Any]] = {
    "a sentence": [always(say(SENTENCE))],
    "a command and a sentence": [run("ls"), always(say(SENTENCE))],
}
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk would be measured otherwise


async def measure(rounds: int = ROUNDS) -> bool:
    """Print the comparison; whether the goal was met."""
    binary = codex_versions().get(LAST_WITH_SERVER)
    if binary is None:
        print(f"There is no Codex {LAST_WITH_SERVER} here. Run: python scripts/fetch_codex.py {LAST_WITH_SERVER}")
        return False
    async with ScriptedModel() as model:
        for prompt, steps in TURNS.items():
            model.on(f"Do {prompt}.", *steps)
        with tempfile.TemporaryDirectory(prefix="helmsman-bench-", dir=_MEMORY) as folder:
            templates = HomeTemplates(Path(folder) / "template")
            repository = make_repository(Path(folder) / "repository")
            homes = [templates.new_home(binary, Path(folder) / name) for name in ("original", "helmsman")]
            for home in homes:
                home.use_model(model.base_url, codex_version(binary))
            original = Server.original(binary, homes[0], repository)
            helmsman = Server.helmsman(binary, homes[1], repository)
            async with original.connected() as first, helmsman.connected() as second:
                ratios = [_report(turn, await _take_turns((first, second), turn, rounds)) for turn in TURNS]
    return max(ratios) <= GOAL


async def _take_turns(clients: tuple[Client, Client], turn: str, rounds: int) -> tuple[list[float], list[float]]:
    times: tuple[list[float], list[float]] = ([], [])
    for client in clients:
        await _turn(client, turn)
    for _ in range(rounds):
        for client, taken in zip(clients, times, strict=True):
            taken.append(await _turn(client, turn))
    return times


async def _turn(client: Client, turn: str) -> float:
    began = time.perf_counter()
    result = await client.call("codex", {"prompt": f"Do {turn}."})
    taken = time.perf_counter() - began
    assert result["structuredContent"]["content"] == SENTENCE, result
    return taken


def _report(turn: str, times: tuple[list[float], list[float]]) -> float:
    print(turn)
    for name, taken in zip(("codex mcp-server", "helmsman"), times, strict=True):
        low, median, high = statistics.quantiles(taken, n=4)
        spread = f"quartiles {low * 1000:.1f} to {high * 1000:.1f}, fastest {min(taken) * 1000:.1f}"
        print(f"  {name:17} median {median * 1000:6.1f} ms of {len(taken)} turns ({spread})")
    ratio = statistics.median(times[1]) / statistics.median(times[0])
    print(f"  ratio             {ratio:.2f} (goal: at most {GOAL:.1f})")
    return ratio


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each (default: %(default)s)")
    sys.exit(not anyio.run(measure, parser.parse_args().rounds))
