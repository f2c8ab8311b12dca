"""Take a session back to an earlier turn."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from helmsman.base.truncate import TEXT_CHARS, cut
from helmsman.capabilities.rewinding import RewindPart
from helmsman.model.nature import FORGETS
from helmsman.operations.table import OperationCall, operation
from helmsman.shapes.contract import ChangedFile, Input, Output, SessionId
from helmsman.shapes.rewinds import rewind_as_dict, rewind_in_words

# The text stays readable for a model; the digest covers all files.
_FILES_LISTED: Final = 1000


class RewindInput(Input):
    session_id: SessionId
    to: int | str | None = Field(
        None, description="Before this turn: its number from 1 on, e.g. 2, or its id. Default: the last."
    )
    part: RewindPart | None = Field(
        None, description='What is taken back, e.g. "files". Default: both, or what the agent can.'
    )
    undo: bool = Field(False, description="Take back the last rewind of this session instead, e.g. true.")
    # Rewinding loses work, so it takes two calls: the second names what the first has shown.
    digest: str | None = Field(
        None, description="Of what was shown, e.g. 9f86d081…: that is done. Left out: it is only shown."
    )


class ForgottenTurn(Output):
    number: int
    turn_id: str | None = None
    task_id: str | None = None
    prompt: str


class RewindOutput(Output):
    session_id: str
    done: bool
    part: RewindPart
    undo: bool | None = None
    nothing: bool | None = Field(None, description="All is as it was.")
    turn: int | None = None
    prompt: str | None = None
    forgotten: list[ForgottenTurn] = Field(description="Turns that the agent knows nothing of any more.")
    directory: str | None = None
    files: list[ChangedFile] | None = Field(None, description="How files change. Absent: they stay.")
    changed_since: list[str] | None = Field(
        None, description="Those changed after the last turn, so by another program or user: their work would be lost."
    )
    left: list[str] | None = Field(None, description="Too large, or repositories: they stay as they are.")
    nested: list[str] | None = None
    conversation: str | None = Field(None, description="The session that has the whole conversation.")
    notes: list[str]
    diff: str | None = None
    digest: str = Field(description="For the call that does it.")


def _in_words(output: RewindOutput) -> str:
    words = "\n".join(rewind_in_words(output.as_dict()))
    return words if output.done else f"{words}\nDigest: {output.digest}"


@operation("{tool}_rewind", "Take {a_session} back to an earlier turn", FORGETS, _in_words)
async def rewind(call: OperationCall, args: RewindInput) -> RewindOutput:
    """Take files, conversation or both back to before a turn. Call it without digest to see what would be lost, show that
    to the user, then call it again with the digest. Ignored files, commits and the index stay. Refused while a turn is
    running, outside of git, and where it would undo the work of another session. It can be taken back: undo."""
    rewinding = call.helm.extras.rewinding
    if args.digest is None:
        rewind = await rewinding.preview(args.session_id, to=args.to, part=args.part, undo=args.undo)
    else:
        rewind = await rewinding.rewind(args.session_id, digest=args.digest, to=args.to, part=args.part, undo=args.undo)
    output = RewindOutput.model_validate(rewind_as_dict(rewind, done=args.digest is not None))
    # A preview is read by a model: cut what does not fit its context. The digest is of the whole.
    output.diff = None if output.diff is None else cut(output.diff, TEXT_CHARS)
    output.files = None if output.files is None else output.files[:_FILES_LISTED]
    return output
