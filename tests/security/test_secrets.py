"""Secrets in the common formats come out of nothing that Helmsman writes down or shows.

Each format is put, with other text around it, through every place that keeps or shows text: logs, errors, the reason of a
failed turn, the audit log, the registry, the log of an engine, kept options, and the changes that `install` shows.
"""

from __future__ import annotations

import io
import json
import logging
import string
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helmsman.agents.codex.normalise import failure_from_sentence, turn_failure
from helmsman.agents.supervisor.process import Log
from helmsman.approvals.audit import AuditLog
from helmsman.base.processes import Process
from helmsman.base.redaction import RedactingFilter
from helmsman.base.structs import pack
from helmsman.cli.installing import changes_as_json, locations_of, read_files
from helmsman.clients.changes import Record, Wish, plan_install
from helmsman.clients.locations import CLIENTS, ClientPlatform
from helmsman.errors import EngineRefused, InvalidInput
from helmsman.model.answered_by import PERSON_AT_TERMINAL
from helmsman.model.options import SessionOptions, without_secrets
from helmsman.model.questions import Prompt, Question
from helmsman.service import HelmsmanService
from helmsman.settings import Settings as HelmsmanSettings
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from helmsman.testing import CodexHome, ScriptedModel, fail, say

_LETTERS = string.ascii_letters + string.digits
_UPPER = string.ascii_uppercase + string.digits


def random_text(alphabet: str, size: int) -> st.SearchStrategy[str]:
    """As a key is made: it has a digit, as nearly all have."""
    return st.text(alphabet, min_size=size - 1, max_size=size - 1).map(lambda text: f"7{text}")


FORMATS: dict[str, tuple[str, st.SearchStrategy[str]]] = {
    "OpenAI": ("sk-proj-{}", random_text(_LETTERS, 48)),
    "OpenAI, older": ("sk-{}", random_text(_LETTERS, 48)),
    "Anthropic": ("sk-ant-api03-{}", random_text(_LETTERS + "-_", 90)),
    "GitHub": ("ghp_{}", random_text(_LETTERS, 36)),
    "GitHub, fine-grained": ("github_pat_{}", random_text(_LETTERS + "_", 80)),
    "AWS id": ("AKIA{}", random_text(_UPPER, 16)),
    "AWS secret": ("aws_secret_access_key = {}", random_text(_LETTERS + "/+", 40)),
    "Google": ("AIza{}", random_text(_LETTERS + "-_", 35)),
    "Google, OAuth": ("ya29.{}", random_text(_LETTERS + "-_", 60)),
    "Slack": ("xoxb-{}", random_text(_LETTERS + "-", 40)),
    "JWT": ("eyJhbGciOiJIUzI1NiJ9.{}.c2lnbmF0dXJl", random_text(_LETTERS + "-_", 60)),
    "private key": (
        "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
        st.lists(random_text(_LETTERS + "+/", 64), min_size=1, max_size=5).map("\n".join),
    ),
    "URL": ("https://somebody:{}@git.example.org/x.git", random_text(_LETTERS, 24)),
    "database": ("postgres://app:{}@db.example.org:5432/app", random_text(_LETTERS + "!$%", 20)),
    ".env line": ("DATABASE_PASSWORD={}", random_text(_LETTERS + "!#%&", 20)),
    "exported": ('export STRIPE_API_KEY="{}"', random_text(_LETTERS, 32)),
    "bearer": ("Authorization: Bearer {}", random_text(_LETTERS + "-._~+/", 40)),
    "basic": ("authorization: Basic {}==", random_text(_LETTERS, 30)),
    "option": ("deploy --token {} --now", random_text(_LETTERS, 30)),
    "JSON": ('{{"clientSecret": "{}"}}', random_text(_LETTERS, 30)),
    "PostgreSQL": ("PGPASSWORD={} psql -h db", random_text(_LETTERS, 12)),
    "curl": ("curl -u me:{} https://example.org", random_text(_LETTERS, 12)),
    "mysql": ("mysql -u root -p{} app", random_text(_LETTERS, 12)),
    "sshpass": ("sshpass -p '{}' ssh host", random_text(_LETTERS, 12)),
    "list of arguments": ('["serve", "--token", "{}"]', random_text(_LETTERS, 12)),
    "words of a program": ('["redis-cli", "-a", "{}"]', random_text(_LETTERS, 12)),
    "Slack webhook": ("https://hooks.slack.com/services/T0/B0/{}", random_text(_LETTERS, 24)),
    "Discord webhook": ("https://discord.com/api/webhooks/1234567890/{}", random_text(_LETTERS + "-_", 68)),
    "Telegram": ("https://api.telegram.org/bot123456789:{}/getMe", random_text(_LETTERS + "-_", 35)),
    "xAI": ("xai-{}", random_text(_LETTERS, 80)),
    "GitLab": ("glpat-{}", random_text(_LETTERS, 20)),
    "npm": ("npm_{}", random_text(_LETTERS, 36)),
    "Azure storage": ("AccountName=x;AccountKey={}==;EndpointSuffix=y", random_text(_LETTERS + "+/", 86)),
}

secrets = st.sampled_from(sorted(FORMATS)).flatmap(
    lambda name: FORMATS[name][1].map(lambda secret: (secret, FORMATS[name][0].format(secret)))
)
"""A secret, and the text it stands in."""

around = st.sampled_from(["", "it says ", "\n", "{ ", "see (", "> ", "日本 ", "a = 1; ", "\t", "--flag "])


# --- every place -----------------------------------------------------------------------------------------------------


def in_a_log(text: str, folder: Path) -> str:
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    handler.addFilter(RedactingFilter())
    logger = logging.Logger("test")  # noqa: LOG001 - one that nobody else has
    logger.addHandler(handler)
    logger.warning("Codex said: %s", text)
    logger.error("It failed", exc_info=ValueError(text))
    return shown.getvalue()


def in_an_error(text: str, folder: Path) -> str:
    errors = [InvalidInput(f"{text} makes no sense. Correct it.", given=text), EngineRefused(text, rpc_message=text)]
    return "".join(f"{error} {error.message} {error.as_dict()} {error.again()}" for error in errors)


def in_the_reason_of_a_failure(text: str, folder: Path) -> str:
    return failure_from_sentence(text).message + turn_failure({"message": "No", "additionalDetails": text}).message


def in_the_audit_log(text: str, folder: Path) -> str:
    audit = AuditLog(folder)
    question = Question(
        asker="Codex",
        id="q_1",
        type="command_approval",
        session_id="T1",
        turn_id="U1",
        prompts=(Prompt(text=text, options=("approve",)),),
        details={"command": text, "reason": text},
    )
    audit.record(question, decision="deny", by=PERSON_AT_TERMINAL, reason=text)
    return _as_text(audit.path)


def in_the_registry(text: str, folder: Path) -> str:
    registry = Registry(folder / REGISTRY_NAME)
    task, _ = registry.add(
        TaskDraft(
            id="T-local-1", instruction=text, owner=Process.me(), idempotency_key=text, stored_options={"given": [text]}
        )
    )
    registry.update(task.id, status="failed", result=text, error={"code": "x", "message": text}, note=text, model=text)
    registry.close()
    return "".join(map(_as_text, folder.iterdir()))


def in_the_log_of_an_engine(text: str, folder: Path) -> str:
    log = Log(folder / "stderr.log")
    for line in text.splitlines(keepends=True):
        log.write(line.encode())  # Codex writes line by line
    log.write(b"\nthe end\n")
    return log.tail


def in_kept_options(text: str, folder: Path) -> str:
    options = SessionOptions(
        cwd=folder,
        model=text,
        profile=text,
        config={"model_providers": {"p": {"header": text}}},
        base_instructions=text,
        developer_instructions=text,
    )
    return json.dumps(pack(without_secrets(options)))


def in_what_install_shows(text: str, folder: Path) -> str:
    around = ClientPlatform(platform="linux", env={}, home=folder, project=folder, claude_project=folder)
    (place,) = locations_of(CLIENTS["cursor"], "user", around)
    file = Path(place.path)
    file.parent.mkdir()
    entry = {"command": "x", "args": [text], "env": {"SOME_VALUE": text}}
    file.write_text(json.dumps({"mcpServers": {"x": entry}}, indent=2, ensure_ascii=False), encoding="utf-8")
    changes = plan_install(
        read_files([place]), place, Wish(launch=("helmsman",), shared_launch=("helmsman",)), Record(folder / "state")
    )
    assert changes
    return json.dumps(changes_as_json(changes), ensure_ascii=False)


def _as_text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


PLACES = [
    in_a_log,
    in_an_error,
    in_the_reason_of_a_failure,
    in_the_audit_log,
    in_the_registry,
    in_the_log_of_an_engine,
    in_kept_options,
    in_what_install_shows,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@settings(max_examples=150, deadline=None)
@given(given=secrets, before=around, after=st.sampled_from(["", "\nmore", " and so on", '"', ")", ","]))
def test_a_secret_of_a_common_format_is_nowhere(
    place: Callable[[str, Path], str], given: tuple[str, str], before: str, after: str
) -> None:
    secret, text = given
    with tempfile.TemporaryDirectory() as folder:
        shown = place(f"{before}{text}{after}", Path(folder))
    for line in secret.splitlines():
        assert line not in shown


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(0, 260), max_size=6))
@example(cuts=[40, 120])
def test_a_private_key_that_comes_in_pieces_does_not_reach_the_log_of_an_engine(cuts: list[int]) -> None:
    body = "\n".join(["b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtz"] * 3)
    text = f"loading\n-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\nloaded\n"
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder) / "stderr.log")
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
            log.write(text[begin:end].encode())
        assert "b3BlbnNzaC1rZXkt" not in log.tail
        assert log.tail.startswith("loading\n")
        assert log.tail.endswith("loaded\n")


# --- a whole story ---------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_key_in_prompt_failure_and_configuration_is_in_no_file_of_ours(
    settings: HelmsmanSettings,
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = "sk-proj-" + "a1B2c3D4" * 6
    model.on("use", fail(400, message=f"Incorrect API key provided: {key}."))
    model.otherwise(say(f"the key is {key}"))
    options: Any = {"developer_instructions": f"OPENAI_API_KEY={key}"}
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        failed = await helm.start(f"use {key}", cwd=git_repo, **options)
        assert await failed.wait(until="end", timeout=60)
        said = await helm.start(f"say {key}", cwd=git_repo, idempotency_key=key, model=key)
        assert await said.wait(until="end", timeout=60)
        await helm.task_writer.write()
        assert await helm.start(f"say {key}", cwd=git_repo, idempotency_key=key, model=key) is said
        assert failed.error is not None
        assert "Incorrect API key provided" in failed.error.message
        assert key not in failed.error.message
        with pytest.raises(InvalidInput) as caught:
            await helm.start("x", cwd=f"/no/such/{key}")
        assert key not in str(caught.value)
    files = [path for path in settings.state_dir.rglob("*") if path.is_file()]
    assert {"registry.sqlite3"} <= {path.name for path in files}
    for path in files:
        assert key.encode() not in path.read_bytes(), path
