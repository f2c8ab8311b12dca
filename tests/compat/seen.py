"""Normalized behaviour of both servers, without values that differ between runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from helmsman.testing import ScriptedModel
from tests.compat import differences
from tests.compat.comparison import relative
from tests.compat.servers import Client, Message, Server


def shown_result(result: Message) -> Message:
    """A result, with what differs from run to run taken out. `isError: false` is what leaving it out means."""
    structured = {**result["structuredContent"], "threadId": "T"} if "structuredContent" in result else None
    return {"content": result["content"], "structured": structured, "isError": result.get("isError", False)}


def told_by(client: Client, call: int | None = None) -> list[Message]:
    left_out = differences.LEFT_OUT_KINDS | differences.IN_ANY_ORDER
    return [event for event in client.events(call) if event["type"] not in left_out]


@contextmanager
def naming(script: str) -> Iterator[None]:
    """Say which script it is that differs."""
    try:
        yield
    except AssertionError as difference:
        difference.add_note(f"It is the script {script!r} that differs.")
        raise


def about_servers(client: Client) -> list[Message]:
    """Events about Codex's own MCP servers, grouped by server."""
    told = [event for event in client.events() if event["type"] in differences.IN_ANY_ORDER]
    return sorted(told, key=lambda event: event.get("server", "~"))


def asked_of_model(model: ScriptedModel) -> tuple[Any, ...]:
    """What the model got of what the caller gave."""
    request = model.requests[-1]
    return request.user_texts, request.body.get("instructions")


def answering(client: Client, reply: Message | None) -> list[Message]:
    """Give this reply to every request of the server. Return the requests."""
    forms: list[Message] = []

    def answer(request: Message) -> Message | None:
        forms.append(request["params"])
        return reply

    client.reply = answer
    return forms


def without_ids(forms: list[Message], server: Server, call: int) -> list[Message]:
    shown = []
    for form in forms:
        assert form["codex_mcp_tool_call_id"] == form["codex_event_id"] == str(call), server.name
        shown.append(relative({**form, "threadId": "T", "codex_call_id": "call"}))
    return shown
