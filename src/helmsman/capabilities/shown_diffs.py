"""Which diff whom was shown last, so that nobody applies another one unseen.

Between the look and the yes a session may have gone on. A diff is known by its digest; of those shown here it is also known
what each file was like, so that whoever is refused learns what has changed since.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.patches import diff_digest
from helmsman.base.shortening import TEXT_CHARS, cut
from helmsman.errors import DiffChanged
from helmsman.worktrees.patch_stat import files_of, stat_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from helmsman.worktrees import TreeDiff

_REMEMBERED: Final = 1000
_NAMED_FILES: Final = 10
_FILE: Final = b"diff --git "


class ShownDiffs:
    """The diffs that were shown, by whom to and of what."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._files: OrderedDict[str, Mapping[bytes, str]] = OrderedDict()

    def show(self, viewer: str | None, what: str, patch: bytes) -> None:
        """Somebody is shown the diff of something; without a viewer it is only remembered what was in it."""
        digest = diff_digest(patch)
        self._files[digest] = {name: diff_digest(section) for name, section in _sections(patch)}
        self._files.move_to_end(digest)
        if viewer is not None:
            self._last[viewer, what] = digest
            self._last.move_to_end((viewer, what))
        for kept in (self._files, self._last):
            while len(kept) > _REMEMBERED:
                kept.popitem(last=False)

    def last(self, viewer: str | None, what: str) -> str | None:
        """The digest of what somebody was shown last."""
        return None if viewer is None else self._last.get((viewer, what))

    def check_of(self, session_id: str, expected: str | None) -> Callable[[TreeDiff], None]:
        """Refuses changes of a session that are not the expected ones (`check`)."""
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
        named = ", ".join(f"{file['path']} ({file['change']})" for file in files[:_NAMED_FILES])
        more = f" and {len(files) - _NAMED_FILES} more" if len(files) > _NAMED_FILES else ""
        raise DiffChanged(
            f"The changes of {what} are not those that were shown: {named or 'there are none any more'}{more}. Nothing was "
            "touched. Look at the diff again, then apply with its digest.",
            digest=digest,
            shown=expected,
            stat=cut(stat_of(files_of(patch.decode("utf-8", "replace"))), TEXT_CHARS),
            files=files,
            diff=cut(diff, TEXT_CHARS),
        )

    def _difference(self, patch: bytes, expected: str) -> tuple[list[dict[str, Any]], str]:
        """The files that are not as they were shown, and the diff of those; all, where what was shown is not known here."""
        known = self._files.get(expected)
        now = dict(_sections(patch))
        if known is None:
            return [{"path": _path(name), "change": "now"} for name in now], patch.decode("utf-8", "replace")
        others = {name: section for name, section in now.items() if known.get(name) != diff_digest(section)}
        files = [{"path": _path(name), "change": "changed" if name in known else "new"} for name in others]
        files += [{"path": _path(name), "change": "gone"} for name in known if name not in now]
        return files, b"".join(others.values()).decode("utf-8", "replace")


def _sections(patch: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each file of a diff by its first line. A file that became a link has two parts of the same name."""
    found: dict[bytes, bytes] = {}
    for part in (b"\n" + patch).split(b"\n" + _FILE)[1:]:
        name = part.partition(b"\n")[0]
        found[name] = found.get(name, b"") + _FILE + part.rstrip(b"\n") + b"\n"
    yield from found.items()


def _path(name: bytes) -> str:
    files = files_of((_FILE + name).decode("utf-8", "replace"))
    return files[0].path if files else name.decode("utf-8", "replace")
