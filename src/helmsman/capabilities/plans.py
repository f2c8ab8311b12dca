"""Plan first: the agent proposes, a user or an agent approves, and only then files change.

A plan is a turn in Codex's plan mode, in a read-only sandbox that never asks, so nothing can change whatever the model
tries. At its end Helmsman checks that nothing was changed and that the files in the plan exist. Then the session asks,
with that evidence, whether to carry out the plan. `approve` continues with the work under the options given at the
start, `revise: words` plans again in the same thread, `stop` (or no answer) ends it. Each of these turns is a task.
"""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import anyio.to_thread

from helmsman.base.caller_context import current
from helmsman.capabilities.outcomes.claims import Evidence, look, named_files_exist, nothing_changed, verdict
from helmsman.errors import AnswerInvalid, HelmsmanError
from helmsman.git import tree_changes
from helmsman.git.command import find_git
from helmsman.model.events import AgentMessage, ProposedPlan, TurnEnded
from helmsman.model.inputs import session_options, takes_turn_options
from helmsman.model.nature import BEGINS, verb
from helmsman.model.questions import APPROVE, REVISE, STOP, Choice, Prompt, Question, own_question

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from helmsman.model.client_tools import ClientTool, ToolDefinition
    from helmsman.model.options import PathLike, TurnInput, TurnOptions, WorktreeOptions
    from helmsman.sessions.session import OwnAnswer, QuestionHandler, Session
    from helmsman.steering.core import Steering

log = logging.getLogger(__name__)

_CARRY_OUT: Final = "The plan is approved. Carry it out now."
_VERIFYING: Final = "its plan is being verified"
_NOT_APPROVED: Final = "Its plan was not approved, so nothing was changed."


class Plans:
    """`helm.extras.plans`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm

    @verb(BEGINS)
    @takes_turn_options
    def start(
        self,
        prompt: str,
        *,
        cwd: PathLike | None = None,
        on_question: QuestionHandler | None = None,
        worktree: bool | WorktreeOptions = False,
        min_remaining_percent: float | None = None,
        idempotency_key: str | None = None,
        on_task: Callable[[str], None] | None = None,
        tools: Sequence[ClientTool | ToolDefinition] = (),
        **options: Unpack[TurnOptions],
    ) -> Coroutine[Any, Any, Session]:
        """Start a session that plans first. The arguments are those of `Helmsman.start`, and apply once the plan is
        approved.

        Returns when the turn is running. The finished plan is a question of the session.
        """
        before: Any = None

        def keep(task_id: str) -> None:
            self._helm.task_writer.update(task_id, {"tree_before": before})
            if on_task is not None:
                on_task(task_id)

        # Here, and not when it is awaited: a misspelt option raises at the call.
        options["kind"] = "plan"
        begin = self._helm.start(
            prompt,
            cwd=cwd,
            on_question=on_question,
            worktree=worktree,
            min_remaining_percent=min_remaining_percent,
            idempotency_key=idempotency_key,
            on_task=keep,
            tools=tools,
            **options,
        )

        async def look_and_begin() -> Session:
            nonlocal before
            # If the look fails, Python would warn about a coroutine that was never awaited.
            with closing(begin):
                checked = session_options(cwd if cwd is not None else ".", {}, self._helm.allowed_roots)
                directory, state_dir = checked.cwd or current().directory, self._helm.settings.state_dir
                # In a worktree, its own diff shows whether anything was changed.
                if not worktree:
                    before = await anyio.to_thread.run_sync(_look, directory, state_dir)
                return await begin

        return look_and_begin()

    def asks(self, session: Session, ended: TurnEnded) -> bool:
        """Return whether a plan must be approved before the session reports the end of its turn."""
        if session.state.turn_kind != "plan" or ended.outcome != "completed":
            return False
        answered = partial(self._answered, session, ended)
        session.ask_own(_VERIFYING, answered)  # who stops it now has stopped the plan
        self._helm.in_background(partial(self._verify_and_ask, session, answered))
        return True

    async def _verify_and_ask(self, session: Session, answered: OwnAnswer) -> None:
        try:
            evidence = await self._evidence(session)
        except Exception as error:
            if not isinstance(error, HelmsmanError):
                log.exception("the plan of session %s could not be looked at", session.id)
            told = error.message if isinstance(error, HelmsmanError) else "the log says why"
            evidence = [Evidence(ok=False, what=f"The plan could not be verified: {told}")]
        # The plan may have been stopped in the meantime.
        if session.own_question is not None and session.own_question[0] == _VERIFYING:
            self._helm.ask_first(session, _question(session, evidence), answered)

    async def _evidence(self, session: Session) -> list[Evidence]:
        """Return whether nothing was changed, and the files that the plan names are there."""
        await self._helm.task_writer.write()
        tasks = await self._helm.task_writer.registry(lambda registry: registry.tasks_of_session(session.id))
        before = next((one.tree_before for one in tasks if one.tree_before is not None), None)
        tree, state_dir = session.worktree, self._helm.settings.state_dir
        directory = Path(session.directory or ".") if tree is None else tree.path

        def look() -> list[Evidence]:
            git = find_git(directory, state_dir)
            if git is None:
                return []
            same = (
                not tree_changes.diff(tree).files
                if tree is not None
                else before and _look(directory, state_dir) == before
            )
            changed = [] if same is None else [nothing_changed(bool(same))]
            files = [*git.names("ls-files", "-z", "--cached", "--others", "--exclude-standard")]
            return [*changed, *named_files_exist(_plan_of(session), files, git.work_tree)]

        return await anyio.to_thread.run_sync(look)

    def _answered(self, session: Session, ended: TurnEnded, choices: tuple[Choice, ...] | None) -> None:
        choice = choices[0] if choices else Choice(STOP)
        if choice.value == STOP:
            self._helm.task_writer.explain(session.id, if_stopped=_NOT_APPROVED)
            session.apply(ended.changed(outcome="interrupted"))
            self._helm.make_room()
            return
        turn = _next_turn(session, choice)
        # In the background, because the caller that answers is cancelled as soon as the question closes.
        go_on = partial(self._helm.continue_work, session, ended, turn)
        self._helm.in_background(go_on, f"session {session.id} could not continue from its plan")


def _next_turn(session: Session, choice: Choice) -> TurnInput:
    if choice.value == REVISE:
        if choice.reason is None:
            raise AnswerInvalid("Say after a colon what should change, for example `revise: keep the old name`.")
        return session.continuation(choice.reason, "plan")
    also = f"\n\n{choice.reason}" if choice.reason is not None else ""
    return session.continuation(_CARRY_OUT + also, "work")


def _look(directory: Path, state_dir: Path) -> dict[str, str] | None:
    git = find_git(directory, state_dir)
    return None if git is None else look(git.work_tree, state_dir)


def _plan_of(session: Session) -> str:
    # Some agents propose their plan in an ordinary message.
    return _last_text(session, ProposedPlan) or _last_text(session, AgentMessage)


def _question(session: Session, evidence: Sequence[Evidence]) -> Question:
    is_plan = bool(_last_text(session, ProposedPlan))
    text = "Carry out this plan?" if is_plan else "There is no plan yet. Answer with revise, or let it go ahead?"
    prompt = Prompt(
        text=text,
        options=(APPROVE, REVISE, STOP),
        key="plan",
        words="What to change (with revise), or what else to consider (with approve)",
        descriptions={
            APPROVE: "go ahead",
            REVISE: "plan again; say what should change",
            STOP: "do nothing",
        },
    )
    details = {"plan": _plan_of(session), "directory": session.directory}
    seen = verdict(evidence).to_json() if evidence else {}
    return own_question(session.id, session.state.turn_id, prompt, details | seen)


def _last_text(session: Session, kind: type[ProposedPlan] | type[AgentMessage]) -> str:
    texts = [item.text.strip() for item in session.items if isinstance(item, kind)]
    return next((text for text in reversed(texts) if text), "")
