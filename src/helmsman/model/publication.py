"""Links of a session to a forge such as GitHub: the issue that it works on, and its pull request."""

from __future__ import annotations

from helmsman.base.structs import Value


class Publication(Value, frozen=True, kw_only=True):
    """Addresses at a forge, and what the user has allowed.

    Attributes:
        issue: The address of the issue that the task was taken from.
        allowed: The address of the remote that the session's commits may be pushed to, and its pull request opened and
            answered at, without another question. Asked for once per session.
        branch: The branch that was pushed.
        pull_request: The address of the pull request.
        answered: Checks and comments that a turn was started for, so that none is answered twice.
    """

    issue: str | None = None
    allowed: str | None = None
    branch: str | None = None
    pull_request: str | None = None
    answered: tuple[str, ...] = ()
