"""MCP server for one Helmsman, for every transport and both eras of the protocol."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp_types import PaginatedRequestParams, RequestParams

from helmsman._version import __version__
from helmsman.base.concurrency import background_tasks
from helmsman.mcp.apps import EXTENSION as APPS
from helmsman.mcp.channel import CAPABILITY, INSTRUCTIONS, Channel
from helmsman.mcp.current_call import ATTACH
from helmsman.mcp.elicitation import Elicitor
from helmsman.mcp.prompts import Prompts
from helmsman.mcp.resources import Resources
from helmsman.mcp.skills import EXTENSION as SKILLS
from helmsman.mcp.skills import GetSkillParams, get_skill, list_skills
from helmsman.mcp.tasks import EXTENSION, CancelTaskParams, GetTaskParams, TaskMethods, UpdateTaskParams
from helmsman.mcp.toolset import Tool, Toolbox, ToolLike
from helmsman.operations.texts import FOR_ANY, FOR_CODEX
from helmsman.operations.toolsets import operations_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp.server.models import InitializationOptions

    from helmsman.service import HelmsmanService
    from helmsman.settings import Settings

_HELMSMAN: Final[dict[str, Any]] = {
    "name": "helmsman",
    "title": "Helmsman",
    "description": "Steer OpenAI Codex: start work, follow it, answer its questions, stop it.",
}
_LOOP: Final = """\
Helmsman runs {agents} for you. The loop:
1. {tool}_start with a prompt (and workingDirectory, sandbox); it returns a sessionId at once.
2. {tool}_wait with that sessionId, again and again while status is active.
3. When pendingQuestion is there (status awaiting_approval), show or judge it and answer with {tool}_respond, then wait \
again.
4. status done: result is the final message. error: error says why. {tool}_say continues the same session.
{tool}_interrupt stops a turn; {tool}_list finds sessions, also those of earlier runs. Several sessions may run at once.
"""
_AGENTS: Final = """
In agent_* tools `agent` says who works: codex, claude, gemini, opencode, qwen, copilot or one of the user's own.
agent_say with another agent hands a session over to it. agent_review has one agent review what another did, with findings to
pass on by agent_say; agent_diff and agent_apply bring the changes of a session with worktree into the main tree.
"""
_OUTCOMES: Final = """\
Ask for an outcome with debug, review, plan, refactor or test: an agent works in a git worktree, and Helmsman itself checks
what it did. The call returns a taskId at once; the same tool with taskId follows it. When pendingQuestion is
there, show or judge it and answer with {tool}_respond (its sessionId, its id), then follow again. At the end only verified:
true is done; report has the evidence. With apply ask the change comes as a question before it reaches the main tree.
"""
_PLAIN_WORDS: Final = """\
Helmsman runs OpenAI Codex for you, by one tool, codex, that takes a request in plain words. Every other agent that is
installed has the same tool under its own name (claude, gemini, …); ask each about its own tasks.
1. Say what is to be done; it returns a task at once, which works on in the background.
2. "wait for <task id>" until its status is completed, failed or canceled; "check <task id>" only looks.
3. nextAction answer: the agent asks something (pendingQuestion). nextAction choose: several tasks may be meant; name one.
"show the results of <task id>" brings the final message and the change, "cancel <task id>" stops it.
"""
_COMPAT: Final[dict[str, Any]] = {  # the name is the original's: clients may know it
    "name": "codex-mcp-server",
    "title": "Codex (Helmsman)",
    "description": "The tools of the removed codex mcp-server, served by Helmsman.",
}


def offered_tools(helm: HelmsmanService) -> list[list[ToolLike]]:
    """Return the tools of each chosen toolset, the most needed first.

    Modules of other toolsets are not imported: a client waits for this.
    """
    settings = helm.settings
    in_fleet = settings.fleet_url is not None

    def tools_of(*toolsets: str) -> list[list[ToolLike]]:
        chosen = (one for one in toolsets if one in settings.tools)
        return [[*toolset_tools(one, settings.tools, in_fleet=in_fleet)] for one in chosen]

    # Order matters: with many tools only the first groups are listed.
    groups = tools_of("sessions", "agents")
    if "compat" in settings.tools:
        from helmsman.mcp.compat_tools import compat_tools

        groups.append([*compat_tools()])
    if "router" in settings.tools:
        from helmsman.mcp.router_tool import router_tools

        agents = {agent.name: agent.title for agent in helm.agents}
        groups.append([*router_tools(agents, expose_primitives=settings.expose_primitives)])
    return groups + tools_of("capabilities", "extras")


# Cached: a hub serves many clients, and schemas take long to build.
@cache
def toolset_tools(toolset: str, toolsets: tuple[str, ...], *, in_fleet: bool = False) -> tuple[Tool, ...]:
    """Return the tools of a toolset beside these others. Made once in a process: their schemas take long.

    Without `sessions` and `agents`, the capabilities bring the tool that answers their questions.
    """
    # The tool that answers a job's questions must fit: `codex_respond` or `agent_respond`.
    is_for_any = toolset == "agents" or (toolset == "capabilities" and "sessions" not in toolsets)
    operations = operations_of(toolset)
    if toolset == "capabilities" and {"sessions", "agents"}.isdisjoint(toolsets):
        from helmsman.operations.sessions import respond

        operations += (respond,)
    return tuple(Tool(one, FOR_ANY if is_for_any else FOR_CODEX, in_fleet) for one in operations)


def _identity(settings: Settings) -> dict[str, Any]:
    """Return how a server introduces itself: with the loops of the toolsets that it offers."""
    toolsets = settings.tools
    # A server that is only the replacement introduces itself by the original's name.
    if toolsets == ("compat",):
        return _COMPAT
    told, description = "", _HELMSMAN["description"]
    voice = FOR_CODEX if "sessions" in toolsets else FOR_ANY
    if not {"sessions", "agents"}.isdisjoint(toolsets):
        told = voice.render(_LOOP + (INSTRUCTIONS if settings.channel else ""))
    elif "router" in toolsets:
        told, description = _PLAIN_WORDS, "Steer OpenAI Codex, and other coding agents, in plain words."
    elif "capabilities" in toolsets:
        description = "Ask for an outcome; coding agents work, and Helmsman checks what they did."
    if "agents" in toolsets:
        told += _AGENTS
        description = "Steer coding agents: start work, follow it, answer their questions, stop it."
    if "capabilities" in toolsets:
        told = "\n".join(filter(None, (told, voice.render(_OUTCOMES))))
    return _HELMSMAN | {"description": description, "instructions": told or None}


class HelmsmanServer(Server[None]):
    """Server that announces to clients of every transport that its list of tools may change."""

    has_channel = False

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        # Announced for every transport, because a search for tools changes the list.
        changes = notification_options or NotificationOptions(tools_changed=True)
        # Claude Code registers for a channel only if the capability is announced.
        experimental_capabilities = experimental_capabilities or ({CAPABILITY: {}} if self.has_channel else None)
        return super().create_initialization_options(changes, experimental_capabilities, extensions)


def _channel_of(helm: HelmsmanService) -> Channel | None:
    """Return the channel of a server, if the user wants one and there are tools to look with."""
    # A push tells the model to look, so it needs a tool for that.
    if not helm.settings.channel or {"sessions", "agents"}.isdisjoint(helm.settings.tools):
        return None
    return Channel(helm, "codex" if "sessions" in helm.settings.tools else "agent")


def build_server(helm: HelmsmanService) -> HelmsmanServer:
    """Build a server with the tools that the settings of `helm` enable."""
    channel = _channel_of(helm)
    elicitor = Elicitor(helm, channel)
    bus = InMemorySubscriptionBus()
    toolbox = Toolbox(helm, elicitor, offered_tools(helm), bus)
    tasks = TaskMethods(helm, elicitor)
    resources = Resources(helm, bus)
    prompts = Prompts(helm)

    @asynccontextmanager
    async def lifespan(_server: Server[None]) -> AsyncIterator[None]:
        async with background_tasks() as background:
            background.start_soon(resources.run)
            if channel is not None:
                background.start_soon(channel.run)
            try:
                yield
            finally:
                # The client is gone: its forms are closed, and its sessions wait for it to come back.
                elicitor.close()

    server = HelmsmanServer(
        **_identity(helm.settings),
        version=__version__,
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
        on_list_prompts=prompts.list,
        on_get_prompt=prompts.get,
        on_completion=prompts.complete,
        lifespan=lifespan,
    )
    server.has_channel = channel is not None
    server.extensions[EXTENSION] = {}
    server.add_request_handler("tasks/get", GetTaskParams, tasks.get)
    server.add_request_handler("tasks/update", UpdateTaskParams, tasks.update)
    server.add_request_handler("tasks/cancel", CancelTaskParams, tasks.cancel)
    # An internal request, which the pipe's reader makes.
    server.add_request_handler(ATTACH, RequestParams, elicitor.attach)
    if not {"sessions", "agents"}.isdisjoint(helm.settings.tools):  # the tools that the skills name
        server.extensions[APPS] = {}
        server.extensions[SKILLS] = {}
        server.add_request_handler("skills/list", PaginatedRequestParams, list_skills)
        server.add_request_handler("skills/get", GetSkillParams, get_skill)
    return server
