"""Ask the question handler of a program."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from helmsman.errors import AnswerInvalid, QuestionNotOpen
from helmsman.model.answered_by import HANDLER, Answered, AnsweredBy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helmsman.model.questions import Question
    from helmsman.sessions.session import QuestionHandler, Session

log = logging.getLogger(__name__)

_HANDLER_ATTEMPTS: Final = 3


async def ask_handler(
    handler: QuestionHandler,
    session: Session,
    question: Question,
    answer: Callable[[Sequence[str], AnsweredBy], Awaitable[None]],
    give_up: Callable[[], Awaitable[None]],
) -> None:
    """Ask a handler, again if its answer does not fit. `give_up` is called if it fails. Does not raise."""
    try:
        for attempt in range(1, _HANDLER_ATTEMPTS + 1):
            answers = await handler(session, question)
            if answers is None:
                return
            try:
                given = answers if isinstance(answers, Answered) else Answered(answers, HANDLER)
                await answer([given.answers] if isinstance(given.answers, str) else given.answers, given.by)
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
        # A question that stays open would block its turn until the deadline.
        await give_up()
