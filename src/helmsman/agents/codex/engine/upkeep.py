"""What the app-server can do beyond running turns: upkeep of sessions, models, the account.

Each method is the boundary's verb (`agents.protocol.Engine`) in terms of the bare methods of
`helmsman.agents.codex.wire.app_server`, with what differs between versions of Codex.
"""

from __future__ import annotations

import json
import logging
import subprocess
import tempfile
from abc import abstractmethod
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.codex.access.plan import configured_access
from helmsman.agents.codex.engine.review_output import from_text, is_of, read_review
from helmsman.agents.codex.features import Feature
from helmsman.agents.codex.normalise import from_app_server
from helmsman.agents.codex.starting import codex_environment
from helmsman.agents.configured import InForce
from helmsman.agents.event_router import RoutedEngine
from helmsman.agents.own_terminal import OwnTerminal
from helmsman.agents.protocol import Capability
from helmsman.base.json_values import optional_text
from helmsman.errors import EngineRefused, HelmsmanError
from helmsman.model.events import RateLimitsReported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.agents.account import Account, Login, Model, SkillList
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.agents.codex.wire.app_server import AppServer
    from helmsman.agents.configured import AgentConfig, ConfigEdit
    from helmsman.agents.protocol import Goal, ReviewReport

log = logging.getLogger(__name__)

_FILE_ATTEMPTS: Final = 10
_STRICT_SECONDS: Final = 10.0
_FILE_PAUSE: Final = 0.1


class _LoginEnd:
    def __init__(self) -> None:
        self.told = anyio.Event()
        self.error: str | None = None


class AppServerUpkeep(RoutedEngine):
    """The part of the engine that needs little more than the bare methods."""

    listens_at: tuple[Path, Path] | None = None
    """The socket for those who may connect beside us, and its CODEX_HOME."""

    @cached_property
    def _logins(self) -> dict[str, _LoginEnd]:
        return {}

    @property
    @abstractmethod
    def api(self) -> AppServer:
        """The bare methods, for what needs no more than one request."""

    @property
    @abstractmethod
    def binary(self) -> CodexBinary:
        """The Codex that runs."""

    @abstractmethod
    def keep_goal_paused(self, session_id: str) -> None:
        """Something was asked for after which the goal is not to be gone on with by itself."""

    @abstractmethod
    def forget(self, session_id: str) -> None:
        """Codex has unloaded a session: what is known of it here holds no more."""

    @abstractmethod
    def hold_to_roots(self, session_id: str) -> None:
        """Make sure that what is about to run in a loaded session can write only inside the allowed roots."""

    # --- the agent's own program ---------------------------------------------------------------------------------------

    async def own_terminal(self, session_id: str) -> OwnTerminal:
        self.capabilities.require(Capability.ATTACH)
        if self.listens_at is None:
            raise self._refusal(Capability.ATTACH)
        socket, codex_home = self.listens_at
        # Its page about a newer model comes before all else, and the answer it proposes would change the session's model.
        newer = (await self.api.model_upgrades()).items()
        seen = ", ".join(f"{json.dumps(old)} = {json.dumps(new)}" for old, new in newer)
        options = "check_for_update_on_startup=false", f"notice.model_migrations={{ {seen} }}"
        return OwnTerminal(
            command=(
                *(str(self.binary.path), "resume", session_id, "--remote", f"unix://{socket}"),
                *(word for option in options for word in ("-c", option)),
            ),
            variables={"CODEX_HOME": str(codex_home)},
            engine=None if self.is_of_a_person else self.id,
        )

    # --- upkeep ------------------------------------------------------------------------------------------------------

    async def roll_back(self, session_id: str, turns: int) -> None:
        if self.binary.can(Feature.REVERT):
            try:
                await self.api.revert_thread(session_id, (await self.history(session_id))[-turns].id)
            except EngineRefused:  # the history of older sessions cannot be reverted
                if not self.binary.can(Feature.ROLLBACK):
                    raise
            else:
                return
        await self.api.roll_back_thread(session_id, turns)

    async def compact(self, session_id: str) -> None:
        self.keep_goal_paused(session_id)
        await self.api.compact_thread(session_id)

    async def rename(self, session_id: str, name: str) -> None:
        await self.api.name_thread(session_id, name)

    async def archive(self, session_id: str) -> None:
        await self.api.archive_thread(session_id)
        self.forget(session_id)

    async def unarchive(self, session_id: str) -> None:
        await self.api.unarchive_thread(session_id)

    async def unload(self, session_id: str) -> None:
        """Codex lets go at once only of a thread that is archived; any other it goes on with as it has it in memory."""
        if session_id in await self.api.loaded_threads():
            await self.archive(session_id)
            await self.unarchive(session_id)

    async def goal(self, session_id: str) -> Goal | None:
        return await self.api.goal(session_id)

    async def set_goal(self, session_id: str, objective: str | None) -> Goal | None:
        self.keep_goal_paused(session_id)
        if objective is None:
            await self.api.clear_goal(session_id)
            return None
        self.hold_to_roots(session_id)  # Codex sets to work on it at once
        return await self.api.set_goal(session_id, objective)

    # --- reviews -----------------------------------------------------------------------------------------------------

    async def review_report(self, session_id: str, shown: str | None) -> ReviewReport | None:
        """Codex tells of the end before it has written it down, so the file may still have to catch up."""
        path = (await self.api.read_thread(session_id)).path
        for _ in range(_FILE_ATTEMPTS if path is not None else 0):
            report = await anyio.to_thread.run_sync(read_review, Path(path or ""))
            if shown is None or (report is not None and is_of(report, shown)):
                return report
            await anyio.sleep(_FILE_PAUSE)
        return None if shown is None else from_text(shown)

    # --- about Codex -------------------------------------------------------------------------------------------------

    async def models(self) -> tuple[Model, ...]:
        return await self.api.models()

    async def account(self) -> Account:
        return await self.api.account()

    async def start_login(self, *, with_code: bool) -> Login:
        login = await self.api.start_login(with_code=with_code)
        self._logins.setdefault(login.id, _LoginEnd())
        return login

    async def login_ended(self, login: Login) -> str | None:
        ended = self._logins.setdefault(login.id, _LoginEnd())

        async def notice_loss() -> None:
            await self.until_lost()
            ended.told.set()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(notice_loss)
                await ended.told.wait()
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), suppress(HelmsmanError):
                await self.api.cancel_login(login.id)
            raise
        finally:
            del self._logins[login.id]
        if self.lost is not None:
            raise self.lost.again()
        return ended.error

    def on_login_ended(self, params: Mapping[str, Any]) -> None:
        """What Codex says of a login, perhaps before we have read its answer that names it."""
        ended = self._logins.setdefault(str(params.get("loginId")), _LoginEnd())
        ended.error = None if params.get("success") is True else str(params.get("error") or "Codex does not say why.")
        ended.told.set()

    async def skills(self, directory: Path) -> SkillList:
        return await self.api.skills(directory)

    async def read_config(self, directory: Path | None) -> AgentConfig:
        return await self.api.config(directory)

    async def in_force(self, directory: Path) -> InForce:
        values = (await self.api.config(directory)).values
        sandbox, approval = configured_access(values, directory)
        return InForce(
            model=optional_text(values.get("model")),
            effort=optional_text(values.get("model_reasoning_effort")),
            sandbox=sandbox,
            approval_policy=approval,
        )

    async def write_config(self, edits: Sequence[ConfigEdit], *, version: str | None) -> str | None:
        return await self.api.write_config(edits, version=version)

    async def unknown_settings(self, edits: Sequence[ConfigEdit], env: Mapping[str, str]) -> tuple[str, ...]:
        """Ask a Codex with `--strict-config` (0.145 and newer). Its home is empty, so that only these keys count."""
        if self.program is None:
            return ()
        unknown: list[str] = []
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            child_env = codex_environment(self.binary, Path(home), env)
            for edit in edits:
                if edit.value is None or isinstance(edit.value, dict):
                    continue
                setting = f"{edit.key}={json.dumps(edit.value)}"
                command = [str(self.program), "app-server", "--strict-config", "-c", setting]
                with anyio.move_on_after(_STRICT_SECONDS):
                    done = await anyio.run_process(command, stdin=subprocess.DEVNULL, check=False, env=child_env)
                    if done.returncode and b"unknown configuration field" in done.stderr:
                        unknown.append(edit.key)
        return tuple(unknown)

    async def rate_limits(self) -> RateLimitsReported | None:
        """Codex can be asked only with a ChatGPT login; what it reported while it worked is known in any case."""
        try:
            answer = await self.api.rate_limits()
        except EngineRefused as refused:
            log.debug("account/rateLimits/read: %s", refused)
            return self.known_rate_limits
        event = from_app_server("account/rateLimits/updated", answer)
        return event if isinstance(event, RateLimitsReported) else self.known_rate_limits
