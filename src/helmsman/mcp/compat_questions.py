"""Convert approvals to the requests of the removed `codex mcp-server`, and parse its clients' replies.

The original sent `elicitation/create` with an empty form and its own fields for the facts (`codex_command`, …). It
accepted only `{"decision": "approved"}` as a yes, and took the protocol's `{"action": "accept"}` for a no. Here both
mean yes. Everything else means no.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import present
from helmsman.base.sanitize import exact
from helmsman.mcp.compat_items import CompatMessage, Raw, changes_by_path, command_words, parsed_command
from helmsman.model.events import FileChange, Item
from helmsman.model.question_forms import TOO_LONG
from helmsman.model.question_text import describe
from helmsman.model.questions import ABORT, APPROVE, APPROVE_ALWAYS, APPROVE_SESSION, DENY, REFUSALS, Question

if TYPE_CHECKING:
    from collections.abc import Mapping


SHOWN_DIFF_CHARS: Final = 64_000
"""Length up to which the elicitation includes the whole diff. Its clients cannot show a patch in any other way."""
_DECISIONS: Final = {
    "approved": APPROVE,
    "approved_for_session": APPROVE_SESSION,
    "approved_execpolicy_amendment": APPROVE_ALWAYS,
    "denied": DENY,
    "abort": ABORT,
}


def asked(question: Question, item: Item | None, raw: Raw) -> CompatMessage | None:
    """Return the message that announces an approval; None for other questions, which the original could not answer.

    `item` is the subject of the question, which contains the patch. `raw` is Codex's own request.
    """
    match question.type:
        case "command_approval":
            # A missing command must still give a valid message.
            words = command_words(question.details.get("command") or "")
            directory = question.details.get("directory")
            told = {
                "environmentId": question.environment,
                "proposed_execpolicy_amendment": raw.get("proposedExecpolicyAmendment"),
            }
            return {
                "type": "exec_approval_request",
                "call_id": question.item_id,
                "command": words,
                "cwd": directory,
                "reason": question.details.get("reason"),
                **present(told),
                "available_decisions": _offered(question),
                "parsed_cmd": parsed_command(words, raw, directory),
            }
        case "patch_approval":
            changes = changes_by_path(item.changes) if isinstance(item, FileChange) else {}
            return {"type": "apply_patch_approval_request", "call_id": question.item_id, "changes": changes}
        case _:
            # The original knew approvals of commands and patches only.
            return None


def elicitation(question: Question, message: CompatMessage, *, call_id: str, event_id: str) -> CompatMessage:
    """Return the parameters of the `elicitation/create` for an approval that `message` has announced."""
    about = {
        "requestedSchema": {"type": "object", "properties": dict[str, Any]()},
        "threadId": question.session_id,
        "codex_mcp_tool_call_id": call_id,
        "codex_event_id": event_id,
        "codex_call_id": question.item_id,
    }
    if question.type == "command_approval":
        return {
            "message": f"{_allow_command(message)}\n{describe(question).text()}",
            "codex_elicitation": "exec-approval",
            **about,
            "codex_command": message["command"],
            "codex_cwd": message["cwd"],
            "codex_parsed_cmd": message["parsed_cmd"],
        }
    reason, root = question.details.get("reason"), question.details.get("grantRoot")
    return {
        # The original's sentence comes first; its clients may look for it. What is really granted follows.
        "message": f"{_ALLOW_CHANGES}\n{_patch_text(question)}",
        "codex_elicitation": "patch-approval",
        **about,
        **({"codex_reason": reason} if reason else {}),
        **({"codex_grant_root": root} if root else {}),
        "codex_changes": message["changes"],
    }


_ALLOW_CHANGES: Final = "Allow Codex to apply proposed code changes?"


def _patch_text(question: Question) -> str:
    text = describe(question).text(diff_chars=SHOWN_DIFF_CHARS)
    return f"{text}\n{TOO_LONG.format(question.session_id)}" if _is_cut(question) else text


def _is_cut(question: Question) -> bool:
    return describe(question).is_cut(SHOWN_DIFF_CHARS)


def _allow_command(message: CompatMessage) -> str:
    """Return the original's sentence.

    It does not show everything that is allowed, and a command may imitate its text.
    """
    # Text of a command is marked, so that it cannot continue the sentence.
    return f"Allow Codex to run `{exact(shlex.join(message['command']))}` in `{exact(str(message['cwd']))}`?"


def answer(question: Question, reply: Mapping[str, Any]) -> str | None:
    """Return the option that a reply chooses: the original's `{decision}`, or the protocol's `{action, content}`.

    None leaves the question open: the reply approves a patch that was not shown whole.
    """
    chosen = _chosen(question, reply)
    # A no to a patch that was not shown whole is fine; a yes is not.
    return None if _is_cut(question) and chosen not in REFUSALS else chosen


def _chosen(question: Question, reply: Mapping[str, Any]) -> str:
    content = reply.get("content")
    decision = reply.get("decision")
    if decision is None and reply.get("action") == "accept":
        # `accept` with an empty form is what clients send that know only the protocol.
        decision = content.get("decision", "approved") if isinstance(content, dict) else "approved"
    if isinstance(decision, dict):  # the original's way to say which beginning of a command is always allowed
        decision = next(iter(decision), None)
    # Anything unknown is a no.
    chosen = _DECISIONS.get(decision, DENY) if isinstance(decision, str) else DENY
    if reply.get("action", "accept") != "accept" and chosen != ABORT:
        return DENY  # it says no as well, whatever else it says
    options = question.prompts[0].options
    if chosen in options:
        return chosen
    # A lasting yes that is not offered here still is a yes, for once.
    return APPROVE if chosen in (APPROVE_SESSION, APPROVE_ALWAYS) else DENY


def _offered(question: Question) -> list[str]:
    return [name for name, option in _DECISIONS.items() if option in question.prompts[0].options]
