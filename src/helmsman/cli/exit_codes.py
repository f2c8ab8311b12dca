"""Exit codes of `helmsman`, their errors, and error messages with command-line option names."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import click

from helmsman import errors


class ExitCode(IntEnum):
    """Exit codes. `text` is their description in `helmsman --help`."""

    OK = 0, "success"
    FAILED = 1, "the work failed, or a check found something wrong"
    USAGE = 2, "a wrong option, argument or setting; nothing was started"
    NO_CODEX = 3, "the agent was not found, does not start, or cannot do this"
    TIMED_OUT = 4, "the agent was silent for too long, or the waiting time was up"
    ASKED = 5, "the agent is waiting for an answer"
    NOT_VERIFIED = 6, "the work was done but does not verify"
    INTERRUPTED = 130, "interrupted (Ctrl-C)"
    TERMINATED = 143, "terminated (SIGTERM)"

    text: str

    # An int with a text: help and documentation read the same table.
    def __new__(cls, value: int, text: str) -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.text = text
        return code


_ERRORS: Final = {
    ExitCode.TIMED_OUT: (errors.StepTimedOut, errors.EngineTimeout, errors.TurnTimedOut),
    ExitCode.INTERRUPTED: (errors.StepInterrupted,),
    ExitCode.NO_CODEX: (
        errors.CodexNotFound,
        errors.AgentNotFound,
        errors.NotLoggedIn,
        errors.Unsupported,
        errors.EngineError,
    ),
    ExitCode.USAGE: (
        *(errors.InvalidInput, errors.InvalidSetting, errors.SessionNotFound, errors.TaskNotFound),
        *(errors.QuestionNotOpen, errors.AnswerInvalid, errors.ConfirmationNeeded),
    ),
}
"""Exit codes by error; the first match wins."""

# errors of Codex that prevent a step from starting
_NOT_BEGUN: Final = (errors.EngineStartFailed, errors.EngineLost, errors.EngineProtocolError, errors.EngineRefused)


def exit_code_of(error: errors.HelmsmanError) -> ExitCode:
    """Return the exit code for an error."""
    cause = error.details.get("cause_code")
    # With a session the work had begun.
    if error.details.get("session_id") is None and any(cause == kind.code for kind in _NOT_BEGUN):
        return ExitCode.NO_CODEX
    return next((code for code, kinds in _ERRORS.items() if isinstance(error, kinds)), ExitCode.FAILED)


_FLAGS: Final = {
    "`trust_repository`": "--trust-repository",
    "allow a dirty tree": "allow a dirty tree (--allow-dirty)",
    "Leave worktree out": "Leave out --worktree",
    "the option worktree": "--worktree",
    "Take back the conversation alone": "Take back the conversation alone (--conversation)",
    "List the sessions to see which there are": "`helmsman list` lists them",
    "List the tasks to see which there are": "`helmsman tasks` lists them",
}


def in_words_of_shell(error: errors.HelmsmanError) -> errors.HelmsmanError:
    """Return the error with tool parameters replaced by the names of command-line options."""
    # Errors speak of parameters of tools; a user of the shell sees options.
    message = error.message
    for name, flag in _FLAGS.items():
        message = message.replace(name, flag)
    named = error if message == error.message else type(error)(message, **error.details)
    context = click.get_current_context(silent=True)
    params = () if context is None else context.command.params
    # The longest spelling is the one that explains itself.
    return named.renamed(
        {one.name: max(one.opts, key=len) for one in params if isinstance(one, click.Option) and one.name}
    )
