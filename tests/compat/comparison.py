"""Compares what two servers told of the same turn, message by message, but for what `differences.py` lists.

What Codex itself does now so, now so, in either server, is allowed for: when a command ends beside all else, and whether the
end and the output of a quick one are told at all.
"""

from __future__ import annotations

from typing import Any

from tests.compat import differences
from tests.compat.servers import Message

_OUTPUTS = frozenset({"stdout", "aggregated_output", "formatted_output"})
_COMMANDS = frozenset({"exec_command_begin", "CommandExecution"})
_FROM_RUN_TO_RUN = frozenset(
    {"id", "call_id", "item_id", "process_id", "rollout_path", "session_id", "thread_id", "turn_id"}
)


def same_messages(original: list[Message], ours: list[Message]) -> None:
    was, now = _lanes(original), _lanes(ours)
    _same_lane(was.pop("turn"), now.pop("turn"))
    _same_lane(was.pop("tokens"), now.pop("tokens"))
    for one, other in zip(was.values(), now.values(), strict=True):
        both = min(len(one), len(other))  # the turn may be over before Codex tells of a command's end, with either
        assert "exec_command_begin" in map(_kind, one[:both]) or len(one) == len(other)
        _same_lane(one[:both], other[:both])


def _lanes(messages: list[Message]) -> dict[str, list[Message]]:
    """The messages, in lanes that are independent of each other: the turn, the tokens, and each command.

    A command ends when it ends, before or after Codex has counted the tokens and the model has gone on. Whether the output
    of a quick one comes in pieces differs from run to run of either server.
    """
    lanes: dict[str, list[Message]] = {"turn": [], "tokens": []}
    for message in messages:
        if message["type"] == "exec_command_output_delta":
            continue
        item = message.get("item", {})
        if message["type"].startswith("exec_"):
            lane = message["call_id"]
        elif item.get("type") == "CommandExecution":
            lane = item["id"]
        else:
            lane = "tokens" if message["type"] == "token_count" else "turn"
        lanes.setdefault(lane, []).append(message)
    return lanes


def _same_lane(original: list[Message], ours: list[Message]) -> None:
    assert [_kind(message) for message in ours] == [_kind(message) for message in original]
    asked_about = {message["call_id"] for message in ours if message["type"] == "exec_approval_request"}
    for was, now in zip(original, ours, strict=True):
        _same_fields(was, now, was["type"], _left_out(now, asked_about))


def _left_out(message: Message, asked_about: set[str]) -> frozenset[str]:
    """The fields that a message cannot have yet."""
    begins = message["type"] in ("item_started", "exec_command_begin")
    command = message.get("call_id") or message.get("item", {}).get("id")
    return differences.TOLD_LATER if begins and command in asked_about else frozenset()


def _kind(message: Message) -> str:
    item = message.get("item")
    return f"{message['type']} {item['type']}" if isinstance(item, dict) else message["type"]


def _same_fields(was: Message, now: Message, kind: str, later: frozenset[str] = frozenset()) -> None:
    left_out = differences.LEFT_OUT_FIELDS.get(kind, frozenset()) | (later if kind in _COMMANDS else frozenset())
    assert set(now) | left_out == set(was) | left_out, kind
    assert not set(now) & left_out, f"{kind} has fields that are listed as left out"
    for name in now:
        if name in differences.MEASURED or name in _FROM_RUN_TO_RUN or (kind, name) in differences.OTHER_VALUES:
            continue
        if name == "item":
            _same_fields(was[name], now[name], now[name]["type"], later)
        elif name in _OUTPUTS:  # of a quick command Codex itself misses some, or all
            assert relative(now[name]) in relative(was[name]) or relative(was[name]) in relative(now[name]), kind
        elif name == "rate_limits" and now[name] is None:  # no account tells of its limits: then all of them are empty
            assert not any(value for limit, value in was[name].items() if limit != "limit_id")
        elif name.endswith("token_usage"):
            _same_fields(was[name], now[name], "usage")
        elif name == "info":
            _same_fields(was[name], now[name], "info")
        else:
            assert relative(now[name]) == relative(was[name]), f"{kind}.{name}"


def relative(value: Any) -> Any:
    """A value without the place of the server's own repository."""
    if isinstance(value, str):
        return value.replace("/helmsman/repository", "/repository").replace("/original/repository", "/repository")
    if isinstance(value, dict):
        return {relative(key): relative(inner) for key, inner in value.items()}
    return [relative(inner) for inner in value] if isinstance(value, list) else value
