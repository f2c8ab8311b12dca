"""Broker for questions: decides who answers, which is a rule, the handler of the session, or a person in any client.

Rules decide first. A question that no rule decides stays open in the session until it is answered, its turn ends or its
deadline passes (`helmsman.approvals.deadline`); then it is refused. The first answer counts. Every decision is written to
the audit log with its author.
"""

from __future__ import annotations

import logging
import math
import shlex
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.approvals.deadline import Deadline, TimeLeft
from helmsman.approvals.policy import (
    Ruling,
    Workspace,
    beyond_roots,
    decide,
    leaves_the_sandbox,
    led_elsewhere,
    sandbox_of,
)
from helmsman.approvals.rule_book import prefixes_for, rule_as_toml, rule_for_always, rule_for_session, with_prefix
from helmsman.base.structs import replace
from helmsman.base.truncate import QUESTION_CHARS
from helmsman.errors import AnswerInvalid, HelmsmanError, QuestionNotOpen
from helmsman.model.answered_by import DEADLINE, TROUBLE, TURN_ENDED, AnsweredBy, in_words
from helmsman.model.events import AnswerGiven, QuestionAsked, QuestionClosed, RuleAdded
from helmsman.model.options import WRITES
from helmsman.model.question_text import in_a_line, part_texts
from helmsman.model.questions import (
    ACCEPT,
    APPROVE,
    APPROVE_ALWAYS,
    APPROVE_SESSION,
    DENY,
    REFUSALS,
    UNANSWERED,
    Choice,
    read_answers,
)
from helmsman.sessions.handlers import ask_handler
from helmsman.settings import MCP_ANSWER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from helmsman.approvals.audit import AuditLog
    from helmsman.approvals.rule_book import RuleBook
    from helmsman.model.questions import Question
    from helmsman.model.rules import Rule
    from helmsman.sessions.session import QuestionHandler, Session

log = logging.getLogger(__name__)

_ROOTS: Final = AnsweredBy("rule", "allowed roots")

_NOT_ANSWERED: Final = "The user did not answer in time. Nothing was decided."
"""Answer to a question for text."""
_PROPOSED: Final = (
    "this once; it proposed a rule, which does nothing until a person confirms it (helmsman config rules)"
)

_OWN_SECONDS: Final = 10.0
"""Seconds that an answer may take to reach Codex. Longer than sending the reason that precedes it."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """Rules that an answer to a question would make, as they were shown with it."""

    for_session: Rule | None
    always: Rule | None


class QuestionBroker:
    """Broker for the questions of all sessions."""

    def __init__(
        self,
        rules: RuleBook,
        audit: AuditLog,
        *,
        timeout: float | None,
        handler: QuestionHandler | None,
        allowed_roots: Sequence[Path] = (),
        write_intent: Callable[[], Awaitable[None]],
        can_wait: bool = False,
    ) -> None:
        """`timeout` is the configured timeout, if any. `write_intent` writes the log before an answer is sent. `can_wait`
        says that people can answer whenever they come back: this is a hub.
        """
        self._rules = rules
        self._audit = audit
        self._timeout = timeout
        self._can_wait = can_wait
        self._handler = handler
        self._offered: dict[str, _Rules] = {}
        self._allowed_roots = allowed_roots
        self._write_intent = write_intent

    def receive(
        self, session: Session, asked: QuestionAsked, timeout: float | None = None
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Decide immediately whether to ask. Return the remaining work, which belongs in the background.

        Later messages of the engine, such as a withdrawal of the question or the end of the turn, come after this decision.
        Neither this method nor the returned function raises: errors in one question must not affect other sessions.
        `timeout` overrides the default timeout for this question.
        """
        try:
            rest = self._decided(session, asked, self._seconds(session) if timeout is None else timeout)
        except Exception:
            log.exception("question %s of session %s is refused", asked.question.id, session.id)
            rest = partial(self._refuse, session, asked.question, TROUBLE)
        return partial(self._finish, session, asked.question, rest)

    def _seconds(self, session: Session) -> float:
        """Return the seconds that a question of a session waits. Without limit if a person opened the session and can be
        asked.
        """
        if self._timeout is not None:
            return self._timeout
        is_asked = self._can_wait or session.on_question is not None or self._handler is not None
        return math.inf if session.opened_by is None and is_asked else MCP_ANSWER_SECONDS

    def _decided(
        self, session: Session, asked: QuestionAsked, timeout: float
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        # Before the rules, because none of them may allow a write outside the roots.
        beyond = beyond_roots(asked.question, self._allowed_roots, session.state.directory)
        if beyond is not None:
            # A write outside the allowed roots is denied without asking, and Codex receives the reason.
            return partial(self._answer_unasked, session, asked, (Choice(DENY, beyond),), DENY, _ROOTS, beyond)
        question, self._offered[asked.question.id] = _with_offers(asked.question, _workspace(session))
        asked = asked.changed(question=question)
        ruling = self.ruling(session, question)
        if ruling.effect != "ask":
            yes = ACCEPT if question.type == "mcp_elicitation" else APPROVE
            choices, answer = ((Choice(yes),), yes) if ruling.effect == "allow" else (None, DENY)
            by = AnsweredBy("rule", ruling.rule.describe() if ruling.rule is not None else ruling.reason)
            return partial(self._answer_unasked, session, asked, choices, answer, by, ruling.reason)
        now = datetime.now(UTC)
        # A question that its agent asks again, after a hub has died, keeps its deadline.
        asked_ago = max(0.0, (now - session.state.asked_at.get(question.id, now)).total_seconds())
        deadline = Deadline(TimeLeft.new(timeout, time.monotonic(), asked_ago))
        session.set_deadline(question.id, deadline)
        # Before the agent receives the question: it must not answer for a person who is about to see a form.
        handler = session.on_question or self._handler
        close_form = session.open_form(question.id) if getattr(handler, "opens_form", False) else None
        session.apply(asked)
        return partial(self._wait, session, question, deadline, handler, close_form)

    async def _finish(
        self, session: Session, question: Question, rest: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await rest()
        except Exception:
            log.exception("question %s of session %s is refused", question.id, session.id)
            await self._refuse(session, question, TROUBLE)
        finally:
            self._offered.pop(question.id, None)
            session.set_deadline(question.id, None)

    async def _wait(
        self,
        session: Session,
        question: Question,
        deadline: Deadline,
        handler: QuestionHandler | None,
        close_form: Callable[[], None] | None,
    ) -> None:
        """Wait until an open question is answered or withdrawn, or its deadline passes."""
        # The handler and the deadline run concurrently, and the first to end decides.
        async with anyio.create_task_group() as tasks:
            if handler is not None:
                tasks.start_soon(self._ask, handler, session, question, close_form)
            tasks.start_soon(cancel_when_closed, session, question, tasks.cancel_scope)
            await deadline.passed()
            tasks.cancel_scope.cancel()
        if question.id in session.state.questions:
            await self._time_out(session, question, deadline)
        else:
            # Answered, most often, and then this does nothing. A sub-agent may ask when its session's turn is over, though:
            # it is refused without asking then, so that Codex does not wait for ever.
            await self._refuse(session, question, TURN_ENDED)

    async def _time_out(self, session: Session, question: Question, deadline: Deadline) -> None:
        log.warning("question %s of session %s timed out and is refused", question.id, session.id)
        reason = deadline.why_over()
        # An answer on its way to the agent may still arrive, and then it counts.
        if deadline.is_being_answered:
            with anyio.move_on_after(_OWN_SECONDS) as waiting:
                await cancel_when_closed(session, question, waiting)
        if question.id in session.state.questions:
            await self._leave_unanswered(session, question, reason)

    async def _leave_unanswered(self, session: Session, question: Question, reason: str) -> None:
        """Deny a question at its deadline. A question for text is not denied: its agent receives a text that says so."""
        is_own = session.own_question is not None and session.own_question[0] == question.id
        if question.type != "user_input" or is_own:
            await self._refuse(session, question, DEADLINE, reason)
            return
        # The field of a form would be filled in with these words, and the form accepted.
        takes_words = all(prompt.free_text for prompt in question.prompts)
        choices = tuple(Choice(_NOT_ANSWERED) for _ in question.prompts) if takes_words else None
        _reserve(session, question)
        await self._record(question, UNANSWERED, DEADLINE, reason)
        try:
            await session.answer(question, choices)
        except HelmsmanError as error:
            log.debug("question %s could not be left unanswered: %s", question.id, error)
        if question.id in session.state.questions:
            _close(session, question, UNANSWERED, DEADLINE, reason)

    async def answer(
        self,
        session: Session,
        question_id: str,
        answers: Sequence[str],
        by: AnsweredBy,
        *,
        roots: Sequence[Path] = (),
        call: str | None = None,
    ) -> None:
        """Answer an open question. `roots` are the allowed ones of who answers, whether or not the session has some. `call`
        is the key of the call that does.

        Raises:
            QuestionNotOpen: No such question, or it was answered already.
            AnswerInvalid: The answer does not fit; nothing was sent.
        """
        question = session.state.questions.get(question_id)
        if question is None:
            raise _not_open(session, question_id)
        choices = read_answers(question, answers)
        # A refusal is never refused: it grants nothing.
        says_yes = any(choice.value not in REFUSALS for choice in choices)
        beyond = beyond_roots(question, roots, session.state.directory) if says_yes and by.who == "agent" else None
        if beyond is not None:
            raise AnswerInvalid(f"{beyond} Only a person can let it. Answer with deny, or leave it to a person.")
        if (self._allowed_roots or roots) and by.who == "agent" and says_yes and leaves_the_sandbox(question):
            raise AnswerInvalid(
                "There are allowed roots, and outside the sandbox this command could write anywhere: only a person can "
                "let it, in the terminal, the dashboard or a form. Answer with deny, or leave it to a person.",
            )
        if by.who == "agent" and says_yes and question.type != "user_input" and _is_cut_for_agents(question):
            raise AnswerInvalid(
                "This question is so long that you were not shown all of what a yes grants: only a person can give it, in "
                "the terminal, the dashboard or a form. Answer with deny, or leave it to a person.",
            )
        await self._close(session, question, choices, by, call)

    # --- rules -------------------------------------------------------------------------------------------------------

    def ruling(self, session: Session, question: Question) -> Ruling:
        """Return the ruling of the rules on a question of a session."""
        workspace = _workspace(session)
        known = self._rules.rules_for(workspace.directory)
        return decide(question, replace(known, rules=(*known.rules, *session.state.rules)), workspace)

    async def record_ruling(self, question: Question, ruling: Ruling) -> None:
        """Record a decision by rules alone, where no person can be asked. A question that no rule allows is denied."""
        decision = APPROVE if ruling.effect == "allow" else DENY
        by = AnsweredBy("rule", ruling.rule.describe() if ruling.rule is not None else ruling.reason)
        await self._record(question, decision, by, ruling.reason)

    async def _answer_unasked(
        self,
        session: Session,
        asked: QuestionAsked,
        choices: tuple[Choice, ...] | None,
        answer: str,
        by: AnsweredBy,
        reason: str,
    ) -> None:
        """Answer a question without asking."""
        await self._record(asked.question, answer, by, reason)
        try:
            await session.answer(asked.question, choices)
        except HelmsmanError as error:  # its turn has ended, or the engine is gone: the session gets that event
            log.debug("question %s could not be answered by %s: %s", asked.question.id, by, error)
            return
        session.apply(asked)
        _close(session, asked.question, answer, by, reason)

    # --- people ------------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        handler: QuestionHandler,
        session: Session,
        question: Question,
        close_form: Callable[[], None] | None,
    ) -> None:
        async def answer(words: Sequence[str], by: AnsweredBy) -> None:
            await self.answer(session, question.id, words, by)

        try:
            await ask_handler(handler, session, question, answer, lambda: self.give_up(session, question))
        finally:
            if close_form is not None:
                close_form()

    async def give_up(self, session: Session, question: Question) -> None:
        """Refuse a question after its handler failed."""
        await self._refuse(session, question, TROUBLE, "the handler failed")

    async def _close(
        self, session: Session, question: Question, choices: tuple[Choice, ...], by: AnsweredBy, call: str | None
    ) -> None:
        """Send the answer to Codex, create the rule that it asks for, and notify all readers.

        An answer that arrives after a denial creates no rule.
        """
        first = choices[0] if choices else Choice("")  # a question may have no parts at all
        offered = self._offered.get(question.id, _Rules(None, None))
        sent = (Choice(APPROVE),) if first.value == APPROVE_ALWAYS else choices
        is_proposed = first.value == APPROVE_ALWAYS and by.who == "agent"
        shown = answer_text(question, choices, by)
        reason = _PROPOSED if is_proposed else first.reason
        with anyio.CancelScope(
            shield=True
        ):  # bounded; a rule and the answer that made it are kept together, or not at all
            made: str | None = None
            if first.value == APPROVE_ALWAYS and offered.always is not None:
                rule = _chosen(offered.always, question, _workspace(session), first.reason)
                if is_proposed:  # a person confirms what decides from now on; this once it is approved
                    rule = replace(rule, proposed_by=by.name or "an unnamed MCP client")
                made = await anyio.to_thread.run_sync(self._rules.add, rule)
            try:
                await self._send(session, question, sent, shown, by, reason, call)
            except HelmsmanError:
                if made is not None:
                    await anyio.to_thread.run_sync(self._rules.remove, made)
                raise
        if first.value == APPROVE_SESSION and offered.for_session is not None:
            session.apply(RuleAdded(session_id=session.id, rule=offered.for_session))
        _close(session, question, shown, by, reason)

    async def _send(
        self,
        session: Session,
        question: Question,
        choices: tuple[Choice, ...] | None,
        shown: str,
        by: AnsweredBy,
        reason: str | None,
        call: str | None,
    ) -> None:
        """Send the answer to the engine or handler that asked. It is in the audit log and in the session's log before."""
        deadline = session.deadlines.get(question.id)
        if deadline is None:
            # In the audit log first: a crash after this leaves a record without an effect, never the reverse.
            await self._record(question, shown, by, reason)
            await session.answer(question, choices)
            return
        if deadline.is_being_answered:
            raise QuestionNotOpen(f"Question {question.id} is being answered by another client. Look at the status.")
        deadline.is_being_answered = True
        try:
            await self._record(question, shown, by, reason)
            session.apply(
                AnswerGiven(
                    session_id=session.id,
                    question_id=question.id,
                    answer=shown,
                    by=str(by),
                    via=by.through,
                    reason=reason,
                    about=in_a_line(question),
                    call=call,
                )
            )
            await self._write_intent()
            await session.answer(question, choices)
        except HelmsmanError:
            deadline.is_being_answered = False
            raise

    async def _refuse(self, session: Session, question: Question, by: AnsweredBy, reason: str | None = None) -> None:
        """Deny a question that was not answered."""
        is_open = question.id in session.state.questions
        if is_open:
            _reserve(session, question)
            await self._record(question, DENY, by, reason)
        try:
            await session.answer(question, None)
        except HelmsmanError as error:
            # Answered, withdrawn, or the engine is gone: there is nothing left to refuse.
            log.debug("question %s could not be refused: %s", question.id, error)
            if question.id not in session.state.questions:
                return
        if not is_open:
            await self._record(question, DENY, by, reason)
        _close(session, question, DENY, by, reason)

    async def _record(self, question: Question, decision: str, by: AnsweredBy, reason: str | None) -> None:
        with anyio.CancelScope(shield=True):  # closing the question cancels its handler, which may be the caller
            await anyio.to_thread.run_sync(
                lambda: self._audit.record(question, decision=decision, by=by, reason=reason)
            )


def _reserve(session: Session, question: Question) -> None:
    """Let no client answer a question from now on."""
    if (deadline := session.deadlines.get(question.id)) is not None:
        deadline.is_being_answered = True


def _close(session: Session, question: Question, answer: str, by: AnsweredBy, reason: str | None) -> None:
    session.apply(
        QuestionClosed(
            session_id=session.id,
            question_id=question.id,
            answer=answer,
            by=str(by),
            via=by.through,
            reason=reason,
            about=in_a_line(question),
        )
    )


def _not_open(session: Session, question_id: str) -> QuestionNotOpen:
    """Return the error for a question that is not open, with its answer where that is still known."""
    for event in reversed(session.feed.since(0).events):
        if isinstance(event, QuestionClosed) and event.question_id == question_id:
            outcome = in_words(event.answer, event.by, event.via, event.reason)
            how = "is closed" if event.answer is None else "was answered already"
            told = f"This question {how}: {outcome}. Nothing was sent. Continue."
            return QuestionNotOpen(told, answer=event.answer, by=event.by)
    still = ", ".join(session.state.questions) or "none"
    return QuestionNotOpen(
        f"Session {session.id} has no open question {question_id} (open: {still}). Look at its status."
    )


def _is_cut_for_agents(question: Question) -> bool:
    """Return whether the status for agents contains only a part of the question's text."""
    return any(len(text) > QUESTION_CHARS for text in part_texts(question))


def answer_text(question: Question, choices: Sequence[Choice], by: AnsweredBy) -> str:
    """Return an answer as events and the audit log have it."""
    if choices and choices[0].value == APPROVE_ALWAYS and by.who == "agent":
        return APPROVE  # the rule is only proposed
    return _shown(question, ", ".join(choice.value for choice in choices))


def _shown(question: Question, answer: str) -> str:
    return "(secret)" if any(prompt.secret for prompt in question.prompts) else answer


async def cancel_when_closed(session: Session, question: Question, scope: anyio.CancelScope) -> None:
    """Cancel the scope that asks a question once another client has answered it, or its turn has ended."""
    while question.id in session.state.questions:
        await session.feed.changed()
    scope.cancel()


def _workspace(session: Session) -> Workspace:
    directory = session.state.directory
    return Workspace(
        directory=Path(directory) if directory is not None else None,
        # A sandbox that nothing enforces restricts no writes.
        writes=None if session.state.enforced is False else WRITES.get(session.state.sandbox or ""),
        writable_roots=session.options.writable_roots,
    )


def _with_offers(question: Question, workspace: Workspace) -> tuple[Question, _Rules]:
    """Add to the question the effects of an approval, and the lasting answers for which there is a rule."""
    if question.type not in ("command_approval", "patch_approval"):
        return question, _Rules(None, None)
    details = {**question.details, "sandbox": sandbox_of(question, workspace)}
    if led := led_elsewhere(question, workspace.directory):
        details["leadsTo"] = led
    (prompt,) = question.prompts
    lasting = APPROVE_SESSION in prompt.options
    rules = _Rules(
        rule_for_session(question, workspace) if lasting else None,
        rule_for_always(question, workspace) if lasting else None,
    )
    options: list[str] = []
    for option in prompt.options:
        if option != APPROVE_SESSION or rules.for_session is not None:
            options.append(option)
        if option == APPROVE_SESSION and rules.always is not None:
            options.append(APPROVE_ALWAYS)
    if rules.always is not None:
        details["alwaysRule"] = rule_as_toml(rules.always)
        if prefixes := prefixes_for(question, workspace):
            details["prefixes"] = prefixes
    return replace(question, prompts=(replace(prompt, options=tuple(options)),), details=details), rules


def _chosen(rule: Rule, question: Question, workspace: Workspace, prefix: str | None) -> Rule:
    """Return the permanent rule as it was shown, or for the beginning of the command that was chosen.

    Raises:
        AnswerInvalid: That was not offered.
    """
    if prefix is None:
        return rule
    try:
        words = shlex.split(prefix)
    except ValueError:
        raise AnswerInvalid(
            f"{prefix!r} is not a beginning of the command. Give its words as one would type them."
        ) from None
    return with_prefix(rule, question, workspace, words)
