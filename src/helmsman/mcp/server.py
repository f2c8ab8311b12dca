"""The MCP server on one Helmsman, for every transport and both eras of the protocol."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from mcp.server.lowlevel.server import Server

from helmsman._version import __version__
from helmsman.concurrency import background_tasks
from helmsman.mcp.doors import Doors
from helmsman.mcp.resources import Resources
from helmsman.mcp.session_tools import SESSION_TOOLS
from helmsman.mcp.tasks import EXTENSION, CancelTaskParams, GetTaskParams, TaskMethods, UpdateTaskParams
from helmsman.mcp.toolset import Toolbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helmsman.service import Helmsman

SERVER_NAME: Final = "helmsman"

INSTRUCTIONS: Final = """\
Helmsman runs OpenAI Codex for you. The loop:
1. codex_start with a prompt (and workingDirectory, sandbox); it returns a sessionId at once.
2. codex_wait with that sessionId, again and again while status is active.
3. When pendingQuestion is there (status awaiting_approval), show or judge it and answer with codex_respond, then wait again.
4. status done: result is the final message. error: error says why. codex_say continues the same session.
codex_interrupt stops a turn; codex_list finds sessions, also those of earlier runs. Several sessions may run at once.
"""


def build_server(helm: Helmsman) -> Server[None]:
    """A server that offers what the settings of `helm` say."""
    doors = Doors(helm)
    toolbox = Toolbox(helm, doors, SESSION_TOOLS)
    tasks = TaskMethods(helm, doors)
    resources = Resources(helm)

    @asynccontextmanager
    async def lifespan(_server: Server[None]) -> AsyncIterator[None]:
        async with background_tasks() as background:
            background.start_soon(resources.run)
            yield

    server = Server(
        SERVER_NAME,
        version=__version__,
        title="Helmsman",
        description="Steer OpenAI Codex: start work, follow it, answer its questions, stop it.",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=toolbox.input_schema,
        on_list_tools=toolbox.list,
        # A task's handle is a dictionary: the SDK passes shapes of extensions through, and its types do not say so.
        on_call_tool=cast("Any", toolbox.call),
        on_list_resources=resources.list,
        on_list_resource_templates=resources.templates,
        on_read_resource=resources.read,
        on_subscribe_resource=resources.subscribe,
        on_unsubscribe_resource=resources.unsubscribe,
        on_subscriptions_listen=resources.listen,
        lifespan=lifespan,
    )
    server.extensions[EXTENSION] = {}
    server.add_request_handler("tasks/get", GetTaskParams, tasks.get)
    server.add_request_handler("tasks/update", UpdateTaskParams, tasks.update)
    server.add_request_handler("tasks/cancel", CancelTaskParams, tasks.cancel)
    return server
