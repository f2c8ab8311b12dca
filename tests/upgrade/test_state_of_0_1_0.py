"""A state directory as Helmsman 0.1.0 left it is read whole: tasks, rules, settings and the token.

`scripts/record_state.py` made the files, by running the code of 0.1.0.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from helmsman import Helmsman, load_settings
from helmsman.httpd.listening import TOKEN_NAME
from helmsman.model.events import Usage
from helmsman.tasks.registry import REGISTRY_NAME
from tests.clients.server_process import SECONDS, Serving
from tests.httpd.test_http import ACCEPT, HELLO

if TYPE_CHECKING:
    from helmsman.settings import Settings
    from helmsman.testing import CodexHome

pytestmark = pytest.mark.anyio

LEFT = Path(__file__).parent / "state-0.1.0"
TIMES = ("created_at", "updated_at", "completed_at", "last_event_at", "expires_at")


@pytest.fixture
def settings(codex_binary: Path, codex_home: CodexHome, git_repo: Path, tmp_path: Path) -> Settings:
    """Those of a user who has just upgraded. The files stand where they stood, and are as if left a minute ago."""
    state_dir = Path(codex_home.env["HELMSMAN_STATE_DIR"])
    state_dir.mkdir(mode=0o700, parents=True)
    places = {"/src/site": str(git_repo.resolve()), "/src/mine": str(tmp_path / "mine")}

    def left(name: str) -> str:
        text = (LEFT / name).read_text(encoding="utf-8")
        for recorded, here in places.items():
            text = text.replace(recorded, here)
        return text

    with closing(sqlite3.connect(state_dir / REGISTRY_NAME, isolation_level=None)) as registry:
        registry.executescript(left("registry.sql"))
        newest = registry.execute("SELECT max(updated_at) FROM tasks").fetchone()[0]
        age = int((datetime.now(UTC).timestamp() - 60) * 1_000_000) - newest
        registry.execute(f"UPDATE tasks SET {', '.join(f'{name} = {name} + :age' for name in TIMES)}", {"age": age})
    for name in ("rules.toml", TOKEN_NAME):
        (state_dir / name).write_text(left(name), encoding="utf-8")
        (state_dir / name).chmod(0o600)
    user_file = tmp_path / "helmsman.toml"
    user_file.write_text(left("helmsman.toml"), encoding="utf-8")
    user_file.chmod(0o600)
    flags = {"codex_path": str(codex_binary), "detach": False}
    return load_settings(flags, codex_home.env, git_repo, user_file=user_file)


async def test_its_tasks_are_listed_and_belong_to_codex(helm: Helmsman, git_repo: Path) -> None:
    tasks, following = await helm.tasks.list()
    assert [(task.alias, task.origin, task.agent, task.status) for task in tasks] == [
        ("never-ended", "local", "codex", "unknown"),  # its process is gone
        ("write-docs", "cloud", "codex", "working"),
        ("break-task", "local", "codex", "failed"),
        ("document-task", "local", "codex", "completed"),
        ("fix-login-test", "local", "codex", "completed"),
    ]
    assert following is None

    fixed = await helm.tasks.get("fix-login-test")
    assert (fixed.result, fixed.model, fixed.usage) == ("The test passes.", "my-model", Usage(200, 40, 20, 6))
    assert fixed.directory == str(git_repo.resolve())
    assert (await helm.tasks.results(fixed)).cost_usd == pytest.approx(200 * 1.75e-6 + 20 * 14e-6)
    broken = await helm.tasks.get("break-task")
    assert broken.error is not None
    assert broken.error["code"] == "other"


async def test_its_idempotency_keys_and_the_options_of_its_sessions_hold(helm: Helmsman, git_repo: Path) -> None:
    """No model is scripted: a second turn would fail."""
    session = await helm.start("Fix the login test", cwd=git_repo, idempotency_key="fix-issue-17")
    options = session.options
    assert (options.agent, options.writes, options.asks) == ("codex", "workspace", "unless_harmless")
    assert (options.model, options.cwd) == ("my-model", git_repo.resolve())
    assert len(session.task_ids) == 2


async def test_its_rules_allow_only_what_stays_inside_and_refuse_what_they_refused(
    helm: Helmsman, git_repo: Path
) -> None:
    book, place = helm.rules, git_repo.resolve()
    book.check(place)
    listed = [
        (one.rule.describe().partition(" (")[0], one.decides_less, "outside = true" in (one.restore or ""))
        for one in book.listed(place)
    ]
    assert listed == [
        ("allow git status", True, True),
        ("deny git push --force", False, False),
        ("allow MCP notes search", True, True),
        ("ask npm publish", False, False),
        (f"allow /bin/bash -lc 'touch fixed' in {place}", True, True),
    ]

    for allowed in ("git status --short", "touch fixed"):
        assert book.explain(allowed, place, inside=True).effect == "allow"
        assert book.explain(allowed, place, inside=False).effect == "ask", "before 0.2 this left the sandbox unasked"
    assert book.explain("touch fixed", place.parent, inside=True).effect == "ask"
    assert book.explain("npm publish", place, inside=True).effect == "ask"
    refused = book.explain("git push -f", place, inside=True)
    assert (refused.effect, refused.reason) == ("deny", "History is shared.")
    assert book.rules_for(place).allow_workspace_patches


async def test_its_settings_are_read(settings: Settings) -> None:
    assert (settings.max_sessions, settings.approval_timeout, settings.default_agent) == (7, 60, "codex")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to end a server by")
async def test_its_token_still_lets_one_in(
    settings: Settings, codex_home: CodexHome, codex_binary: Path, git_repo: Path
) -> None:
    token = (LEFT / TOKEN_NAME).read_text(encoding="utf-8").strip()
    async with Serving.on(codex_home, codex_binary, git_repo).over_http() as server, httpx2.AsyncClient() as http:
        for given, status in ((f"Bearer {token}", 200), (f"Bearer {token[::-1]}", 401)):
            answer = await http.post(server.url, json=HELLO, headers=ACCEPT | {"Authorization": given}, timeout=SECONDS)
            assert answer.status_code == status, answer.text
