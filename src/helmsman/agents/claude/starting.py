"""How a Claude Code is started for a session: in the sandbox or outside, and what is left to do when it has ended there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.agents.claude.access import WRITABLE_AT_HOME
from helmsman.agents.claude.binary import TITLE
from helmsman.agents.found_programs import check_command
from helmsman.agents.sandbox import find_sandbox, refuse_planted
from helmsman.agents.sandbox_environment import cloud_logins, cloud_variables
from helmsman.base.git_of_agents import careful_environment
from helmsman.base.mount_points import MountPoints
from helmsman.base.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    from helmsman.agents.claude.about import Means
    from helmsman.agents.claude.access import Launch

_CLEARED_SECONDS: Final = 20.0
_CLOUDS: Final = {
    "CLAUDE_CODE_USE_BEDROCK": "aws",
    "CLAUDE_CODE_USE_VERTEX": "google",
    "CLAUDE_CODE_USE_FOUNDRY": "azure",
}
"""The variables with which it reaches its model through a cloud, whose login it then needs."""


async def ready_command(
    means: Means, launch: Launch, identity: Sequence[str], stored: Path | None, *, trusted: bool
) -> tuple[Sequence[str], Mapping[str, str]]:
    """The command line and the environment of a process that is to begin or resume a session, `stored` in this file.

    Raises:
        Unsupported: There is no sandbox that holds.
        InvalidInput: Outside, it would write where a command in the sandbox may have led it.
        ProgramRefused: A session may have replaced it.
    """
    await anyio.to_thread.run_sync(check_command, [str(means.binary.path)], means.env)
    argv, env = [str(means.binary.path), *launch.arguments, *identity], means.binary.environment(means.env)
    if not trusted:
        env = await anyio.to_thread.run_sync(careful_environment, env, launch.directory)
    if launch.confined is None:
        places = [means.binary.home / name for name in WRITABLE_AT_HOME]
        await anyio.to_thread.run_sync(refuse_planted, TITLE, places)
        return argv, env
    sandbox, confined = await find_sandbox(means.settings, means.env), launch.confined
    if stored is not None and not stored.parent.is_symlink():
        confined = replace(confined, writable=(*confined.writable, stored.parent))
    confined = replace(
        confined,
        needs=(*confined.needs, *cloud_logins(env, _CLOUDS)),
        variables=(*confined.variables, *cloud_variables(env, _CLOUDS)),
    )
    return await anyio.to_thread.run_sync(lambda: sandbox.around(argv, env, confined))


def once_cleared(
    stack: AsyncExitStack, cleared: dict[str, anyio.Event], state_dir: Path, session_id: str, *, kept: bool
) -> anyio.Event:
    """Set at the end of a block that is about to open a session's process, when nothing is left of its sandbox either.

    Its temporary files stay, for the session's next process, which waits for this (`until_cleared`). One that is kept may go
    on when the block is left.
    """

    async def clear(kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not kept:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(MountPoints(state_dir).clear, session_id)

    gone = cleared[session_id] = anyio.Event()
    stack.callback(gone.set)
    stack.push_async_exit(clear)
    return gone


async def until_cleared(cleared: Mapping[str, anyio.Event], session_id: str) -> None:
    """Wait until nothing is left of a session's last process: what is cleared up by its name would be the next one's."""
    if (last := cleared.get(session_id)) is not None:
        with anyio.move_on_after(_CLEARED_SECONDS):
            await last.wait()
