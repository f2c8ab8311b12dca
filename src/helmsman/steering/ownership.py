"""Ownership of sessions: what the model of an MCP client may do with sessions that its client did not open.

A model may look at every session, and stop it. It answers, applies, discards, rewinds, renames, archives, compacts, sets
goals and changes permissions only in sessions that its client opened or that a person handed to it. It may send messages to
other sessions as long as these work in a sandbox and a person answers their questions. A session with full access, or with
answers that a person gave for the whole session, would follow the message without asking: there a message is a permission.

The calling client is part of the caller's context (`helmsman.base.caller_context`). People and programs of the user
have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.base.caller_context import asking_client
from helmsman.errors import NotYours

if TYPE_CHECKING:
    from helmsman.base.clients import McpClient
    from helmsman.sessions.session import Session
    from helmsman.settings import Settings


def is_foreign(owner: McpClient | None, settings: Settings) -> bool:
    """Return whether a client asks, and may not act for the owner of a session."""
    client = asking_client()
    if client is None or settings.clients_share_sessions:
        return False
    # A session without an owner belongs to the user.
    return owner is None or not client.is_same_as(owner)


def owner_in_words(owner: McpClient | None) -> str:
    """Return who opened a session, for a sentence."""
    return "a person" if owner is None else f"another client ({owner.title})"


def refuse_foreign(session_id: str, owner: McpClient | None, settings: Settings, doing: str) -> None:
    """Make sure that a client's model acts on a session that its client owns.

    Raises:
        NotYours: Another client or a person opened it.
    """
    if is_foreign(owner, settings):
        raise NotYours(
            f"Session {session_id} was opened by {owner_in_words(owner)}, so only a person can {doing}: in the terminal, "
            f"the dashboard or a form. {_how_to_hand(session_id)}"
        )


def refuse_unasked(session: Session, settings: Settings, doing: str, *, changes_options: bool = False) -> None:
    """Make sure that a message of a client's model gains no permission that a person gave to another session.

    Raises:
        NotYours: Another client or a person opened the session, and it has full access or lasting answers, or the message
            would change what it may do.
    """
    if not is_foreign(session.opened_by, settings):
        return
    if changes_options:
        refuse_foreign(session.id, session.opened_by, settings, "change what it may do")
    options, state = session.options, session.state
    has_full_access = options.writes == "anything" or state.sandbox == "danger-full-access"
    if has_full_access or options.unenforced or state.enforced is False:
        why = "has full access"
    elif session.state.rules:
        why = "has answers that were given for the whole session"
    else:
        return
    raise NotYours(
        f"Session {session.id} was opened by {owner_in_words(session.opened_by)} and {why}: it would do what you say "
        f"without asking. So only a person can {doing}. Start a session of your own instead. {_how_to_hand(session.id)}"
    )


def refuse_before_person(session: Session, question_id: str, settings: Settings) -> None:
    """Make sure that a model does not answer a question that a person has before them in a form.

    Raises:
        NotYours: A person has it.
    """
    if session.has_form(question_id) and not settings.agents_answer_first:
        raise NotYours(
            f"A person is answering question {question_id} in a form. Nothing was sent; wait for the session again."
        )


def may_answer(session: Session, question_id: str, settings: Settings) -> bool:
    """Return whether the model that asks may answer a question of a session now."""
    if session.has_form(question_id) and not settings.agents_answer_first:
        return False
    return not is_foreign(session.opened_by, settings)


def who_answers(session: Session, settings: Settings) -> str | None:
    """Return who answers the open questions of a session, in a sentence; None where the model that asks may."""
    if asking_client() is None or not session.questions:
        return None
    if any(may_answer(session, question.id, settings) for question in session.questions):
        return None
    if any(session.has_form(question.id) for question in session.questions):
        return "A person is answering this question in a form. Do not answer it; wait again."
    owner = owner_in_words(session.opened_by)
    return (
        f"This session was opened by {owner}: a person answers its questions, in the terminal, the dashboard or a form. "
        f"{_how_to_hand(session.id)}"
    )


def _how_to_hand(session_id: str) -> str:
    client = asking_client()
    name = "CLIENT" if client is None else client.name or "CLIENT"
    return f"The user can hand it to you: helmsman session hand {session_id} --to {name}"
