"""What Claude Code says when it is asked about itself or a session: one is started for it that gets no work."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from helmsman.agents.account import Account, Model
from helmsman.agents.claude.pipes import open_child_pipe
from helmsman.agents.found_programs import check_command
from helmsman.base.concurrency import background_tasks
from helmsman.base.git_of_agents import careful_environment
from helmsman.base.json_values import mapping, optional_text, sequence, text, texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from helmsman.agents.claude.binary import ClaudeBinary
    from helmsman.agents.claude.pipes import ClaudePipe
    from helmsman.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What it takes to start a Claude Code. An engine that was found again has none, until somebody brings them."""

    settings: Settings
    binary: ClaudeBinary
    env: Mapping[str, str] | None


@asynccontextmanager
async def _started(means: Means, *arguments: str, directory: Path) -> AsyncIterator[ClaudePipe]:
    """Start a Claude Code in which nothing of the directory runs.

    Raises:
        ProgramRefused: A session may have replaced it.
    """
    await anyio.to_thread.run_sync(check_command, [str(means.binary.path)], means.env)
    argv = [str(means.binary.path), "-p", "--input-format", "stream-json", "--output-format", "stream-json"]
    argv += ["--verbose", "--setting-sources", "user", "--strict-mcp-config", *arguments]
    env = await anyio.to_thread.run_sync(careful_environment, means.binary.environment(means.env), directory)
    async with background_tasks() as tasks, open_child_pipe(tasks, argv, env=env, directory=directory) as pipe:
        yield pipe


async def said_of_itself(means: Means) -> Mapping[str, Any]:
    """Its models, its account."""
    async with _started(means, "--no-session-persistence", directory=Path("/")) as pipe:
        return pipe.answer


async def ask_about(means: Means, session_id: str, directory: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its answer to a request about a session that is on disk. The caller bounds the wait."""
    async with _started(means, "--resume", session_id, directory=directory) as pipe:
        await pipe.send(request)
        async for lines in pipe.lines():
            for response in (mapping(line.get("response")) for line in lines):
                if response.get("request_id") == request["request_id"]:
                    return response
        raise await pipe.loss()


def models_in(said: Mapping[str, Any]) -> tuple[Model, ...]:
    return tuple(
        Model(
            id=text(one.get("value")),
            name=text(one.get("displayName")),
            description=optional_text(one.get("description")),
            is_default=one.get("value") == "default",
            efforts=tuple(texts(one.get("supportedEffortLevels"))),
            default_effort=None,
        )
        for one in map(mapping, sequence(said.get("models")))
    )


def account_in(said: Mapping[str, Any]) -> Account:
    about = mapping(said.get("account"))
    source = optional_text(about.get("apiKeySource")) or optional_text(about.get("tokenSource"))
    kind = None if source in (None, "none") else source
    return Account(
        kind=kind,
        email=optional_text(about.get("email")),
        plan=optional_text(about.get("subscriptionType")),
        requires_login=kind is None,
    )
