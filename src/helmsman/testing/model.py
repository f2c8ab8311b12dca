"""Model made of a script, on loopback, which a real agent takes for its provider: one script, whatever API it speaks.

    async with ScriptedModel() as model:
        model.on("Fix the bug", run("ls"), [think("hm"), patch(add("a.txt", "hi\\n"))], say("Done"))
        ...  # a Codex configured with model.base_url, a Claude Code with ANTHROPIC_BASE_URL=model.address

In code that is not async: `with start_blocking_portal() as portal, portal.wrap_async_context_manager(ScriptedModel())
as model:` (`anyio.from_thread`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse

from helmsman.testing.local_server import serve
from helmsman.testing.model_apis import ChatApi, GeminiApi, MessagesApi, ResponsesApi
from helmsman.testing.model_request import ModelRequest
from helmsman.testing.script import Always, Cut, Fail, Gate, Hang, Part, ScriptProblem, Step, parts_of, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import Receive, Scope, Send

    from helmsman.testing.model_apis import Beat, ModelApi

# --- Select the script and the step for each request ------------------------------------------------------------------

# The newest user message that a script matches selects the script. Each conversation (Codex thread) has its own
# position, so many threads with the same prompt share a script. A retried request gets the next step. A message
# without a match continues the script of its conversation, unless it begins a turn and there is a default.

RequestMatch: TypeAlias = str | Callable[[ModelRequest], bool]
ScriptStep: TypeAlias = "Step | Always"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    when: RequestMatch
    steps: tuple[ScriptStep, ...]

    def matches(self, text: str, request: ModelRequest) -> bool:
        return self.when in text if isinstance(self.when, str) else self.when(request)

    def step(self, position: int) -> Step:
        last = self.steps[-1]
        if position >= len(self.steps) and not isinstance(last, Always):
            raise ScriptProblem(
                f"The script for {self.name} has {len(self.steps)} step(s) and Codex asked for one more. "
                "Add a step, or make the last one always().",
            )
        step = self.steps[min(position, len(self.steps) - 1)]
        return step.step if isinstance(step, Always) else step


@dataclass(slots=True)
class _Conversation:
    script: Script | None = None
    position: int = 0
    turn_id: str | None = None
    texts_seen: tuple[str, ...] = ()


class Playbook:
    """All scripts of a model and the state of its conversations."""

    def __init__(self) -> None:
        self._scripts: list[Script] = []
        self._default: Script | None = None
        self._conversations: dict[str, _Conversation] = {}

    def add(self, when: RequestMatch, steps: Sequence[ScriptStep]) -> None:
        self._scripts.append(_script(repr(when) if isinstance(when, str) else "a predicate", when, steps))

    def set_default(self, steps: Sequence[ScriptStep]) -> None:
        self._default = _script("other prompts", "", steps)

    def next_parts(self, request: ModelRequest) -> tuple[Part, ...]:
        """Return the parts of the response to this request and advance the conversation.

        Raises:
            ScriptProblem: No script matches, the script is exhausted, or a function in it failed.
        """
        if not request.names_conversation:
            return self._parts_by_content(request)
        if request.only_notified:
            return ()  # these arrive at random times and must not consume a step
        conversation = self._conversations.setdefault(request.thread_id, _Conversation())
        script = self._chosen(conversation, request)
        if script is not None:
            conversation.script, conversation.position = script, 0
        conversation.turn_id = request.turn_id
        conversation.texts_seen = request.user_texts
        if conversation.script is None:
            raise ScriptProblem(
                f"No script matches the prompt {request.last_user_text[:200]!r}. Add one with model.on(…)."
            )
        step = conversation.script.step(conversation.position)
        conversation.position += 1
        return _resolved(step, request)

    def _parts_by_content(self, request: ModelRequest) -> tuple[Part, ...]:
        """Select the step by content if requests do not identify a conversation: a retried request gets the same step."""
        for text in reversed(request.user_texts):
            for script in reversed(self._scripts):
                if script.matches(text, request):
                    steps = request.steps_since(text)
                    if steps >= len(script.steps) and text != request.last_user_text:
                        return (say("ok"),)  # the agent sent a further request for its own use
                    return _resolved(script.step(steps), request)
        if self._default is None:
            raise ScriptProblem(
                f"No script matches the prompt {request.last_user_text[:200]!r}. Add one with model.on(…)."
            )
        return _resolved(self._default.step(request.steps_since(request.last_user_text)), request)

    def _chosen(self, conversation: _Conversation, request: ModelRequest) -> Script | None:
        """Return the script that a new message selects, or None to continue the current one."""
        begins_turn = request.turn_id is None or request.turn_id != conversation.turn_id
        # Messages are compared with those of the request before.
        new = request.user_texts[_common(conversation.texts_seen, request.user_texts) :]
        if not new and request.turn_id != conversation.turn_id:
            new = request.new_user_texts  # after a rollback the same prompt has the same index
        if not conversation.texts_seen:
            new = request.new_user_texts  # the history of a fork or of another model's session is not new
        for text in reversed(new):
            for script in reversed(self._scripts):  # a later script refines an earlier one
                if script.matches(text, request):
                    return script
        return self._default if new and begins_turn else None


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the length of the common prefix."""
    return next((index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _script(name: str, when: RequestMatch, steps: Sequence[ScriptStep]) -> Script:
    if not steps:
        raise ValueError(f"The script for {name} is empty. Give it at least one step.")
    for index, step in enumerate(steps):
        inner = step.step if isinstance(step, Always) else step
        if not callable(inner):
            parts_of(inner)  # report invalid scripts where they are defined
        if isinstance(step, Always) and index != len(steps) - 1:
            raise ValueError("always() is given for ever. Put it last.")
    return Script(name, when, tuple(steps))


def _resolved(step: Step, request: ModelRequest) -> tuple[Part, ...]:
    try:
        while callable(step):
            step = step(request)
        return parts_of(step)
    except Exception as error:
        raise ScriptProblem(f"A function in the script raised {error!r}. Fix the script.") from error


class ScriptedModel:
    """Answers an agent from scripts and records its requests."""

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []  # all requests, in order
        self.problems: list[str] = []  # errors in the scripts; a test should end with none
        self._playbook = Playbook()
        self._apis: tuple[ModelApi, ...] = (ResponsesApi(), MessagesApi(), ChatApi(), GeminiApi())
        self._address = ""
        self._news = anyio.Event()
        self._closing = anyio.Event()
        self._resources = AsyncExitStack()

    @property
    def address(self) -> str:
        """Address for `ANTHROPIC_BASE_URL`."""
        return self._address

    @property
    def base_url(self) -> str:
        """URL for `model_providers.<id>.base_url` of Codex."""
        return f"{self._address}/v1"

    def on(self, when: RequestMatch, *steps: ScriptStep) -> None:
        """Add a script for prompts that contain a text, or for requests that a predicate accepts.

        If several scripts match, the one added last is played.
        """
        self._playbook.add(when, steps)

    def otherwise(self, *steps: ScriptStep) -> None:
        """Set the script for prompts that no other script matches."""
        self._playbook.set_default(steps)

    def forget(self) -> None:
        """Delete all scripts, requests and problems, for reuse in the next test."""
        self._playbook = Playbook()
        self.requests.clear()
        self.problems.clear()

    def gate(self) -> Gate:
        """Return a gate for `say(…, gate, …)` or a list of parts: the stream waits there until the test releases it."""
        return Gate()

    async def wait_for_request(self, which: Callable[[ModelRequest], bool] | int = 1) -> ModelRequest:
        """Wait for the first request that a predicate accepts, or for the n-th one. The caller bounds the wait."""
        seen = 0
        while True:
            for index in range(seen, len(self.requests)):
                request = self.requests[index]
                if index + 1 == which if isinstance(which, int) else which(request):
                    return request
            seen = len(self.requests)
            await self._news.wait()

    async def __aenter__(self) -> Self:
        self._address = await self._resources.enter_async_context(serve(self._app))
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._closing.set()
        await self._resources.__aexit__(*error)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        api = next((one for one in self._apis if one.fits(http.url.path)), None)
        if api is None or http.method != "POST":
            return await self._refuse(f"The scripted model has no {http.method} {http.url.path}.", 404, scope, send)
        request = api.read(dict(http.headers), await http.json())
        if api.is_aside(request):
            # Asides are answered without a script, and are not recorded.
            aside: tuple[Part, ...] | None = (say("ok"),)
        else:
            aside = None
            self.requests.append(request)
            self._news.set()
            self._news = anyio.Event()
        try:
            parts = aside or self._playbook.next_parts(request)
            beats = api.beats(parts, request)
        except Exception as error:  # noqa: BLE001 - reported to the test
            problem = str(error) if isinstance(error, ScriptProblem) else f"The script cannot be played: {error!r}."
            # Codex shows the text of a 400 to the user and does not retry; it hides that of a 500.
            return await self._refuse(problem, 400, scope, send)
        failure = next((part for part in parts if isinstance(part, Fail)), None)
        if failure is not None:
            response = JSONResponse(api.error(failure), failure.status, dict(failure.headers))
            return await response(scope, receive, send)
        await send({"type": "http.response.start", "status": 200, "headers": _raw(api.headers(parts))})
        return await self._play(api, beats, receive, send)

    async def _refuse(self, problem: str, status: int, scope: Scope, send: Send) -> None:
        self.problems.append(problem)
        error = {"type": "script_problem", "message": problem}
        await JSONResponse({"error": error}, status)(scope, _nothing, send)

    async def _play(self, api: ModelApi, beats: Sequence[Beat], receive: Receive, send: Send) -> None:
        """Send a stream; stop immediately if the agent disconnects or the model is closed."""
        async with anyio.create_task_group() as tasks:

            async def stop_when_gone() -> None:
                await receive()  # the body has been read, so this is the disconnect
                tasks.cancel_scope.cancel()

            async def stop_when_closing() -> None:
                await self._closing.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(stop_when_gone)
            tasks.start_soon(stop_when_closing)
            for beat in beats:
                match beat:
                    case Gate():
                        await beat.pass_through()
                    case Cut():
                        break  # the response is incomplete, so the server closes the socket
                    case Hang():
                        await anyio.sleep_forever()
                    case _:
                        await send({"type": "http.response.body", "body": api.encoded(beat), "more_body": True})
            else:
                await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _nothing() -> dict[str, str]:
    return {"type": "http.disconnect"}
