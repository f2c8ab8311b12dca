"""Questions of sessions, and the rules that decide them. Loaded with the first question, not with the service."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from helmsman.errors import AnswerInvalid
from helmsman.model.events import QuestionAsked
from helmsman.steering.others_turns import is_theirs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.approvals.rule_book import RuleBook
    from helmsman.model.answered_by import AnsweredBy
    from helmsman.model.questions import Question
    from helmsman.sessions.question_broker import QuestionBroker
    from helmsman.sessions.session import OwnAnswer, QuestionHandler, Session
    from helmsman.settings import Settings
    from helmsman.steering.shared import Shared


class Answering:
    """Part of `helmsman.steering.turns.Turns`."""

    settings: Settings
    allowed_roots: tuple[Path, ...]
    _shared: Shared
    _on_question: QuestionHandler | None

    @cached_property
    def rules(self) -> RuleBook:
        """All rules there are."""
        from helmsman.approvals.rule_book import RuleBook

        return RuleBook(self.settings.files, self.settings.state_dir)

    @cached_property
    def broker(self) -> QuestionBroker:
        """Broker for the open questions."""
        from helmsman.sessions.question_broker import QuestionBroker

        return QuestionBroker(
            self.rules,
            self._shared.audit,
            timeout=self.settings.approval_timeout,
            handler=self._on_question,
            allowed_roots=self.allowed_roots,
            write_intent=self._shared.task_writer.write_intents,
            can_wait=self._shared.fence is not None,
        )

    def ask_first(
        self, session: Session, question: Question, answered: OwnAnswer, timeout: float | None = None
    ) -> None:
        """Ask Helmsman's own question about how to continue, before the session receives the end of its
        turn (`holds_back`).
        """
        session.ask_own(question.id, answered)
        asked = QuestionAsked(session_id=session.id, turn_id=question.turn_id, question=question)
        self._shared.tasks.start_soon(self.broker.receive(session, asked, timeout))

    async def give_answer(
        self, session: Session, question_id: str, answers: Sequence[str], by: AnsweredBy, *, roots: Sequence[Path]
    ) -> None:
        """Answer a question of a turn that was begun here. `roots`: the allowed ones of who answers.

        Raises:
            AnswerInvalid: It is a person's own turn, and an agent would answer it.
        """
        if by.who == "agent" and is_theirs(session, self._shared.task_writer):
            raise AnswerInvalid("A person began this turn in the agent's own program: only a person can answer it.")
        await self.broker.answer(session, question_id, answers, by, roots=roots)
