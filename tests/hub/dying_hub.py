"""Hub that is killed just before, or just after, a supervised agent gets a task. Run as a program."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Literal

import anyio

from helmsman import load_settings
from helmsman.agents.supervisor.client import SupervisedProcess
from helmsman.base.structs import replace
from helmsman.settings import Settings
from tests.hub_service import hub_service

REPOSITORY = Path(__file__).parents[2]


async def dies(
    settings: Settings,
    env: dict[str, str],
    prompt: str,
    *,
    when: Literal["before", "after"],
    session_id: str | None = None,
    **options: Any,
) -> None:
    """Send a prompt through a hub, in a new or an existing session, and let the hub die of it."""
    order = {
        "env": env,
        "state_dir": str(settings.state_dir),
        "claude_path": None if settings.claude_path is None else str(settings.claude_path),
        "prompt": prompt,
        "when": when,
        "session_id": session_id,
        "options": options,
    }
    done = await anyio.run_process(
        [sys.executable, "-m", __name__], input=json.dumps(order).encode(), cwd=REPOSITORY, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def settings_for(env: dict[str, str], state_dir: Path, claude_path: str | None) -> Settings:
    given = {"detach": True} if claude_path is None else {"detach": True, "claude_path": claude_path}
    return replace(load_settings(given, env, state_dir), state_dir=state_dir)


async def _die(order: dict[str, Any]) -> None:
    send = SupervisedProcess.send

    async def send_or_die(child: SupervisedProcess, line: str) -> None:
        is_it = order["prompt"] in line
        if not is_it or order["when"] == "after":
            await send(child, line)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(SupervisedProcess, "send", send_or_die)  # noqa: B010 - it is the program that is to die
    settings = settings_for(order["env"], Path(order["state_dir"]), order["claude_path"])
    async with hub_service(settings, order["env"]) as helm:
        if order["session_id"] is None:
            await helm.start(order["prompt"], **order["options"])
        else:
            await helm.say(order["session_id"], order["prompt"])
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(_die, json.load(sys.stdin))
