"""How `helmsman` ends: the exit codes scripts can rely on, and which error gives which."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from helmsman import errors


class ExitCode(IntEnum):
    """The exit codes. `text` is what `helmsman --help` says of each."""

    OK = 0, "all went well"
    FAILED = 1, "the work failed, or a check found something wrong"
    USAGE = 2, "a wrong option, argument or setting; nothing was started"
    NO_CODEX = 3, "Codex was not found, does not start, or cannot do this"
    TIMED_OUT = 4, "Codex stayed silent for too long, or the time to wait was up"
    ASKED = 5, "Codex asks something and waits for the answer"
    INTERRUPTED = 130, "interrupted (Ctrl-C)"
    TERMINATED = 143, "asked to end (SIGTERM)"

    text: str

    def __new__(cls, value: int, text: str) -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.text = text
        return code


_CODES: Final[tuple[tuple[type[errors.HelmsmanError], ExitCode], ...]] = (
    (errors.StepTimedOut, ExitCode.TIMED_OUT),
    (errors.EngineTimeout, ExitCode.TIMED_OUT),
    (errors.TurnTimedOut, ExitCode.TIMED_OUT),
    (errors.StepInterrupted, ExitCode.INTERRUPTED),
    (errors.CodexNotFound, ExitCode.NO_CODEX),
    (errors.Unsupported, ExitCode.NO_CODEX),
    (errors.EngineError, ExitCode.NO_CODEX),
    (errors.InvalidInput, ExitCode.USAGE),
    (errors.InvalidSetting, ExitCode.USAGE),
    (errors.SessionNotFound, ExitCode.USAGE),
    (errors.TaskNotFound, ExitCode.USAGE),
    (errors.QuestionNotOpen, ExitCode.USAGE),
    (errors.AnswerInvalid, ExitCode.USAGE),
    (errors.ConfirmationNeeded, ExitCode.USAGE),
)


_ENGINE_CODES: Final = frozenset(
    kind.code
    for kind in (
        errors.EngineStartFailed,
        errors.EngineLost,
        errors.EngineProtocolError,
        errors.EngineRefused,
    )
)


def exit_code_of(error: errors.HelmsmanError) -> ExitCode:
    """The exit code for an error."""
    cause = error.details.get("cause_code")
    if cause in _ENGINE_CODES and error.details.get("session_id") is None:  # Codex did not let the step begin
        return ExitCode.NO_CODEX
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
