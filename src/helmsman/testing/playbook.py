"""Select the script and the step for each request.

The newest user message that a script matches selects the script. Each conversation (Codex thread) has its own position,
so many threads with the same prompt share a script. A retried request gets the next step. A message without a match
continues the script of its conversation, unless it begins a turn and there is a default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from helmsman.testing.model_request import ModelRequest
from helmsman.testing.script import Always, Part, ScriptProblem, Step, parts_of, say

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
