"""Plan first: Codex looks and proposes, a person or an agent decides, and only then something changes.

A plan is a turn in Codex's plan mode, in a read-only sandbox that asks for nothing, so that nothing can change whatever
the model tries. When it has ended, the session does not: it asks whether the plan is to be carried out. `approve` goes on
with the work under the options given at the start, `revise: words` plans again in the same thread, `stop` (or nobody's
answer) ends it. Each of these turns is a task.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from helmsman.errors import AnswerInvalid, HelmsmanError
from helmsman.model.events import AgentMessage, ProposedPlan, TurnEnded
from helmsman.model.inputs import turn_input
from helmsman.model.questions import APPROVE, REVISE, STOP, Choice, Prompt, Question

if TYPE_CHECKING:
    from helmsman.model.options import TurnInput
    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering

log = logging.getLogger(__name__)

_CARRY_OUT: Final = "The plan is approved. Carry it out now."
_NOT_APPROVED: Final = "Its plan was not approved, so nothing was changed."


class Plans:
    """`helm.extras.plans`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm
        self.start = partial(helm.start, kind="plan")
        """A new session that plans first. The arguments are those of `Helmsman.start`; they hold once the plan is approved.

        Returns when the turn is under way. When the plan is there, it is a question of the session.
        """

    def asks(self, session: Session, ended: TurnEnded) -> bool:
        """Whether, before a session hears that its turn has ended, somebody is asked to approve its plan."""
        if not session.planning or ended.outcome != "completed":
            return False
        self._helm.ask_first(session, _question(session), partial(self._answered, session, ended))
        return True

    def _answered(self, session: Session, ended: TurnEnded, choices: tuple[Choice, ...] | None) -> None:
        choice = choices[0] if choices else Choice(STOP)
        if choice.value == STOP:
            self._helm.ledger.explain(session.id, if_stopped=_NOT_APPROVED)
            session.apply(replace(ended, outcome="interrupted"))
            self._helm.make_room()
            return
        turn = _next_turn(session, choice)
        # Not awaited here: whoever answered is cancelled as soon as the question is closed.
        self._helm.in_background(partial(self._go_on, session, ended, turn))

    async def _go_on(self, session: Session, ended: TurnEnded, turn: TurnInput) -> None:
        session.apply(ended)  # and at once the next turn is requested: nobody sees the session idle between them
        try:
            await self._helm.run_turn(session, turn)
        except HelmsmanError as error:  # the session has been told
            log.warning("session %s could not go on from its plan: %s", session.id, error)


def _next_turn(session: Session, choice: Choice) -> TurnInput:
    if choice.value == REVISE:
        if choice.reason is None:
            raise AnswerInvalid("Say after a colon what is to be different, for example `revise: keep the old name`.")
        return turn_input(choice.reason, output_schema=session.output_schema, kind="plan")
    also = f"\n\n{choice.reason}" if choice.reason is not None else ""
    return turn_input(_CARRY_OUT + also, output_schema=session.output_schema, kind="work")


def _question(session: Session) -> Question:
    plan = _last_text(session, ProposedPlan)
    said = _last_text(session, AgentMessage)
    text = "Carry out this plan?" if plan else "There is no plan yet. Answer with revise, or let it go ahead?"
    prompt = Prompt(
        text=text,
        options=(APPROVE, REVISE, STOP),
        key="plan",
        words="What is to be different (with revise), or what else to heed (with approve)",
        descriptions={
            APPROVE: "go ahead",
            REVISE: "plan again; say what is to be different",
            STOP: "do nothing",
        },
    )
    return Question(
        id=f"q_{secrets.token_hex(5)}",
        type="user_input",
        session_id=session.id,
        turn_id=session.state.turn_id,
        asker="Helmsman",
        prompts=(prompt,),
        details={"plan": plan or said, "directory": session.directory},
    )


def _last_text(session: Session, kind: type[ProposedPlan] | type[AgentMessage]) -> str:
    texts = [item.text.strip() for item in session.items if isinstance(item, kind)]
    return next((text for text in reversed(texts) if text), "")
