"""Records what the `codex cloud` of real Codex binaries prints, for the tests of `helmsman.agents.codex.cloud`.

    python scripts/record_cloud.py      record on every Codex there is (scripts/fetch_codex.py)

Each binary is asked the same things of a scripted cloud; newer ones, which take no cloud but OpenAI's, only what they
answer without one. The answers go to `tests/golden/cloud/<version>.json`, with addresses and times replaced by stable
ones, so that recording again changes nothing unless Codex has changed.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from helmsman.agents.codex.features import Version
from helmsman.testing import CodexHome, ScriptedCloud, codex_versions

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "cloud"
DIFF = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1,2 @@\n-old\n+new\n+more\n"
HOUR = 3600
SECONDS = 60


class Recorder:
    """Calls one binary, and stores its answers by the name of the story."""

    def __init__(self, binary: Path, home: CodexHome, cloud: ScriptedCloud) -> None:
        self.answers: dict[str, Any] = {}
        self._binary = binary
        self._home = home
        self._cloud = cloud

    async def ask(self, story: str, *arguments: str, env: dict[str, str] | None = None, prompt: bytes = b"") -> None:
        env = self._cloud.env(self._home) if env is None else env
        with anyio.fail_after(SECONDS):
            done = await anyio.run_process(
                [self._binary, "cloud", *arguments], input=prompt, env=env, cwd=self._home.home, check=False
            )
        self.answers[story] = {
            "arguments": list(arguments),
            "exit_code": done.returncode,
            "stdout": self._stable(done.stdout.decode()),
            "stderr": self._stable(done.stderr.decode()),
        }

    def _stable(self, text: str) -> str:
        lines = [line for line in text.splitlines(keepends=True) if not line.startswith("WARNING: proceeding")]
        text = re.sub(r"http://127\.0\.0\.1:\d+", "https://cloud.example", "".join(lines))
        return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "2026-01-02T03:04:05.678901234Z", text)


async def record(binary: Path, version: Version, folder: Path) -> dict[str, Any]:
    home = CodexHome(folder)
    async with ScriptedCloud() as cloud:
        recorder = Recorder(binary, home, cloud)
        ask = recorder.ask
        await ask("not_signed_in", "list", "--json", env=home.env)
        await ask("no_such_command", "cancel", "task_1", env=home.env)
        await ask("too_many_attempts", "diff", "task_1", "--attempt=9", env=home.env)
        cloud.log_in(home)
        if version >= Version.parse("0.152.0"):
            closed = cloud.env(home, reachable=False)["CODEX_CLOUD_TASKS_BASE_URL"].removesuffix("/backend-api")
            offline = home.env | {"HTTPS_PROXY": closed}
            await ask("other_backend", "list", "--json")
        else:
            offline = cloud.env(home, reachable=False)
            await ask_backend(recorder, cloud)
        await ask("unreachable_list", "list", "--json", env=offline)
        await ask("unreachable_status", "status", "task_1", env=offline)
        await ask("unreachable_exec", "exec", "--env=env_1", "-", env=offline, prompt=b"Fix it")
    return recorder.answers


async def ask_backend(recorder: Recorder, cloud: ScriptedCloud) -> None:
    ask = recorder.ask
    cloud.add_environment("env_1", "My project")
    cloud.add_environment("env_2", "Twin")
    cloud.add_environment("env_3", "twin")
    await ask("empty_list", "list", "--json")
    await ask("exec", "exec", "--env=env_1", "-", prompt=b"-Fix it\nall")
    await ask("unknown_environment", "exec", "--env=nowhere", "-", prompt=b"Fix it")
    await ask("ambiguous_environment", "exec", "--env=Twin", "-", prompt=b"Fix it")
    (task,) = cloud.tasks.values()
    for story in ("pending", "ready", "applied", "error"):
        if story == "ready":
            task.complete(DIFF)
        elif story == "applied":
            task.mark_applied()
        elif story == "error":
            task.applied = False
            task.fail()
        task.updated_at = time.time() - HOUR
        await ask(f"{story}_status", "status", task.id)
        await ask(f"{story}_list", "list", "--json")
        await ask(f"{story}_diff", "diff", task.id)
    task.complete(DIFF)
    await ask("no_such_attempt", "diff", task.id, "--attempt=3")
    await ask("no_such_task", "status", "task_unknown")
    for status in (401, 429, 500):
        cloud.fault = lambda _request, status=status: status  # type: ignore[misc]
        await ask(f"http_{status}", "status", task.id)
    cloud.fault = lambda request: 502 if request.method == "POST" else None
    await ask("broken_exec", "exec", "--env=env_1", "-", prompt=b"Fix it")


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, binary in codex_versions().items():
        shown = subprocess.run(
            [binary, "--version"], capture_output=True, encoding="utf-8", timeout=SECONDS, check=True
        )
        with tempfile.TemporaryDirectory() as folder:
            answers = anyio.run(record, binary, Version.parse(shown.stdout.split()[-1]), Path(folder))
        (GOLDEN / f"{name}.json").write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(name, len(answers), "answers")


if __name__ == "__main__":
    main()
