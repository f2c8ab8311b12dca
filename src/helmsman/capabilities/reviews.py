"""Codex's own review of a change, and what it found.

A review runs in a session: one of its own, which can read and nothing more, or the session whose work it is about, which
then knows the findings and can be told to fix them. It is a turn and a task like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio.to_thread

from helmsman.agents.protocol import Capability, ReviewReport
from helmsman.base.surroundings import current
from helmsman.capabilities.review_scope import in_words, nothing_in_words, resolve, with_instructions
from helmsman.errors import InvalidInput
from helmsman.model.events import Review
from helmsman.model.inputs import PathLike, session_options, turn_input
from helmsman.model.options import ReviewTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.steering.core import Steering


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunReview:
    """A review that runs in `session`; or the reason why there is `nothing` to review, and then no session."""

    session: Session | None = None
    nothing: str | None = None


class Reviews:
    """`helm.extras.reviews`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm

    async def start(
        self,
        target: ReviewTarget | None = None,
        *,
        cwd: PathLike | None = None,
        session_id: str | None = None,
        instructions: str | None = None,
        detached: bool = False,
        agent: str | None = None,
        model: str | None = None,
        on_question: QuestionHandler | None = None,
        on_task: Callable[[str], None] | None = None,
    ) -> BegunReview:
        """Begin a review. Returns when it is under way.

        Args:
            target: What to review: by default the uncommitted changes.
            cwd: Where; the current directory by default.
            session_id: Review in this session, where it works. Not together with `cwd` or `model`.
            instructions: What to heed besides, or, with a target of kind `custom`, all that is to be looked at.
            detached: With a session: review where it works, but in a session of its own.
            agent: Who reviews in a session of its own, if not the default agent.
            model: A model other than the configured one.
            on_question: Answers what Codex asks.
            on_task: Told the id of the task as soon as it is registered.

        Raises:
            InvalidInput: There is no such branch or commit, or this is no git repository.
            SessionBusy: A turn is running in the session.
            HelmsmanError: Codex is not there, or refuses.
        """
        session = None if session_id is None else await self._helm.session(session_id)
        if session is not None and (cwd is not None or model is not None):
            raise InvalidInput("A session has its directory and its model. Leave out cwd and model, or the session.")
        place = (session.options.cwd or session.directory) if session is not None else cwd
        checked = session_options(place if place is not None else ".", {}, self._helm.allowed_roots)
        directory = checked.cwd or current().directory
        wanted = _checked(target or ReviewTarget(), instructions)
        state_dir = self._helm.settings.state_dir
        resolved = await anyio.to_thread.run_sync(resolve, directory, wanted, state_dir)
        if resolved is None:
            return BegunReview(nothing=nothing_in_words(wanted))
        text = in_words(resolved)
        if instructions and resolved.kind != "custom":
            resolved = await anyio.to_thread.run_sync(with_instructions, directory, resolved, instructions, state_dir)
            text = f"{text} {instructions}"
        if session is None or detached:
            session = await self._helm.start(
                text,
                cwd=directory,
                kind=resolved,
                on_question=on_question,
                on_task=on_task,
                agent=agent if session is None else session.options.agent,
                model=model if session is None else session.options.model,
                sandbox="read-only",
                approval_policy="never",
            )
        else:
            await self._helm.truth.refuse_archived(session.id)
            session.on_question = on_question or session.on_question
            session = await self._in_session(session, text, resolved, on_task)
        return BegunReview(session=session)

    async def _in_session(
        self, session: Session, text: str, target: ReviewTarget, on_task: Callable[[str], None] | None
    ) -> Session:
        turn = turn_input(text, kind=target)
        await self._helm.engine(Capability.REVIEW, agent=session.options.agent)
        return await self._helm.run_other_turn(session.id, turn, on_task=on_task)

    async def report(self, session_id: str) -> ReviewReport | None:
        """What the newest review in a session found; None while it is running, or where none came to an end.

        Raises:
            SessionNotFound: There is no such session.
        """
        session = await self._helm.session(session_id)
        if session.state.is_running:
            return None
        engine = await self._helm.engine(Capability.REVIEW, agent=session.options.agent)
        shown = [item.text for item in session.items if isinstance(item, Review) and item.finished]
        return await engine.review_report(session.id, shown[-1] if shown and session.status == "done" else None)


def _checked(target: ReviewTarget, instructions: str | None) -> ReviewTarget:
    if target.kind == "custom":
        target = ReviewTarget(kind="custom", value=target.value or instructions or "")
    if target.kind != "uncommitted" and not target.value.strip():
        missing = {"base": "branch", "commit": "commit", "custom": "instructions"}[target.kind]
        raise InvalidInput(f"A review of kind {target.kind} needs the {missing}. Give it.", parameter=missing)
    return target
