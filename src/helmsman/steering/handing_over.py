"""Handover of a session: another agent continues the work of the first, with a summary of it.

The summary is read from the first agent's files, so that agent need not run. It is part of the other agent's first prompt:
prompts, final messages, commands and changed files, the newest in full. Secrets are left out, because the other model may
belong to another company, and no text in it can look like a line of Helmsman. The new session works in the same directory or
worktree. Its permissions are those that the caller gives, or else those of the first session, never more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.base.redaction import redact
from helmsman.base.sanitize import shell_script
from helmsman.base.structs import replace
from helmsman.base.truncate import cut
from helmsman.errors import InvalidInput
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    FileChange,
    HandedOver,
    PastTurn,
    ProposedPlan,
    Review,
    UserMessage,
    WorktreeAssigned,
)
from helmsman.model.inputs import changed_options, require_place
from helmsman.model.options import ASKS, WRITES, SessionOptions
from helmsman.model.prompts import handover_prompt
from helmsman.model.question_text import GUTTER
from helmsman.steering.turn_errors import busy
from helmsman.tasks.drafts import NextTurn, next_turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helmsman.model.options import StartOptions
    from helmsman.sessions.session import Session, WhenBusy
    from helmsman.steering.turn_runner import TurnRunner

_TOLD_CHARS: Final = 40_000
"""Maximum length of the summary: about 10,000 tokens."""
_TEXT_CHARS: Final = 4_000
_COMMAND_CHARS: Final = 200
_MOST_COMMANDS: Final = 20


async def hand_over(
    helm: TurnRunner,
    source: Session,
    message: str,
    agent: str,
    known: SessionOptions,
    given: StartOptions,
    when_busy: WhenBusy,
    on_task: Callable[[str], None] | None,
    start: Callable[..., Awaitable[Session]],
) -> Session:
    """Start a session of `agent` that continues another one.

    Args: helm: The service. source: The session to hand over. message: The instruction for the other agent. agent: The agent
    that continues. known: The permissions of the first session, as far as this client may use them. given: The options of
    the caller. when_busy: Only `error` makes sense while the first session is running. on_task: Called with the id of the
    new task. start: Starts a session, with all other options of the caller.

    Raises:
        SessionBusy: A turn is running in the first session.
        InvalidInput: The directory is gone, or the message was to be steered or queued.
        HelmsmanError: The other agent is not there, or cannot work under this policy.
    """
    title, before = helm.agents[agent].title, helm.agents.title(source.options.agent)
    if source.state.is_running:
        if when_busy != "error":
            raise InvalidInput(
                f"Session {source.id} is still at it, and cannot be handed over to {title} before it has ended. Wait for "
                "it, or interrupt it.",
                parameter="when_busy",
            )
        raise busy(source.id)
    require_place(source.id, source.directory)
    policy, remark = _policy(source, known, given)
    told = summary_of_turns(await helm.known_turns(source.id))

    # With the task, not after it: a hub that takes over from a dead one resumes from the stored task.
    of_job = (next_turn.get() or NextTurn()).take().of_job
    before_this = next_turn.set(NextTurn(of_job=of_job, handed_over_from=source.id))
    try:
        session = await start(
            handover_prompt(message, before, told),
            cwd=known.cwd if known.cwd is not None else source.directory,
            on_task=on_task,
            **changed_options(replace(policy, agent=agent), {**given, "agent": agent}),
        )
    finally:
        next_turn.reset(before_this)
    if source.worktree is not None:  # both work in it
        session.apply(WorktreeAssigned(session_id=session.id, worktree=source.worktree))
    session.apply(HandedOver(session_id=session.id, from_session=source.id))
    note = f"Handed over from session {source.id} of {before} to a new one of {title}, which was told what was done so far."
    remarks = [remark] if remark else []
    if policy.writes != "anything" and _opens_network(helm, source.options, session.options):
        remarks.append(
            f"The network is open to {title}. To what {before} ran it was closed, unless its configuration said otherwise."
        )
    session.remark(note, *remarks)
    return session


def _opens_network(helm: TurnRunner, first: SessionOptions, second: SessionOptions) -> bool:
    """Return whether the first session's sandbox closes the network and the second one's does not."""
    known = helm.agents.get(first.agent)
    return known is not None and not known.reaches_network(first) and helm.agents[second.agent].reaches_network(second)


def _policy(source: Session, known: SessionOptions, given: StartOptions) -> tuple[SessionOptions, str | None]:
    """Return the permissions of the first session, in agent-neutral terms. The least, if neither they nor the caller's are
    known.
    """
    asks = known.asks or ASKS.get(source.state.approval_policy or "")
    writes = known.writes or WRITES.get(source.state.sandbox or "")
    roots = known.writable_roots if writes == "workspace" else ()
    remarks = []
    is_said = given.get("full_auto") or given.get("dangerously_bypass_approvals_and_sandbox")
    if not asks and not is_said and not given.get("approval_policy"):
        remarks.append("It is not known when the first session asked: the new one asks before nearly everything.")
    if not writes and not is_said and not given.get("sandbox"):
        remarks.append("It is not known where the first session could write: the new one only reads.")
    policy = SessionOptions(asks=asks or "unless_harmless", writes=writes or "nothing", writable_roots=roots)
    return policy, " ".join(remarks) or None


def summary_of_turns(turns: Sequence[PastTurn]) -> str:
    """Summarise the turns within the size limit: the newest in full, and the number of older ones."""
    shown: list[str] = []
    left = _TOLD_CHARS
    for number, turn in reversed(list(enumerate(turns, 1))):
        text = _turn(number, turn)
        # The newest turn is always shown: it is cut inside.
        if shown and len(text) > left:
            shown.append(f"(The first {number} turns are left out.)")
            break
        shown.append(text)
        left -= len(text)
    return "\n\n".join(reversed(shown)) or "(Nothing is recorded.)"


def _turn(number: int, turn: PastTurn) -> str:
    lines = [f"## Turn {number} ({turn.status})"]
    lines += [f"Asked: {_text(item.text)}" for item in turn.items if isinstance(item, UserMessage)]
    commands = [item for item in turn.items if isinstance(item, CommandExecution) and not item.declined]
    if len(commands) > _MOST_COMMANDS:
        lines.append(f"({len(commands) - _MOST_COMMANDS} earlier commands are left out.)")
    lines += [f"Ran: {_command(item)}" for item in commands[-_MOST_COMMANDS:]]
    changed = dict.fromkeys(
        f"{change.kind} {change.moved_to or change.path}"
        for item in turn.items
        if isinstance(item, FileChange) and not item.declined
        for change in item.changes
    )
    lines += [f"Changed: {_text(', '.join(changed))}"] if changed else []
    said = [item for item in turn.items if isinstance(item, AgentMessage | ProposedPlan | Review) and item.text]
    lines += [f"Answered: {_text(said[-1].text)}"] if said else []
    return "\n".join(lines)


def _text(text: str) -> str:
    # Every further line begins with the gutter, so that none can look like a heading or a line of Helmsman.
    return cut(redact(text), _TEXT_CHARS).replace("\n", f"\n{GUTTER}")


def _command(item: CommandExecution) -> str:
    code = "" if item.exit_code is None else f" (exit {item.exit_code})"
    return cut(" ".join(redact(shell_script(item.command)).split()), _COMMAND_CHARS) + code
