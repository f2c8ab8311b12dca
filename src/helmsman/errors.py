"""Every error Helmsman raises on purpose: one tree, stable codes.

A caller branches on the class or on `code`, never on the text. The code is the name of the class in snake case, unless the
class names another. The text is for people: it says what happened and, in its last sentence, what to do next.
`retryable` says whether the same call may work later with nothing changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from helmsman.base.redaction import redact, redact_value

if TYPE_CHECKING:
    from collections.abc import Mapping


class HelmsmanError(Exception):
    """Base of all errors raised by Helmsman."""

    code: ClassVar[str] = "helmsman_error"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Derive the code from the name of the class, unless the class names one."""
        if "code" not in cls.__dict__:
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, **details: Any) -> None:
        """Redact secrets: errors quote what users and programs wrote, and appear in logs and on screens."""
        self.message = redact(message)
        super().__init__(self.message)
        self.details: Mapping[str, Any] = details

    def again(self) -> Self:
        """Return a fresh copy, to raise the error in several places: each raise has its own traceback."""
        return type(self)(self.message, **self.details)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return the same error with parameters of the library named as the caller knows them.

        A name without an underscore is also a word of English, so it counts only at the beginning, as the subject. Quoted
        text is the caller's own, and keys of an agent's configuration keep their names.
        """
        parameter = str(self.details.get("parameter"))
        message = self.message
        if parameter != "config":
            known = "|".join(re.escape(name) for name in names if "_" in name)
            subject = re.escape(parameter)
            words = re.compile(rf"^{subject}(?= )" + (rf"|(?<![\w./'\"-])(?:{known})(?![\w./'\"=-])" if known else ""))
            message = words.sub(lambda found: names.get(found[0], found[0]), message)
        return self if message == self.message else type(self)(message, **self.details)

    def as_dict(self) -> dict[str, Any]:
        """Return the error as JSON for programs."""
        shown = redact_value({key: value for key, value in self.details.items() if value is not None})
        return {"code": self.code, "message": self.message, "retryable": self.retryable, **shown}


class InvalidSetting(HelmsmanError):
    """A setting is invalid; the message names it, its value and the allowed values."""


class InvalidInput(HelmsmanError):
    """An argument of a call is missing or wrong; nothing was started."""


class NeedsAsyncio(HelmsmanError):
    """The library is used without an asyncio event loop: under trio, or with no event loop at all."""


class NotOpen(HelmsmanError):
    """The `Helmsman` was not opened yet, or was closed."""


NOT_OPEN: Final = NotOpen(
    "This Helmsman is not open. Use `async with Helmsman() as helm:`, or `await helm.open()` first."
)


class ProgramRefused(HelmsmanError):
    """A program that Helmsman needs is only where a session or another user could have put it; it was not started.

    Details: `program`, `path`.
    """


# --- the Codex binary and its capabilities -----------------------------------------------------------------------------


class CodexNotFound(HelmsmanError):
    """No Codex binary was found, or the configured one cannot be run."""


class AgentNotFound(HelmsmanError):
    """The program of an agent other than Codex could not be found, or cannot be used. Details: `agent`."""


class NotLoggedIn(HelmsmanError):
    """The agent is not logged in, and its model needs a login; nothing was started."""


class Unsupported(HelmsmanError):
    """The agent, or its installed version, cannot do this; the message says who can."""


# --- the engine ------------------------------------------------------------------------------------------------------


class EngineError(HelmsmanError):
    """Something went wrong between Helmsman and a running Codex."""


class EngineStartFailed(EngineError):
    """Codex exited, or did not answer, before it was ready. Details: `exit_code`, `stderr`."""

    retryable = True


class EngineLost(EngineError):
    """Codex is gone: it exited, was killed, or closed the connection. Details: `exit_code`, `stderr`."""

    retryable = True


class EngineTimeout(EngineError):
    """Codex did not answer a request in time."""

    retryable = True


class EngineProtocolError(EngineError):
    """Codex sent something that Helmsman cannot parse, such as a message beyond the size limit."""


class EngineRefused(EngineError):
    """Codex answered a request with an error. Details: `rpc_code`, `rpc_data`."""


class PolicyWidened(EngineError):
    """Codex applied a wider sandbox or a laxer approval policy than was requested, so nothing was run."""


# --- sessions and questions ------------------------------------------------------------------------------------------


class SessionNotFound(HelmsmanError):
    """There is no such session, neither running nor on disk."""


class SessionBusy(HelmsmanError):
    """A turn is running in this session."""

    retryable = True


class SessionIdle(HelmsmanError):
    """No turn is running in this session, so there is nothing to steer."""


class SessionLocked(HelmsmanError):
    """Another process has this session open for writing."""

    retryable = True


class CannotMove(HelmsmanError):
    """A session that was started on another machine cannot continue here."""


class TooManySessions(HelmsmanError):
    """The maximum number of turns is already running."""

    retryable = True


class RateLimitLow(HelmsmanError):
    """Less of the account's rate limit is left than required. Details: `limit`, `remaining_percent`, `resets_at`."""

    retryable = True


class BudgetExceeded(HelmsmanError):
    """A budget in the settings is used up, and has not been raised."""


class CheckRefused(HelmsmanError):
    """A check of the repository must run, and was not allowed."""


class TurnTimedOut(HelmsmanError):
    """The model was silent for longer than this turn allows, so the turn was interrupted."""

    retryable = True


class Unanswered(HelmsmanError):
    """An unattended task asked a question that was not answered in time."""


class QuestionNotOpen(HelmsmanError):
    """The question does not exist, was answered already, or was withdrawn."""

    @classmethod
    def any_more(cls, question_id: str) -> Self:
        """Return the error for an answer that comes too late."""
        return cls(f"Question {question_id} is closed: it was answered, or its turn ended. Look at the status.")


class AnswerInvalid(HelmsmanError):
    """The answer does not fit the question; nothing was sent to Codex."""


class NotYours(HelmsmanError):
    """A model tried to act on a session that its client did not open.

    Only a user may, or a client that a user hands it to.
    """


# --- tasks -----------------------------------------------------------------------------------------------------------


class TaskNotFound(HelmsmanError):
    """There is no such task in the registry."""


class TaskNotOurs(HelmsmanError):
    """Only the process that runs this task can do that to it."""


class ScheduleNotFound(HelmsmanError):
    """There is no schedule with this id."""


class ClientAway(HelmsmanError):
    """No client with the environment this was requested from is connected; the work waits for one."""

    retryable = True


class HostUnreachable(HelmsmanError):
    """Another machine cannot be reached over SSH, or its hub refuses the connection; the message says why."""

    retryable = True


class RegistryUnavailable(HelmsmanError):
    """The task registry cannot be read or written now; nothing was done."""

    retryable = True


class RegistryTooNew(RegistryUnavailable):
    """A newer Helmsman wrote the task registry, and this one does not understand it."""

    retryable = False


class FleetUnavailable(HelmsmanError):
    """The fleet's database cannot be reached; work on its machines continues."""

    retryable = True


class FleetNotReady(HelmsmanError):
    """The database has no fleet tables, or tables that this version cannot use, or it is not safe to use."""


class FleetRefused(HelmsmanError):
    """No machine of the fleet can do this; nothing was started."""


class IdempotencyKeyReused(HelmsmanError):
    """The key of this call belongs to an earlier call with another content; nothing was done."""


class OutcomeUnknown(HelmsmanError):
    """The process that started this ended before it could report the outcome; it is not done a second time."""

    code = "unknown_outcome"


# --- steps -----------------------------------------------------------------------------------------------------------


class StepError(HelmsmanError):
    """A step did not produce a result. Details: `session_id`, `attempts`, `cause_code`."""


class StepFailed(StepError):
    """The turn failed, left no final message, or its final message begins with `FAILED:`."""


class StepTimedOut(StepError):
    """No first event, or no further event, within the limit, on every attempt."""

    retryable = True


class StepInterrupted(StepError):
    """A user or a program interrupted the turn."""


class StepOutputInvalid(StepError):
    """The final message is not JSON, or does not match the output schema. Details: `text`."""


class ReviewUnreadable(HelmsmanError):
    """An agent's report of its findings has the wrong format. Details: `session_id`."""


# --- the cloud -------------------------------------------------------------------------------------------------------


class CloudError(HelmsmanError):
    """`codex cloud` failed in a way that has no specific error. Details: `exit_code`, `said`."""


class CloudNotLoggedIn(CloudError):
    """Codex has no ChatGPT login, or the cloud does not accept it."""


class CloudUnreachable(CloudError):
    """The cloud cannot be reached, does not answer in time, or has an internal problem. Details: `http_status`."""

    retryable = True


class CloudRateLimited(CloudError):
    """The cloud accepts no more requests for now."""

    retryable = True


class CloudTaskNotFound(CloudError):
    """The cloud does not have this task, or no longer has it."""


class CloudEnvironmentMissing(CloudError):
    """No environment was given, the cloud does not know it, or several have that name."""


class CloudNoDiff(CloudError):
    """There is no diff to show: the task is not finished, failed, changed nothing, or has no such attempt."""


class CloudSubmitUncertain(CloudError):
    """A submit failed after the request was sent, so the task may exist. Check the list before you try again."""


class CloudOutputUnreadable(CloudError):
    """`codex cloud` printed something that Helmsman cannot parse. Details: `output`."""


# --- changes brought into a working tree -----------------------------------------------------------------------------


class DirtyTree(HelmsmanError):
    """The working tree has uncommitted changes; nothing was touched. Details: `files`."""


class DiffChanged(HelmsmanError):
    """The changes are not those that were shown; nothing was touched.

    Details: `digest` (of the diff as it is now), `shown` (of the one that was shown), `stat`, and what differs: `files`
    (each with `path` and `change`) and their `diff`.
    """


class ApplyConflict(HelmsmanError):
    """A change does not apply to the working tree; nothing was touched.

    Details: `conflicts` (the files), and `said`, or for a worktree `reasons` and `hunks` by file.
    """


class WorktreeError(HelmsmanError):
    """Git could not make, read or remove a worktree."""


class WorkspaceIncomplete(WorktreeError):
    """A workspace arrived without the commits it builds on, and they are not here. Send all of it.

    Details: `missing`, commits.
    """


class WorkspaceTooLarge(WorktreeError):
    """A working tree is too large to send to another machine; nothing was sent.

    Details: `files`, the largest, each with `path` and `bytes`, and `limit`, in bytes.
    """


class CannotRewind(HelmsmanError):
    """A session cannot be rewound; nothing was touched.

    Details: `reason` (`no_git`, `no_snapshot`, `shared_tree`, `no_rewind`), and with it `turns` or `sessions`.
    """


class ConfirmationNeeded(HelmsmanError):
    """The request would lose data, and was not confirmed; nothing was done."""


# --- the configuration files of MCP clients --------------------------------------------------------------------------


class ConfigurationUnusable(HelmsmanError):
    """A client's file cannot be read or written, or its content is invalid; nothing was changed."""


class ConfigurationChanged(HelmsmanError):
    """Another program changed a client's file in the meantime; nothing was written."""

    retryable = True


class HandshakeFailed(HelmsmanError):
    """A client's entry exists, but its command does not answer."""

    retryable = True
