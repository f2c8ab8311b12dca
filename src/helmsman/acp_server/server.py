"""Helmsman as an agent of the Agent Client Protocol: editors and other ACP clients are front ends to every session.

A session of an editor exists before its first prompt, one of Helmsman begins with it. Until then it is a `_Conversation`
without a session, under a Helmsman id that refers to the session from then on, also after the client has restarted. One
task per conversation reads the session's events in order and sends them to the client, for turns of all clients.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import acp
from acp import RequestError, schema

from helmsman._version import __version__
from helmsman.base.sanitize import exact, one_line
from helmsman.errors import HelmsmanError, InvalidInput, SessionIdle, Unsupported
from helmsman.model.answered_by import AnsweredBy
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    DynamicToolCall,
    ErrorItem,
    FileChange,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    ItemUpdated,
    McpToolCall,
    Notice,
    ProposedPlan,
    QuestionAsked,
    QuestionClosed,
    Reasoning,
    SessionRenamed,
    TodoList,
    TurnEnded,
    UserMessage,
)
from helmsman.model.question_forms import form_answers, form_message, form_schema
from helmsman.model.question_text import describe
from helmsman.model.questions import APPROVE_ALWAYS, APPROVE_SESSION, REFUSALS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.client import Helmsman
    from helmsman.model.events import Event, Item, Usage
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session

log = logging.getLogger(__name__)

# Begins the key of a conversation's first task, which leads to its session also in another process.
_KEY: Final = "acp:"
# Marks an id whose session is found by its first task. Ids of sessions begin otherwise.
_NEW: Final = "new-"
_OUTPUT_CHARS: Final = 20_000
_DIFF_CHARS: Final = 8_000
_LIST_LIMIT: Final = 50
# The only mode that lets the agent write.
_WRITES: Final = "auto"
_MODES: Final[Mapping[str, tuple[str, str, dict[str, Any]]]] = {
    "default": ("Default", "As the agent's own configuration says", {}),
    "read-only": ("Read only", "Change nothing", {"sandbox": "read-only"}),
    _WRITES: ("Automatic", "Work in the directory, ask for anything beyond it", {"full_auto": True}),
}
_EXTENSIONS: Final = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}


class _Conversation:
    """Session of an ACP client: its directory and options, and the Helmsman session once there is one."""

    def __init__(self, conversation_id: str, cwd: str, agent: str, session: Session | None = None) -> None:
        self.id = conversation_id
        self.cwd = cwd
        self.agent = agent
        self.session = session
        self.mode = "default"
        self.model: str | None = None
        self.options: dict[str, Any] = {}
        self.directories: list[str] = []
        """Further directories that it may write where its mode lets it write."""
        self.reading: asyncio.Task[None] | None = None
        # Set when no turn runs and every update has been sent.
        self.idle = asyncio.Event()
        self.asking: dict[str, asyncio.Task[None]] = {}
        """Questions that the client shows now."""
        self.written: set[str] = set()
        """Items whose text was sent as it was written."""

    def leave(self) -> None:
        """Stop reading and asking."""
        # Only the reading ends: the session and its turn belong to the hub, and other clients may watch it.
        for task in (self.reading, *self.asking.values()):
            if task is not None:
                task.cancel()

    def turn_options(self) -> dict[str, Any]:
        """Return the options of the next turn."""
        model = {} if self.model is None else {"model": self.model}
        roots = {"writable_roots": self.directories} if self.directories and self.mode == _WRITES else {}
        # The mode comes last, so no option can widen it.
        return {**self.options, **model, **roots, **_MODES[self.mode][2]}


class AcpServer:
    """Agent side of one ACP connection, on a client of the hub."""

    def __init__(self, helm: Helmsman) -> None:
        self._helm = helm
        self._conversations: dict[str, _Conversation] = {}
        # Agents take images as files. The directory lives as long as the connection.
        self._images = tempfile.TemporaryDirectory(prefix="helmsman-acp-")
        self._by = AnsweredBy("person", "an ACP client", "form")
        self._has_forms = False
        self._client: acp.Client

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    def close(self) -> None:
        """Stop reading sessions, which continue in the hub, and remove stored images."""
        for conversation in self._conversations.values():
            conversation.leave()
        self._images.cleanup()

    # --- connection --------------------------------------------------------------------------------------------------

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: schema.ClientCapabilities | None = None,
        client_info: schema.Implementation | None = None,
        **_: Any,
    ) -> schema.InitializeResponse:
        # An elicitation capability without `form` means URLs only.
        elicitation = client_capabilities and client_capabilities.elicitation
        self._has_forms = bool(elicitation and elicitation.form)
        if client_info is not None:
            self._by = AnsweredBy("person", client_info.title or client_info.name, "form")
        return schema.InitializeResponse(
            # The lower version: a newer client falls back, an older one is served as it asks.
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION),
            agent_info=schema.Implementation(name="helmsman", title="Helmsman", version=__version__),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, embedded_context=True),
                mcp_capabilities=schema.McpCapabilities(http=True),
                session_capabilities=schema.SessionCapabilities(
                    list=schema.SessionListCapabilities(),
                    resume=schema.SessionResumeCapabilities(),
                    close=schema.SessionCloseCapabilities(),
                    fork=schema.SessionForkCapabilities(),
                    additional_directories=schema.SessionAdditionalDirectoriesCapabilities(),
                ),
            ),
            # Agents log in with their own programs.
            auth_methods=[],
        )

    async def authenticate(self, method_id: str, **_: Any) -> None:
        raise RequestError.invalid_params(
            {"message": "Helmsman needs no login. Agents log in with their own programs."}
        )

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise RequestError.method_not_found(f"_{method}")

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Ignore extensions of other programs."""

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def new_session(
        self,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Any] | None = None,
        **_: Any,
    ) -> schema.NewSessionResponse:
        # A relative path would be resolved against the hub's directory.
        _require_directory(cwd)
        agent = self._helm.settings.default_agent
        conversation = _Conversation(f"{_NEW}{secrets.token_hex(12)}", cwd, agent)
        _set_up(conversation, additional_directories, mcp_servers)
        self._conversations[conversation.id] = conversation
        return schema.NewSessionResponse(
            session_id=conversation.id, modes=_modes(conversation), config_options=await self._config(conversation)
        )

    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: list[Any] | None = None,
        additional_directories: list[str] | None = None,
        **_: Any,
    ) -> schema.LoadSessionResponse:
        conversation = await self._opened(cwd, session_id, additional_directories, mcp_servers)
        if conversation.session is not None:
            # The history is complete, unlike the feed, which keeps the newest events only.
            for turn in await _refused_as_error(self._helm.history(conversation.session.id)):
                for item in turn.items:
                    has_ended = item.status in ("completed", "failed")
                    # Everything is sent as ended, except the items of a turn that still runs.
                    await self._send_item(conversation, item, ended=has_ended, started=True)
        # After the history, so that live updates follow it.
        self._read(conversation)
        return schema.LoadSessionResponse(modes=_modes(conversation), config_options=await self._config(conversation))

    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Any] | None = None,
        **_: Any,
    ) -> schema.ResumeSessionResponse:
        conversation = await self._opened(cwd, session_id, additional_directories, mcp_servers)
        self._read(conversation)
        return schema.ResumeSessionResponse(modes=_modes(conversation), config_options=await self._config(conversation))

    async def fork_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Any] | None = None,
        **_: Any,
    ) -> schema.ForkSessionResponse:
        source = await self._opened(cwd, session_id, None, None)
        if source.session is None:
            raise RequestError.invalid_params({"message": "This session has no turns yet. Make a new one instead."})
        session = await _refused_as_error(self._helm.fork(source.session.id))
        conversation = _Conversation(session.id, cwd, session.options.agent, session)
        _set_up(conversation, additional_directories, mcp_servers)
        self._conversations[conversation.id] = conversation
        self._read(conversation)
        return schema.ForkSessionResponse(
            session_id=conversation.id, modes=_modes(conversation), config_options=await self._config(conversation)
        )

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> schema.ListSessionsResponse:
        found, following = await _refused_as_error(self._helm.list(directory=cwd, cursor=cursor, limit=_LIST_LIMIT))
        # The client knows these sessions by the ids of their conversations.
        shown = {one.session.id: one.id for one in self._conversations.values() if one.session is not None}
        return schema.ListSessionsResponse(
            sessions=[
                schema.SessionInfo(
                    session_id=shown.get(info.session_id, info.session_id),
                    cwd=str(info.directory or cwd or Path.home()),
                    title=one_line(info.about or "") or None,
                    updated_at=info.updated_at.isoformat(),
                )
                for info in found
            ],
            next_cursor=following,
        )

    async def close_session(self, session_id: str, **_: Any) -> schema.CloseSessionResponse:
        """Stop a running turn, and send the client nothing more of the session. The session itself is kept."""
        # Unknown ids are no error: closing twice is fine.
        conversation = self._conversations.pop(session_id, None)
        if conversation is not None:
            conversation.leave()
            if conversation.session is not None and conversation.session.state.is_running:
                await _refused_as_error(self._helm.interrupt(conversation.session.id))
        return schema.CloseSessionResponse()

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> schema.SetSessionModeResponse:
        conversation = self._known(session_id)
        if mode_id not in _MODES:
            raise RequestError.invalid_params({"message": f"There is no mode {mode_id!r}: {', '.join(_MODES)}."})
        conversation.mode = mode_id
        return schema.SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> schema.SetSessionConfigOptionResponse:
        conversation = self._known(session_id)
        options = await self._config(conversation)
        option = next((one for one in options if one.id == config_id), None)
        # Only a listed value: an arbitrary model or agent name would fail at the first prompt.
        if option is None or value not in {choice.value for choice in option.options if isinstance(choice, _CHOICE)}:
            raise RequestError.invalid_params(
                {"message": f"There is no option {config_id!r} with the value {value!r}."}
            )
        if config_id == "agent":
            # Models belong to an agent.
            conversation.agent, conversation.model = str(value), None
        elif config_id == "mode":
            conversation.mode = str(value)
        else:
            # The empty value is the default model.
            conversation.model = str(value) or None
        return schema.SetSessionConfigOptionResponse(config_options=await self._config(conversation))

    # --- turns -------------------------------------------------------------------------------------------------------

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> schema.PromptResponse:
        conversation = self._known(session_id)
        text, images = self._content(prompt)
        # Before the message is sent: its turn may have ended when `_send` returns.
        conversation.idle.clear()
        # Usage is reported per prompt, and the session counts all turns.
        before = conversation.session.usage if conversation.session is not None else None
        session = await _refused_as_error(self._send(conversation, text, images))
        conversation.session = session
        self._read(conversation, since=session.turn_cursor)
        await conversation.idle.wait()
        # An interrupted turn may have an error as well, but its client asked for it.
        if session.error is not None and session.status == "error":
            raise RequestError(-32603, session.error.message, {"code": session.error.code})
        stopped: Any = "cancelled" if session.status == "interrupted" else "end_turn"
        return schema.PromptResponse(
            stop_reason=stopped, usage=_usage(session.usage if before is None else session.usage - before)
        )

    async def cancel(self, session_id: str, **_: Any) -> None:
        conversation = self._conversations.get(session_id)
        if conversation is not None and conversation.session is not None:
            # The turn may have ended in the meantime.
            with suppress(SessionIdle):
                await self._helm.interrupt(conversation.session.id)

    async def _send(self, conversation: _Conversation, text: str, images: Sequence[str]) -> Session:
        options = conversation.turn_options()
        if conversation.session is None:
            return await self._helm.start(
                text,
                cwd=conversation.cwd,
                agent=conversation.agent,
                images=images,
                # Also after a crash of the client: a repeated prompt finds its session and does not start a second one.
                idempotency_key=f"{_KEY}{conversation.id}",
                **options,
            )
        say = self._helm.say
        session_id = conversation.session.id
        if conversation.session.state.is_running and not images:
            # If the agent cannot steer, or the turn ends just now, the message is queued.
            with suppress(Unsupported, SessionIdle):
                return await say(session_id, text, when_busy="steer")
        # Queued, not refused: an editor may send its next prompt while another client's turn runs.
        return await say(session_id, text, images=images, when_busy="queue", **options)

    def _content(self, blocks: Sequence[Any]) -> tuple[str, list[str]]:
        """Return a prompt as text and the files of its images."""
        parts: list[str] = []
        images: list[str] = []
        for block in blocks:
            match block:
                case schema.TextContentBlock():
                    parts.append(block.text)
                case schema.ImageContentBlock():
                    images.append(self._stored_image(block))
                case schema.ResourceContentBlock():
                    # A link names a file; the agent reads it itself.
                    parts.append(_place(block.uri))
                case schema.EmbeddedResourceContentBlock(resource=schema.TextResourceContents() as resource):
                    parts.append(f"\nContent of {_place(resource.uri)}:\n```\n{resource.text}\n```\n")
                case _:
                    raise RequestError.invalid_params(
                        {"message": f"Helmsman takes text, images and text resources, not {block.type!r}."}
                    )
        return "".join(parts), images

    def _stored_image(self, block: schema.ImageContentBlock) -> str:
        try:
            # `validate=True`, because the default ignores characters that are not base64.
            content = base64.b64decode(block.data, validate=True)
        except binascii.Error:
            raise RequestError.invalid_params({"message": "An image is not valid base64."}) from None
        if block.mime_type not in _EXTENSIONS:
            raise RequestError.invalid_params({"message": f"Images of type {block.mime_type!r} are not supported."})
        # Agents detect the kind of an image by the extension.
        path = Path(self._images.name, f"{secrets.token_hex(8)}{_EXTENSIONS[block.mime_type]}")
        path.write_bytes(content)
        return str(path)

    # --- what happens in a session -----------------------------------------------------------------------------------

    def _read(self, conversation: _Conversation, since: int | None = None) -> None:
        """Send the client what happens in the session from now on, or from a cursor on."""
        # One reader per conversation: two would send each update twice.
        if conversation.session is not None and conversation.reading is None:
            conversation.reading = asyncio.create_task(self._send_events(conversation, conversation.session, since))

    async def _send_events(self, conversation: _Conversation, session: Session, since: int | None) -> None:
        try:
            with session.watched(), session.feed.read(since=since) as reader:
                # With a cursor, the open questions are among the events.
                for question in session.questions if since is None else ():
                    await self._send_event(
                        conversation, session, QuestionAsked(session_id=session.id, question=question)
                    )
                async for event in reader:
                    await self._send_event(conversation, session, event)
                    is_end = isinstance(event, TurnEnded) and event.agent_id is None
                    # The answer to a prompt follows all its updates, and those of messages that were queued behind it.
                    if is_end and not reader.pending() and not session.state.is_running:
                        conversation.idle.set()
        finally:  # the hub or the client is gone
            conversation.idle.set()

    async def _send_event(self, conversation: _Conversation, session: Session, event: Event) -> None:
        match event:
            # Only the session's own agent: text of sub-agents would be mixed into its message.
            case ItemDelta(item_type="agent_message", agent_id=None):
                conversation.written.add(event.item_id)
                await self._update(conversation, acp.update_agent_message_text(event.text))
            case ItemDelta(item_type="reasoning", agent_id=None):
                conversation.written.add(event.item_id)
                await self._update(conversation, acp.update_agent_thought_text(event.text))
            case ItemStarted() | ItemUpdated():
                await self._send_item(conversation, event.item, ended=False, started=isinstance(event, ItemStarted))
            # Text that was sent as deltas must not come again with the finished item.
            case ItemEnded() if event.item.id in conversation.written:
                conversation.written.discard(event.item.id)
            case ItemEnded():
                await self._send_item(conversation, event.item, ended=True)
            case QuestionAsked() if event.question.id in conversation.asking:
                pass  # the next hub reports an open question again
            case QuestionAsked():
                # Asked in a task: waiting here would hold back all later updates.
                asking = asyncio.create_task(self._ask(conversation, session, event.question))
                conversation.asking[event.question.id] = asking
            case QuestionClosed():
                if (asked := conversation.asking.pop(event.question_id, None)) is not None:
                    # Cancelling makes the request to the client void; its form closes.
                    asked.cancel()
            case SessionRenamed():
                title = one_line(event.name or "") or None
                update = schema.SessionInfoUpdate(session_update="session_info_update", title=title)
                await self._update(conversation, update)
            case Notice(kind="warning" | "network" | "rate_limit"):
                await self._update(conversation, acp.update_agent_thought_text(f"{exact(event.message)}\n"))
            case _:
                pass

    async def _send_item(self, conversation: _Conversation, item: Item, *, ended: bool, started: bool = False) -> None:
        match item:
            case UserMessage() if ended and item.text:
                await self._update(conversation, acp.update_user_message_text(item.text))
            case AgentMessage() | ProposedPlan() if ended and item.text:
                await self._update(conversation, acp.update_agent_message_text(item.text))
            case Reasoning() if ended and item.text:
                await self._update(conversation, acp.update_agent_thought_text(item.text))
            case ErrorItem() if ended:
                await self._update(conversation, acp.update_agent_message_text(f"{item.message}\n"))
            case TodoList():
                entries = [acp.plan_entry(step.text, status=step.status) for step in item.steps]
                await self._update(conversation, acp.update_plan(entries))
            case CommandExecution() | FileChange() | McpToolCall() | DynamicToolCall():
                await self._update(conversation, _tool_call(item, started=started, ended=ended))
            case _:
                pass

    async def _update(self, conversation: _Conversation, update: Any) -> None:
        await self._client.session_update(session_id=conversation.id, update=update)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def _ask(self, conversation: _Conversation, session: Session, question: Question) -> None:
        """Ask the person at the client. Cancelled when another front end answers, or the turn ends."""
        try:
            if question.type in ("user_input", "mcp_elicitation"):
                answers = await self._ask_with_form(conversation, question)
            else:
                answers = await self._ask_permission(conversation, question)
            if answers is not None:
                await self._helm.respond(session.id, question.id, answers, by=self._by)
        except (HelmsmanError, RequestError) as error:  # the question stays open for the other front ends
            log.warning("question %s was not answered by the client: %s", question.id, error)

    async def _ask_with_form(self, conversation: _Conversation, question: Question) -> list[str] | None:
        prompt = question.prompts[0]
        if self._has_forms:
            mode = schema.ElicitationFormSessionMode(
                session_id=conversation.id,
                requested_schema=schema.ElicitationSchema.model_validate(form_schema(question)),
            )
            reply = await self._client.create_elicitation(form_message(question), mode)
            action = getattr(reply, "action", "cancel")
            # A reply without an action counts as dismissed.
            return form_answers(question, action, getattr(reply, "content", None))
        # A choice without text fits a permission request, which every client can show.
        if len(question.prompts) == 1 and prompt.options and not prompt.free_text:
            return await self._ask_permission(conversation, question)
        # Free text has no other way to a client without forms.
        instead = f"{form_message(question)}\n\nAnswer with: helmsman respond {question.session_id}\n"
        await self._update(conversation, acp.update_agent_message_text(instead))
        return None

    async def _ask_permission(self, conversation: _Conversation, question: Question) -> list[str] | None:
        text = describe(question)
        is_cut = text.is_cut(_DIFF_CHARS)
        # A question that is not shown in full can only be refused.
        offered = [option for option in question.prompts[0].options if option in REFUSALS or not is_cut]
        message = form_message(question)
        reply = await self._client.request_permission(
            session_id=conversation.id,
            tool_call=schema.ToolCallUpdate(
                # The tool call that the client shows already, so that question and call are one entry.
                tool_call_id=question.item_id or question.id,
                title=text.title,
                status="pending",
                content=[acp.tool_content(acp.text_block(message))],
            ),
            options=[
                schema.PermissionOption(option_id=option, name=_option_name(option), kind=_option_kind(option))
                for option in offered
            ],
        )
        chosen = getattr(reply.outcome, "option_id", None)
        # Only offered options count: a client may send any id.
        return [chosen] if chosen in offered else None

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _known(self, conversation_id: str) -> _Conversation:
        conversation = self._conversations.get(conversation_id)
        if conversation is None:
            raise RequestError.invalid_params({"message": f"Load the session {conversation_id} first (session/load)."})
        return conversation

    async def _opened(
        self, cwd: str, conversation_id: str, directories: list[str] | None, servers: list[Any] | None
    ) -> _Conversation:
        """Return a conversation, opened again if this connection does not have it."""
        conversation = self._conversations.get(conversation_id)
        if conversation is None:
            session_id = conversation_id
            # A conversation of an earlier connection: its first task has its key.
            if conversation_id.startswith(_NEW):
                task = await _refused_as_error(self._helm.tasks.with_key(f"{_KEY}{conversation_id}"))
                if task is None or task.session_id is None:
                    raise RequestError.resource_not_found(conversation_id)
                session_id = task.session_id
            session = await _refused_as_error(self._helm.session(session_id))
            # The directory of the session: the client may have moved.
            conversation = _Conversation(conversation_id, session.directory or cwd, session.options.agent, session)
            self._conversations[conversation_id] = conversation
        _set_up(conversation, directories, servers)
        return conversation

    async def _is_installed(self, agent: str) -> bool:
        try:
            return await self._helm.installed(agent) is not None
        except HelmsmanError:
            # A broken agent is not offered, and does not break the list.
            return False

    async def _config(self, conversation: _Conversation) -> list[schema.SessionConfigOptionSelect]:
        modes = [
            schema.SessionConfigSelectOption(value=key, name=name, description=text)
            for key, (name, text, _) in _MODES.items()
        ]
        options = [_select("mode", "Mode", "mode", conversation.mode, modes)]
        agents = [one.name for one in self._helm.agents if await self._is_installed(one.name)]
        # The agent is fixed with the first prompt, and one agent is no choice.
        if conversation.session is None and len(agents) > 1:
            choices = [
                schema.SessionConfigSelectOption(value=name, name=self._helm.agents.title(name)) for name in agents
            ]
            options.append(_select("agent", "Agent", None, conversation.agent, choices))
        try:
            models = await self._helm.extras.account.models(conversation.agent)
        except HelmsmanError as error:
            # Agents without a list, or without a login. The session works all the same.
            log.info("No models of %s: %s", conversation.agent, error)
            models = ()
        if models:
            choices = [schema.SessionConfigSelectOption(value="", name="Default")]
            choices += [
                schema.SessionConfigSelectOption(value=model.id, name=model.name, description=model.description)
                for model in models
            ]
            options.append(_select("model", "Model", "model", conversation.model or "", choices))
        return options


_CHOICE: Final = schema.SessionConfigSelectOption


async def serve_acp(helm: Helmsman) -> None:
    """Serve one ACP client on standard input and output until it disconnects."""
    agent = AcpServer(helm)
    try:
        # The SDK routes session/fork and session/resume only with it.
        await acp.run_agent(agent, use_unstable_protocol=True)
    finally:
        agent.close()


async def _refused_as_error(awaitable: Any) -> Any:
    """Await a call, and turn its errors into errors of the protocol."""
    try:
        return await awaitable
    except HelmsmanError as error:
        # -32602 (invalid params) is the caller's mistake, -32603 (internal error) anything else.
        code = -32602 if isinstance(error, InvalidInput) else -32603
        raise RequestError(code, error.message, {"code": error.code}) from error


def _require_directory(cwd: str) -> None:
    if not Path(cwd).is_absolute():
        raise RequestError.invalid_params({"message": "cwd must be an absolute path."})


def _set_up(conversation: _Conversation, directories: list[str] | None, servers: list[Any] | None) -> None:
    """Take over the directories and MCP servers that the client gives with a session."""
    if directories:
        conversation.directories = directories
    # Only Codex takes MCP servers for a single session, by its configuration.
    if servers and conversation.agent == "codex":
        conversation.options["config"] = dict(_server_config(server) for server in servers)


def _server_config(server: Any) -> tuple[str, dict[str, Any]]:
    key = f"mcp_servers.{server.name}"
    match server:
        case schema.McpServerStdio():
            env = {one.name: one.value for one in server.env}
            return key, {"command": server.command, "args": server.args, "env": env}
        case schema.HttpMcpServer():
            return key, {"url": server.url, "http_headers": {one.name: one.value for one in server.headers}}
        case _:
            # `initialize` offers no SSE.
            raise RequestError.invalid_params({"message": f"MCP server {server.name!r}: use stdio or HTTP."})


def _modes(conversation: _Conversation) -> schema.SessionModeState:
    modes = [schema.SessionMode(id=key, name=name, description=text) for key, (name, text, _) in _MODES.items()]
    return schema.SessionModeState(current_mode_id=conversation.mode, available_modes=modes)


def _select(
    option_id: str, name: str, category: Any, value: str, choices: list[schema.SessionConfigSelectOption]
) -> schema.SessionConfigOptionSelect:
    return schema.SessionConfigOptionSelect(
        id=option_id, name=name, category=category, type="select", current_value=value, options=choices
    )


def _place(uri: str) -> str:
    """Return the path of a file, or the address of anything else, as text of a prompt."""
    parts = urlsplit(uri)
    return exact(unquote(parts.path) if parts.scheme == "file" else uri)


def _usage(usage: Usage) -> schema.Usage:
    return schema.Usage(
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        thought_tokens=usage.reasoning_output_tokens,
        cached_read_tokens=usage.cached_input_tokens,
    )


def _option_name(option: str) -> str:
    return option.replace("_", " ").capitalize()


def _option_kind(option: str) -> Any:
    if option in REFUSALS:
        return "reject_once"
    return "allow_always" if option in (APPROVE_ALWAYS, APPROVE_SESSION) else "allow_once"


def _tool_call(item: Any, *, started: bool, ended: bool) -> Any:
    """Return the update for an item that ACP clients show as a tool call."""
    status: Any = "in_progress"
    if ended:
        status = "failed" if item.status == "failed" else "completed"
    title, kind, content, locations = _shown_call(item)
    # The first update creates the entry in the client, later ones must name an existing one.
    make: Any = acp.start_tool_call if started else acp.update_tool_call
    return make(item.id, title=title, kind=kind, status=status, content=content or None, locations=locations or None)


def _shown_call(item: Any) -> tuple[str, Any, list[Any], list[Any]]:
    # ACP has kinds of its own, which decide the icon and the view.
    match item:
        case CommandExecution():
            output = exact(item.output[-_OUTPUT_CHARS:])
            # The end of the output says how the command went.
            return one_line(item.command), "execute", [acp.tool_content(acp.text_block(output))] if output else [], []
        case FileChange():
            diffs = [f"{one.path}\n{one.diff}" for one in item.changes if one.diff]
            content = [acp.tool_content(acp.text_block(diff[:_DIFF_CHARS])) for diff in diffs]
            return (
                one_line(item.summary()),
                "edit",
                content,
                [schema.ToolCallLocation(path=one.path) for one in item.changes],
            )
        case McpToolCall():
            result = item.error or item.result or ""
            return (
                f"{item.server}/{item.tool}",
                "other",
                [acp.tool_content(acp.text_block(result[:_OUTPUT_CHARS]))] if result else [],
                [],
            )
        case _:
            return one_line(item.summary()), "other", [], []
