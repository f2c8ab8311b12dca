"""Records what an earlier Helmsman leaves in its state directory, for the tests of `tests/upgrade`.

    python scripts/record_state.py 6cfdec7 tests/upgrade/state-0.1.0

The code of that commit really runs, with a real Codex on a scripted model. What it leaves goes into the folder: the
registry as SQL, the rules given at a prompt, the token, and the user's `helmsman.toml` it ran with. Paths are replaced by
stable names; ids, times and the token are new each time.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
USER_FILE = """\
max_sessions = 7
approval_timeout_ms = 60000
trusted_projects = ["/src/mine"]
allow_workspace_patches = true

[[rules]]
effect = "allow"
command = ["git", "status"]

[[rules]]
effect = "deny"
command = ["git", "push", "--force"]
reason = "History is shared."

[[rules]]
effect = "allow"
mcp = { server = "notes", tool = "search" }

[[rules]]
effect = "ask"
command = ["npm", "publish"]

[prices."my-model"]
input = 1.75
output = 14.0
"""


def main(commit: str, folder: str) -> None:
    git = shutil.which("git")
    assert git is not None
    with tempfile.TemporaryDirectory(prefix="helmsman-earlier-") as name:
        code = Path(name)
        archive = subprocess.run([git, "-C", ROOT, "archive", commit, "src"], check=True, capture_output=True)
        subprocess.run(["tar", "x", "-C", code], check=True, input=archive.stdout)
        env = os.environ | {"PYTHONPATH": str(code / "src")}
        subprocess.run([sys.executable, __file__, "--inside", str(Path(folder).resolve())], check=True, env=env)


async def work(folder: Path, place: Path) -> None:
    """All that happens in the earlier Helmsman. What differs from today's is looked up by its name of then."""
    testing: Any = importlib.import_module("helmsman.testing")
    helmsman: Any = importlib.import_module("helmsman")
    settings_of: Any = importlib.import_module("helmsman.settings").load_settings
    tasks: Any = importlib.import_module("helmsman.tasks.model")
    registry: Any = importlib.import_module("helmsman.tasks.registry")
    http_token: Any = importlib.import_module("helmsman.mcp.http").http_token

    binary = testing.installed_codex()
    version = testing.codex_version(binary)
    home = testing.HomeTemplates(place / "templates").new_home(binary, place / "home")
    repository = testing.make_repository(place / "repo")
    user_file = place / "helmsman.toml"
    user_file.write_text(USER_FILE, encoding="utf-8")
    settings = settings_of({"codex_path": str(binary), "detach": False}, home.env, place, user_file=user_file)
    options = {"cwd": repository, "sandbox": "workspace-write", "approval_policy": "untrusted", "model": "my-model"}

    async with testing.ScriptedModel() as model:
        home.use_model(model.base_url, version)
        home.keep_quiet(version)
        model.on("Fix the login test", testing.run("touch fixed"), testing.say("The test passes."))
        model.on("Now document it", testing.say("Documented."))
        model.on("Break", testing.fail(400))
        async with helmsman.Helmsman(settings, env=home.env) as helm:
            session = await helm.start("Fix the login test", idempotency_key="fix-issue-17", **options)
            await session.wait(timeout=60)
            await session.respond(session.questions[0].id, "approve_always")
            await session.wait(until="end", timeout=60)
            await session.say("Now document it")
            await session.wait(until="end", timeout=60)
            broken = await helm.start("Break", **options)
            await broken.wait(until="end", timeout=60)
            assert [session.status, broken.status] == ["done", "error"], (session.error, broken.error)
        http_token(settings.state_dir)

    file = registry.Registry(settings.state_dir / registry.REGISTRY_NAME)
    file.add(
        tasks.TaskDraft(
            origin="cloud",
            instruction="Write the docs",
            status="working",
            external_id="task_e_1",
            metadata={"url": "https://chatgpt.com/codex/tasks/task_e_1"},
        )
    )
    mine: Any = importlib.import_module("helmsman.tasks.owner").Owner.me()  # of a process that ends with this
    file.add(tasks.TaskDraft(instruction="Never ended", status="working", directory=str(repository), owner=mine))
    file.close()
    keep(settings.state_dir, folder, {str(repository.resolve()): "/src/site", str(place): "/home/me"})
    (folder / "helmsman.toml").write_text(USER_FILE, encoding="utf-8")


def keep(state_dir: Path, folder: Path, names: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(state_dir / "registry.sqlite3")) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        statements = [line for line in connection.iterdump() if "sqlite_sequence" not in line]
    found = {"registry.sql": "\n".join([*statements, f"PRAGMA user_version = {version};"]) + "\n"}
    found |= {name: (state_dir / name).read_text(encoding="utf-8") for name in ("rules.toml", "http-token")}
    for name, text in found.items():
        for path, stable in names.items():
            text = text.replace(path, stable)
        (folder / name).write_text(text, encoding="utf-8")
    print(f"The state directory had: {', '.join(sorted(file.name for file in state_dir.iterdir()))}")


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        import anyio

        with tempfile.TemporaryDirectory(prefix="helmsman-state-") as name:
            anyio.run(work, Path(sys.argv[2]), Path(name).resolve())
    else:
        main(*sys.argv[1:])
