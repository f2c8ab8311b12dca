"""A review of a change, and what it found: Codex's own, or one that another agent is asked for.

A review runs in a session: one of its own, which can read and nothing more, or the session whose work it is about, which
then knows the findings and can be told to fix them. It is a turn and a task like any other. An agent without a review of its
own, or another than the one whose work it is about, reviews in a session of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from helmsman.agents.protocol import Capability, ReviewReport
from helmsman.base.surroundings import current
from helmsman.capabilities.asked_reviews import REVIEWED, Scope, ask_for_review, read_answer
from helmsman.capabilities.review_scope import (
    default_target,
    has_untracked,
    in_words,
    nothing_in_words,
    resolve,
    with_instructions,
)
from helmsman.errors import InvalidInput
from helmsman.model.events import Review
from helmsman.model.inputs import PathLike, session_options, turn_input
from helmsman.model.options import DEFAULT_AGENT, ReviewTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.steering.core import Steering


_UNTRACKED: Final = "The untracked files that `git status` shows belong to the changes."


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
        unenforced: bool = False,
        trust_repository: bool = False,
        on_question: QuestionHandler | None = None,
        on_task: Callable[[str], None] | None = None,
    ) -> BegunReview:
        """Begin a review. Returns when it is under way.

        Args:
            target: What to review: by default the uncommitted changes, and of a session in a worktree all that it did there.
            cwd: Where; the current directory by default.
            session_id: Review what this session did, where it works: in it, or in a session of its own where another agent
                reviews, or one that has no review of its own. Not together with `cwd`, nor with `model` in it.
            instructions: What to heed besides, or, with a target of kind `custom`, all that is to be looked at.
            detached: With a session: review where it works, but in a session of its own.
            agent: Who reviews, if not the session's agent or else the default one.
            model: A model other than the configured one.
            unenforced: Let an agent review that no sandbox can hold to reading.
            trust_repository: As for `Helmsman.start`.
            on_question: Answers what Codex asks.
            on_task: Told the id of the task as soon as it is registered.

        Raises:
            InvalidInput: There is no such branch or commit, or this is no git repository.
            SessionBusy: A turn is running in the session.
            HelmsmanError: Codex is not there, or refuses.
        """
        session = None if session_id is None else await self._helm.session(session_id)
        reviewer = agent or (self._helm.settings.default_agent if session is None else session.options.agent)
        is_other = session is not None and session.options.agent != reviewer
        if session is not None and (cwd is not None or (model is not None and not is_other)):
            raise InvalidInput("A session has its directory and its model. Leave out cwd and model, or the session.")
        place = (session.options.cwd or session.directory) if session is not None else cwd
        checked = session_options(place if place is not None else ".", {}, self._helm.allowed_roots)
        directory = checked.cwd or current().directory
        state_dir = self._helm.settings.state_dir
        if target is None:
            base = None if session is None or session.worktree is None else session.worktree.base
            target = await anyio.to_thread.run_sync(default_target, directory, base, state_dir)
        wanted = _checked(target, instructions)
        resolved = await anyio.to_thread.run_sync(resolve, directory, wanted, state_dir)
        if resolved is None:
            return BegunReview(nothing=nothing_in_words(wanted))
        review: ReviewTarget | None = resolved
        if not await self._has_own(reviewer):
            text, scope = await anyio.to_thread.run_sync(ask_for_review, directory, resolved, instructions, state_dir)
            review, on_task = None, partial(self._keep_scope, scope, on_task)
        else:
            text = in_words(resolved)
            if resolved.kind == "base" and await anyio.to_thread.run_sync(has_untracked, directory, state_dir):
                instructions = " ".join(filter(None, (_UNTRACKED, instructions)))
            if instructions and resolved.kind != "custom":
                review = await anyio.to_thread.run_sync(with_instructions, directory, resolved, instructions, state_dir)
                text = f"{text} {instructions}"
        if session is None or detached or is_other or review is None:
            session = await self._helm.start(
                text,
                cwd=directory,
                kind=review,
                on_question=on_question,
                on_task=on_task,
                agent=reviewer,
                model=model if session is None or is_other else session.options.model,
                sandbox="read-only",
                approval_policy="never",
                unenforced=unenforced,
                trust_repository=trust_repository,
            )
        else:
            await self._helm.truth.refuse_archived(session.id)
            session.on_question = on_question or session.on_question
            session = await self._in_session(session, text, review, on_task)
        return BegunReview(session=session)

    async def _has_own(self, agent: str) -> bool:
        """Whether an agent has a review of its own. An engine of Codex that has none says which has."""
        return agent == DEFAULT_AGENT or Capability.REVIEW in await self._helm.capabilities(agent)

    def _keep_scope(self, scope: Scope, on_task: Callable[[str], None] | None, task_id: str) -> None:
        self._helm.ledger.update(task_id, {"metadata": {REVIEWED: scope.as_dict()}})
        if on_task is not None:
            on_task(task_id)

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
            ReviewUnreadable: The agent was asked for its findings, and answered something else.
        """
        session = await self._helm.session(session_id)
        if session.state.is_running:
            return None
        if not await self._has_own(session.options.agent):
            return await self._asked_report(session)
        engine = await self._helm.engine(Capability.REVIEW, agent=session.options.agent)
        shown = [item.text for item in session.items if isinstance(item, Review) and item.finished]
        return await engine.review_report(session.id, shown[-1] if shown and session.status == "done" else None)

    async def _asked_report(self, session: Session) -> ReviewReport | None:
        await self._helm.ledger.write()
        tasks = await self._helm.ledger.registry(lambda registry: registry.tasks_of_session(session.id))
        for task in tasks:
            if (scope := Scope.of(task.metadata.get(REVIEWED))) is not None:
                said = session.result if task.id == tasks[0].id else task.result
                return None if said is None else read_answer(said, scope, session.id)
        return None


def _checked(target: ReviewTarget, instructions: str | None) -> ReviewTarget:
    if target.kind == "custom":
        target = ReviewTarget(kind="custom", value=target.value or instructions or "")
    if target.kind != "uncommitted" and not target.value.strip():
        missing = {"base": "branch", "commit": "commit", "custom": "instructions"}[target.kind]
        raise InvalidInput(f"A review of kind {target.kind} needs the {missing}. Give it.", parameter=missing)
    return target
