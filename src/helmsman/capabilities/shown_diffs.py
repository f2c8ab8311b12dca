"""Remember the diffs that were shown, so that no other diff is applied.

A session may continue between the display of a diff and its approval. A diff is identified by its digest. For diffs
shown here the state of each file is known too, so that a refusal can say what has changed since.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.structs import Value
from helmsman.base.truncate import TEXT_CHARS, cut, listed
from helmsman.errors import ConfirmationNeeded, DiffChanged, InvalidInput
from helmsman.git.diff import files_of, stat_of
from helmsman.git.patches import diff_digest
from helmsman.git.tree_changes import marks_of, patches_by_path
from helmsman.tasks.call_key import is_repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helmsman.git.tree_changes import TreeDiff

_REMEMBERED: Final = 1000
_NAMED_FILES: Final = 10
SHOWN_CHARS: Final = TEXT_CHARS // 2
"""Characters of a diff in one answer. A longer answer than `TEXT_CHARS` would be cut."""
_PART: Final = re.compile(r"\d{1,12}-[0-9a-f]{32}")


class DiffPage(Value, frozen=True):
    """Part of a diff that is too long for one answer.

    `digest` is the diff's own only in its last part. Before, it is the cursor of the next part, and applies nothing. It
    cannot be guessed: it depends on the whole diff.
    """

    text: str
    digest: str
    is_last: bool


def diff_page(text: str, digest: str, cursor: str | None, most: int = SHOWN_CHARS) -> DiffPage:
    """Return the part of a diff that follows what `cursor` says was shown.

    Raises:
        InvalidInput: The cursor is not one of this diff: it has changed since, or was never given out.
    """
    begin = 0
    if cursor is not None:
        begin = int(cursor.partition("-")[0]) if _PART.fullmatch(cursor) else -1
        if begin < 0 or cursor != _part(begin, digest):
            raise InvalidInput(
                "This is not a place in the diff as it is now. Read it from the beginning, without a cursor.",
                parameter="cursor",
            )
    end = begin + most
    # Escaped in JSON, a text may be much longer.
    while not fits_in_an_answer(text[begin:end]):
        end = begin + (min(end, len(text)) - begin) // 2
    if end >= len(text):
        return DiffPage(text[begin:], digest, is_last=True)
    end = text.rfind("\n", begin, end) + 1 or end
    return DiffPage(text[begin:end], _part(end, digest), is_last=False)


def fits_in_an_answer(text: str) -> bool:
    """Return whether all of a diff is in an answer that also has an overview and the names of files."""
    return len(text) <= SHOWN_CHARS and len(json.dumps(text)) <= 3 * SHOWN_CHARS


def _part(shown: int, digest: str) -> str:
    return f"{shown}-{diff_digest(f'{shown} {digest}'.encode())[:32]}"


class ShownDiffs:
    """Diffs that were shown, by viewer and subject."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._files: OrderedDict[str, Mapping[str, str]] = OrderedDict()

    def show(self, viewer: str | None, what: str, patch: bytes) -> None:
        """Record that a viewer was shown a diff; without a viewer, record only its content."""
        digest = diff_digest(patch)
        self._files[digest] = marks_of(patch)
        self._files.move_to_end(digest)
        if viewer is not None:
            self._last[viewer, what] = digest
            self._last.move_to_end((viewer, what))
        for kept in (self._files, self._last):
            while len(kept) > _REMEMBERED:
                kept.popitem(last=False)

    def last(self, viewer: str | None, what: str) -> str | None:
        """Return the digest of the diff that a viewer was shown last."""
        return None if viewer is None else self._last.get((viewer, what))

    def expected(self, viewer: str | None, what: str, digest: str | None) -> str | None:
        """Return the digest that a viewer may apply: the given one, or that of the diff it was shown last.

        A viewer is a client with a model that reads. A digest is only given out with the end of a diff (`DiffPage`), so a
        client that has it was shown all of it. None is for callers that decide for themselves, such as a program.

        Raises:
            ConfirmationNeeded: The viewer was not shown the whole diff.
        """
        if digest is not None and _PART.fullmatch(digest.strip()):
            read = digest.strip().partition("-")[0]
            raise ConfirmationNeeded(
                f"Nothing was applied: only {read} characters of this diff were shown. Read on with this digest as cursor "
                "until the diff is whole, and apply with the digest at its end; or have a person apply it, with helmsman "
                "apply or in the dashboard."
            )
        expected = digest if digest is not None else self.last(viewer, what)
        # The hub that died has checked this call. This hub has shown nothing yet.
        if expected is None and viewer is not None and not is_repeated():
            raise ConfirmationNeeded(
                "Nothing was applied: this diff was not shown, or not all of it. Look at it first, then apply with its "
                "digest; or have a person apply it, with helmsman apply or in the dashboard."
            )
        return expected

    def check_of(self, session_id: str, expected: str | None) -> Callable[[TreeDiff], None]:
        """Return a function that refuses changes of a session which are not the expected ones (`check`)."""
        return lambda diff: self.check(f"session {session_id}", diff.patch, expected)

    def check(self, what: str, patch: bytes, expected: str | None) -> None:
        """Refuse changes that are not the expected ones. Nothing expected: anything goes.

        Raises:
            DiffChanged: They are others.
        """
        digest = diff_digest(patch)
        expected = None if expected is None else expected.strip().lower()
        if expected is None or digest == expected:
            return
        files, diff = self._difference(patch, expected)
        is_whole = fits_in_an_answer(diff)  # else it must be looked at again, part by part
        named = listed((f"{file['path']} ({file['change']})" for file in files), _NAMED_FILES)
        raise DiffChanged(
            f"The changes of {what} are not those that were shown: {named or 'there are none left'}. Nothing was "
            "touched. Look at the diff again, then apply with its digest.",
            **({"digest": digest} if is_whole else {}),
            shown=expected,
            stat=cut(stat_of(files_of(patch.decode("utf-8", "replace"))), TEXT_CHARS),
            files=files,
            diff=cut(diff, TEXT_CHARS),
        )

    def _difference(self, patch: bytes, expected: str) -> tuple[list[dict[str, Any]], str]:
        """Return the files that have changed since they were shown, with their diff; all files if the shown diff is
        unknown here.
        """
        known = self._files.get(expected)
        now = patches_by_path(patch)
        if known is None:
            return [{"path": path, "change": "now"} for path in now], patch.decode("utf-8", "replace")
        others = {path: part for path, part in now.items() if known.get(path) != diff_digest(part)}
        files = [{"path": path, "change": "changed" if path in known else "new"} for path in others]
        files += [{"path": path, "change": "gone"} for path in known if path not in now]
        return files, b"".join(others.values()).decode("utf-8", "replace")
