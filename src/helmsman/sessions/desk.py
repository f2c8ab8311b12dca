"""Who answers a question: a rule, the handler of the session, a person through any door, or nobody.

Before anyone is asked, rules decide. What no rule decides stands open in the session until somebody answers, its turn ends
or its time is up; then it is refused. The first answer counts. Every decision is written to the audit log.
"""

from __future__ import annotations

import logging
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.errors import AnswerInvalid, HelmsmanError, QuestionNotOpen
from helmsman.events import QuestionAsked, QuestionClosed
from helmsman.questions import (
    ACCEPT,
    APPROVE,
    APPROVE_ALWAYS,
    APPROVE_SESSION,
    DENY,
    REFUSALS,
    Choice,
    read_answers,
)
from helmsman.sessions.beyond_roots import beyond_roots, leaves_the_sandbox
from helmsman.sessions.policy import Workspace, decide
from helmsman.sessions.rules_from_answers import prefixes_for, rule_for_always, rule_for_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.questions import Question
    from helmsman.sessions.audit import AuditLog
    from helmsman.sessions.policy import Decision
    from helmsman.sessions.rule_book import RuleBook
    from helmsman.sessions.session import QuestionHandler, Session

log = logging.getLogger(__name__)

AGENT: Final = "agent"
"""How `by` begins where an agent answered, and no person."""

_ROOTS: Final = "rule: allowed roots"

_HANDLER_ATTEMPTS: Final = 3
"""How often a handler may give an answer that does not fit (a word where a number is asked for) before that is a no."""


class Desk:
    """Where the questions of all sessions are seen to."""

    def __init__(
        self,
        rules: RuleBook,
        audit: AuditLog,
        *,
        timeout: float,
        handler: QuestionHandler | None,
        allowed_roots: Sequence[Path] = (),
    ) -> None:
        self._rules = rules
        self._audit = audit
        self._timeout = timeout
        self._handler = handler
        self._allowed_roots = allowed_roots

    async def see_to(self, session: Session, asked: QuestionAsked) -> None:
        """Stay with a question until it is closed. Never raises: one question's trouble is not the other sessions'."""
        try:
            await self._see_to(session, asked)
        except Exception:
            log.exception("question %s of session %s is refused", asked.question.id, session.id)
            await self._refuse(session, asked.question, "trouble")

    async def _see_to(self, session: Session, asked: QuestionAsked) -> None:
        beyond = beyond_roots(asked.question, self._allowed_roots, session.state.directory)
        if beyond is not None:
            await self._keep_inside(session, asked, beyond)
            return
        question = _with_lasting_option(asked.question, _workspace(session))
        decision = self._decide(session, question)
        if decision.effect != "ask":
            await self._answer_by_rule(session, replace(asked, question=question), decision)
            return
        session.apply(replace(asked, question=question))
        async with anyio.create_task_group() as tasks:
            handler = session.on_question or self._handler
            if handler is not None:
                tasks.start_soon(self._ask, handler, session, question)
            with anyio.move_on_after(self._timeout):
                while question.id in session.state.questions:
                    await session.feed.changed()
            tasks.cancel_scope.cancel()
        if question.id in session.state.questions:
            log.warning("question %s of session %s timed out and is refused", question.id, session.id)
            await self._refuse(session, question, "timeout")
        else:
            # Answered, most often, and then this does nothing. A sub-agent may ask when its session's turn is over, though:
            # nobody is asked then, and Codex must not wait for ever.
            await self._refuse(session, question, "turn ended")

    async def answer(self, session: Session, question_id: str, answers: Sequence[str], by: str) -> None:
        """Answer an open question.

        Raises:
            QuestionNotOpen: No such question, or it was answered already.
            AnswerInvalid: The answer does not fit; nothing was sent.
        """
        question = session.state.questions.get(question_id)
        if question is None:
            still = ", ".join(session.state.questions) or "none"
            raise QuestionNotOpen(
                f"Session {session.id} has no open question {question_id} (open: {still}). Look at its status."
            )
        choices = read_answers(question, answers)
        says_yes = any(choice.value not in REFUSALS for choice in choices)
        if self._allowed_roots and by.startswith(AGENT) and says_yes and leaves_the_sandbox(question):
            raise AnswerInvalid(
                "There are allowed roots, and outside the sandbox this command could write anywhere: only a person can "
                "let it, in the terminal, the dashboard or a form. Answer with deny, or leave it to a person.",
            )
        await self._close(session, question, choices, by)

    async def _keep_inside(self, session: Session, asked: QuestionAsked, why: str) -> None:
        """Say no to what would write outside the allowed roots, and tell Codex so. Nobody is asked."""
        question = asked.question
        try:
            await session.answer(question, (Choice(DENY, why),))
        except HelmsmanError as error:  # its turn ended meanwhile, or the engine is gone: the session is told of that
            log.debug("question %s could not be refused: %s", question.id, error)
            return
        session.apply(asked)
        await self._closed(session, question, DENY, _ROOTS, why)

    # --- rules -------------------------------------------------------------------------------------------------------

    def _decide(self, session: Session, question: Question) -> Decision:
        workspace = _workspace(session)
        known = self._rules.rules_for(workspace.directory)
        return decide(question, replace(known, rules=(*known.rules, *session.rules)), workspace)

    async def _answer_by_rule(self, session: Session, asked: QuestionAsked, decision: Decision) -> None:
        question = asked.question
        allowed = decision.effect == "allow"
        yes = ACCEPT if question.type == "mcp_elicitation" else APPROVE
        choices = (Choice(yes),) if allowed else None
        by = decision.rule.describe() if decision.rule is not None else decision.reason
        try:
            await session.answer(question, choices)
        except HelmsmanError as error:  # its turn ended meanwhile, or the engine is gone: the session is told of that
            log.debug("question %s could not be answered by rule: %s", question.id, error)
            return
        session.apply(asked)
        await self._closed(session, question, yes if allowed else "deny", by, decision.reason)

    # --- people ------------------------------------------------------------------------------------------------------

    async def _ask(self, handler: QuestionHandler, session: Session, question: Question) -> None:
        try:
            for attempt in range(1, _HANDLER_ATTEMPTS + 1):
                answers = await handler(session, question)
                if answers is None:
                    return
                try:
                    given = [answers] if isinstance(answers, str) else answers
                    await self.answer(session, question.id, given, "handler")
                except AnswerInvalid as error:
                    if attempt == _HANDLER_ATTEMPTS:
                        raise
                    log.info("the answer to question %s does not fit, so it is asked again: %s", question.id, error)
                else:
                    return
        except QuestionNotOpen:
            log.debug("question %s was answered elsewhere", question.id)
        except Exception:
            log.exception("the question handler failed; question %s is refused", question.id)
            await self._refuse(session, question, "handler failed")

    async def _close(self, session: Session, question: Question, choices: tuple[Choice, ...], by: str) -> None:
        """Give the answer to Codex, make the rule it asks for, and tell everybody."""
        first = choices[0] if choices else Choice("")  # a question may have no parts at all
        sent = choices
        if first.value == APPROVE_ALWAYS:
            await self._make_permanent(session, question, first)
            sent = (Choice(APPROVE),)
        await session.answer(question, sent)
        if first.value == APPROVE_SESSION:
            rule = rule_for_session(question, _workspace(session))
            session.rules += (rule,) if rule is not None else ()
        await self._closed(session, question, ", ".join(choice.value for choice in choices), by, first.reason)

    async def _refuse(self, session: Session, question: Question, by: str) -> None:
        """Say no for want of an answer."""
        refused = True
        try:
            await session.answer(question, None)
        except HelmsmanError as error:
            # Answered, withdrawn, or the engine is gone: there is nothing left to refuse.
            log.debug("question %s could not be refused: %s", question.id, error)
            refused = False
        if refused or question.id in session.state.questions:
            await self._closed(session, question, "deny", by, None)

    async def _make_permanent(self, session: Session, question: Question, choice: Choice) -> None:
        try:
            prefix = shlex.split(choice.reason) if choice.reason else None
        except ValueError:
            raise AnswerInvalid(
                f"{choice.reason!r} is not a beginning of the command. Give its words as one would type them."
            ) from None
        rule = rule_for_always(question, _workspace(session), prefix)
        await anyio.to_thread.run_sync(self._rules.add, rule)

    async def _closed(self, session: Session, question: Question, answer: str, by: str, reason: str | None) -> None:
        secret = any(prompt.secret for prompt in question.prompts)
        shown = "(secret)" if secret else answer
        session.apply(QuestionClosed(session_id=session.id, question_id=question.id, answer=shown, by=by))
        with anyio.CancelScope(shield=True):  # closing the question cancels its handler, which may be who is here
            await anyio.to_thread.run_sync(lambda: self._audit.record(question, decision=shown, by=by, reason=reason))


def _workspace(session: Session) -> Workspace:
    directory = session.state.directory
    return Workspace(
        directory=Path(directory) if directory is not None else None,
        sandbox=session.state.sandbox,
        writable_roots=session.options.writable_roots,
    )


def _with_lasting_option(question: Question, workspace: Workspace) -> Question:
    """Offer `approve_always` where a permanent rule can be made, with the beginnings one may choose from."""
    if question.type != "command_approval" or APPROVE_SESSION not in question.prompts[0].options:
        return question
    try:
        rule_for_always(question, workspace)
    except AnswerInvalid:
        return question
    (prompt,) = question.prompts
    after = prompt.options.index(APPROVE_SESSION) + 1
    options = (*prompt.options[:after], APPROVE_ALWAYS, *prompt.options[after:])
    details = {**question.details, "prefixes": prefixes_for(question)}
    return replace(question, prompts=(replace(prompt, options=options),), details=details)
