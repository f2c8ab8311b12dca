"""Changes of a session: diff, apply, discard."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from helmsman.base.truncate import OUTPUT_CHARS, cut, listed
from helmsman.capabilities.changes import DiffScope
from helmsman.capabilities.shown_diffs import diff_page
from helmsman.model.nature import MOVES_CHANGES, READS
from helmsman.operations.table import OperationCall, operation
from helmsman.shapes.contract import ChangedFile, Input, Output, SessionId, SessionInput
from helmsman.shapes.rendering import applied_as_dict, diff_as_dict
from helmsman.shapes.session_status import files_output

# Names in the text; `files` has up to `_FILES_LISTED` of them.
_FILES_NAMED: Final = 20
_FILES_LISTED: Final = 1000


class ApplyInput(Input):
    session_id: SessionId
    allow_dirty: bool = Field(
        False,
        description="Also where the main tree has uncommitted changes, in other files.",
    )
    digest: str | None = Field(
        None,
        description="Of the diff you looked at. Default: what {tool}_diff gave you last, to its end.",
    )


class DiffInput(SessionInput):
    cursor: str | None = Field(None, description="The digest of the part before, e.g. 49871-5e88…")


class DiffOutput(Output):
    session_id: str
    scope: DiffScope = Field(
        description="worktree: all it changed there. turn: what its last turn edited. uncommitted: all uncommitted changes "
        "in its directory, by any program."
    )
    about: str = Field(description="The same in a sentence.")
    diff: str = Field(description="Empty: no changes.")
    stat: str
    files: list[ChangedFile]
    more_files: int | None = Field(None, description="How many further ones.")
    digest: str = Field(description="For {tool}_apply, to apply this and nothing else. Of a cut diff: its cursor.")
    nested: list[str] | None = Field(None, description="Git repositories inside the tree: not in the diff.")


class ApplyOutput(Output):
    session_id: str
    repository: str
    how: str = Field(description="clean, or three-way: merged with a main tree that had moved on.")
    files: list[ChangedFile]
    digest: str = Field(description="Of the diff that was applied.")
    stat: str
    others: list[str] | None = Field(None, description="Further repositories of the session.")
    ended: list[str] | None = Field(None, description="Commands that were still running there.")
    notes: list[str] | None = None


class DiscardOutput(Output):
    session_id: str
    worktree: str
    commits: list[str] = Field(description="They were nowhere else, and are gone.")
    files: list[ChangedFile]
    branch_kept: str | None = Field(None, description="If it is checked out elsewhere.")
    notes: list[str] | None = None


def _named(files: list[ChangedFile]) -> str:
    return listed((file.path for file in files), _FILES_NAMED) or "nothing"


def _diff_in_words(output: DiffOutput) -> str:
    if not output.files:
        return "Nothing has changed."
    return f"{output.about}\n{output.stat}\n{output.diff}\nDigest: {output.digest}"


@operation("{tool}_diff", "See what {a_session} changed", READS, _diff_in_words)
async def diff(call: OperationCall, args: DiffInput) -> DiffOutput:
    """What a session changed, as one unified diff with an overview. Exact for a session started with worktree: true;
    for others `scope` says what it is. Works while it runs. To bring the changes into the main tree use {tool}_apply."""
    changes = call.helm.extras.changes
    changed = await changes.diff(args.session_id)
    page = diff_page(changed.diff.text, changed.diff.digest, args.cursor)
    output = DiffOutput.model_validate(diff_as_dict(changed))
    output.diff, output.digest = page.text, page.digest
    if page.is_last:
        # Only a diff read to its end counts as shown: apply may bring over nothing that the client has not seen.
        changes.shown.show(call.viewer, args.session_id, changed.diff.patch)
    else:
        shown = page.digest.partition("-")[0]
        output.diff += (
            f"[… {shown} of {len(changed.diff.text)} characters. Go on with codex_diff and cursor {page.digest}; all of it: "
            f"helmsman diff {changed.session_id}]"
        )
    output.stat = cut(output.stat, OUTPUT_CHARS)
    # Set before the list is cut, because it counts what the cut removes.
    output.more_files = max(0, len(output.files) - _FILES_LISTED) or None
    output.files = output.files[:_FILES_LISTED]
    return output


def _apply_in_words(output: ApplyOutput) -> str:
    ended = f" Still running there, and ended first: {'; '.join(output.ended)}." if output.ended else ""
    places = listed((output.repository, *(output.others or ())), len(output.others or ()) + 1)
    notes = "".join(f" {note}" for note in output.notes or ())
    return f"Brought into {places} ({output.how}): {_named(output.files)}.{ended}{notes}"


@operation("{tool}_apply", "Bring a session's changes into the main tree", MOVES_CHANGES, _apply_in_words)
async def apply(call: OperationCall, args: ApplyInput) -> ApplyOutput:
    """Bring all that a worktree session changed into the repository it was started for, uncommitted: all of it, or
    nothing. Refused while it runs, if the changes are not those that were shown (diff_changed), if the main tree has
    uncommitted changes (unless allowDirty), and if they do not fit. The worktree stays: drop it with
    {tool}_discard."""
    applied = await call.helm.extras.changes.apply(
        args.session_id, allow_dirty=args.allow_dirty, digest=args.digest, viewer=call.viewer
    )
    return ApplyOutput.model_validate(applied_as_dict(applied))


def _discard_in_words(output: DiscardOutput) -> str:
    kept = f" The branch {output.branch_kept} is checked out elsewhere and stays." if output.branch_kept else ""
    notes = "".join(f" {note}" for note in output.notes or ())
    return f"Dropped {output.worktree}, and with it what was changed there: {_named(output.files)}.{kept}{notes}"


@operation("{tool}_discard", "Drop a session's worktree", MOVES_CHANGES, _discard_in_words)
async def discard(call: OperationCall, args: SessionInput) -> DiscardOutput:
    """Remove the worktree of a session with its branch and all that was not applied, for good. Refused while the session
    is running: {tool}_interrupt first. Look with {tool}_diff before."""
    discarded = await call.helm.extras.changes.discard(args.session_id)
    tree = discarded.worktree
    return DiscardOutput(
        session_id=args.session_id,
        worktree=str(tree.path),
        commits=list(discarded.commits),
        files=files_output(discarded.files) or [],
        branch_kept=tree.branch if discarded.branch_kept else None,
        notes=list(discarded.notes) or None,
    )
