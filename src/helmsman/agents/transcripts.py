"""Transcripts of sessions, in parts that can be carried to another machine and placed in the agent's storage there.

Agents append to the files of a session, line by line. So new content can be read repeatedly (`tails`), in whole lines, each
part with its offset in the file. On the other machine all parts are put where that agent looks for them (`place`). An older
copy of the session there that has diverged is moved away first: only the carried content counts. Names and contents of parts
come from another machine, so every agent validates them.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from helmsman.base.structs import Value
from helmsman.errors import CannotMove

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

PART_BYTES: Final = 256 * 1024
"""Size of a part in bytes, unless one line is larger."""
TAILS_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes per read. For a long session that is carried for the first time, the rest comes with the next calls."""
NAME: Final = "name"
"""Name of the part with the session's name, which some agents do not keep in its files."""
_BLOCK: Final = 1024 * 1024
_SESSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{7,99}")


class TranscriptPart(NamedTuple):
    """Piece of a file. It replaces everything in the file from `start` on."""

    file: str
    start: int
    data: bytes


class PlacedTranscript(Value, frozen=True):
    """Placed transcript: the `name` to give the session again, and the directory of copies that were moved aside."""

    name: str | None = None
    moved_away: Path | None = None


class TranscriptFile(Value, frozen=True):
    """File that is needed to resume a session, with its name for the transfer.

    With `is_own` it belongs to the session itself. Of a parent session's file, only the bytes before `end` are needed.
    """

    name: str
    path: Path
    is_own: bool = True
    end: int | None = None


class CarriedTranscripts(ABC):
    """Transcripts of one agent on this machine. Methods block; they may be called from any thread, one at a time."""

    forms: tuple[str, ...] = ()
    """Session formats that only some versions of the agent can resume, and that the local version can."""

    def __init__(self) -> None:
        self._told_names: dict[str, str] = {}

    # --- implemented by each agent -----------------------------------------------------------------------------------

    @abstractmethod
    def files(self, session_id: str) -> list[TranscriptFile]:
        """Return the files of a session here, in the order in which they must be placed; empty if it never ran."""

    @abstractmethod
    def targets(self, session_id: str, files: Collection[str], directory: Path) -> dict[str, Path]:
        """Return the target paths of these files, by their names, so that the session can resume in a directory.

        Raises:
            CannotMove: No file of this session has such a name.
        """

    def check(self, session_id: str, files: Mapping[str, Path]) -> None:
        """Check the files that are about to be placed, by their names.

        Raises:
            CannotMove: The agent that is here would damage it, or it is not complete.
        """
        if not files:
            raise CannotMove(f"Nothing was carried here of session {session_id}. Start a new session.")

    def form_of(self, session_id: str) -> str | None:
        """Return the format of a session here; None if any version can resume it."""
        return None

    def name_of(self, session_id: str) -> str | None:
        """Return the session's name, if its files do not have it."""
        return None

    def open(self, path: Path) -> BinaryIO:
        """Open a file for the transfer."""
        return path.open("rb")

    # --- carrying ----------------------------------------------------------------------------------------------------

    def tails(self, session_id: str, stored: Mapping[str, int]) -> list[TranscriptPart]:
        """Return the content of the files beyond the `stored` bytes of each. Call it again until it returns nothing."""
        parts: list[TranscriptPart] = []
        left = TAILS_BYTES
        for file in self.files(session_id):
            for part in self._tail(file, stored.get(file.name, 0)):
                parts.append(part)
                left -= len(part.data)
                if left <= 0:
                    return parts
        name = self.name_of(session_id)
        # Only a session with content gets its name.
        if (parts or stored) and name is not None and name != self._told_names.get(session_id):
            self._told_names[session_id] = name
            parts.append(TranscriptPart(NAME, 0, name.encode("utf-8", "replace")))
        return parts

    def _tail(self, file: TranscriptFile, start: int) -> Iterator[TranscriptPart]:
        with contextlib.suppress(FileNotFoundError), self.open(file.path) as opened:
            if opened.seek(0, 2) < start:
                start = 0  # it is another file by now
            opened.seek(start)
            rest = b""
            while file.end is None or start + len(rest) < file.end:
                # Beyond this offset the parent's file belongs to another history.
                limit = PART_BYTES if file.end is None else min(PART_BYTES, file.end - start - len(rest))
                block = opened.read(limit)
                if not block:
                    return  # the rest is a line that is still being written
                whole, newline, rest = (rest + block).rpartition(b"\n")
                if newline:
                    yield TranscriptPart(file.name, start, whole + newline)
                    start += len(whole) + 1

    def place(
        self, session_id: str, parts: Iterable[TranscriptPart], *, directory: Path, away: Path
    ) -> PlacedTranscript:
        """Put a carried session where its agent finds it, so that it can resume in a directory.

        `parts` come file by file, each in order. Local files that are not a prefix of the carried ones are moved into a new
        directory below `away`. No process may use the session during the call.

        Raises:
            CannotMove: It is not complete, or this agent cannot take it. Nothing was changed.
        """
        here, parts = self.files(session_id), list(parts)
        targets = self.targets(session_id, {part.file: None for part in parts if part.file != NAME}, directory)
        name: str | None = None
        written: dict[str, Path] = {}
        try:
            for part in parts:
                if part.file == NAME:
                    name = part.data.decode("utf-8", "replace")
                    continue
                if part.file not in written:
                    target = targets[part.file]
                    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    # Under a hidden name first: the agent must not find half a session.
                    written[part.file] = target.with_name(f".{secrets.token_hex(8)}.carried")
                    written[part.file].touch(mode=0o600, exist_ok=False)
                _add(written[part.file], part)
            # Check before any local file is moved, so that a refusal changes nothing.
            self.check(session_id, written)
            moved = self._settle(here, written, targets, away / f"{session_id}-{secrets.token_hex(4)}")
        except OSError as error:
            raise CannotMove(
                f"Session {session_id} cannot be placed here: {error}. Make room, or let another machine continue it."
            ) from error
        finally:
            for path in written.values():
                path.unlink(missing_ok=True)
        if name is not None:
            self._told_names[session_id] = name
        return PlacedTranscript(name, moved)

    def _settle(
        self, here: Iterable[TranscriptFile], written: Mapping[str, Path], targets: Mapping[str, Path], away: Path
    ) -> Path | None:
        """Move the written files to their targets, and move diverged local files away."""
        for file in here:
            carried = written.get(file.name)
            # A parent's file that was not carried stays as it is.
            if carried is None and not file.is_own:
                continue
            if carried is not None and self._begins(file.path, carried):
                # Found in another place than this machine needs.
                if file.path != targets[file.name]:
                    file.path.unlink()
            elif carried is not None and not file.is_own and self._begins(carried, file.path):
                carried.unlink()  # of a session that this one came from more is here than is needed
            else:
                away.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Numbered, since files of one name may come from several directories.
                shutil.move(file.path, away / f"{len(list(away.iterdir()))}-{file.path.name}")
        for name, carried in written.items():
            if carried.exists():
                carried.replace(targets[name])
        return away if away.exists() else None

    def _begins(self, short: Path, long: Path) -> bool:
        """Return whether a file is a prefix of another, or equal to it."""
        with self.open(short) as one, self.open(long) as other:
            while block := one.read(_BLOCK):
                if other.read(len(block)) != block:
                    return False
        return True


class OneFile(CarriedTranscripts):
    """Transcripts of an agent with one file per session, `<id>.jsonl`, in a folder that depends on its directory."""

    def __init__(self, found: Callable[[str], Iterable[Path]], directory_of: Callable[[Path], Path | None]) -> None:
        """`found` gives the files of a session, wherever they are; `directory_of` where those of a directory are."""
        super().__init__()
        self._found = found
        self._directory_of = directory_of

    def files(self, session_id: str) -> list[TranscriptFile]:
        return [TranscriptFile(f"{session_id}.jsonl", path) for path in self._found(_checked(session_id))]

    def targets(self, session_id: str, files: Collection[str], directory: Path) -> dict[str, Path]:
        place = self._directory_of(directory.resolve())
        if place is None or any(file != f"{_checked(session_id)}.jsonl" for file in files):
            raise CannotMove(
                f"It cannot be told where session {session_id} goes for work in {directory}. Start a new session there."
            )
        return {file: place / file for file in files}


def _checked(session_id: str) -> str:
    if _SESSION.fullmatch(session_id) is None:
        raise CannotMove(f"{session_id!r:.100} is no session that can be carried. Start a new one.")
    return session_id


def _add(path: Path, part: TranscriptPart) -> None:
    with path.open("r+b") as file:
        if part.start > file.seek(0, 2):
            raise CannotMove(
                f"The transcript that was carried lacks something: {part.file} goes on at {part.start}, and ends before. "
                "Start a new session."
            )
        file.seek(part.start)
        # The part replaces everything from its start on, so the rest is not valid any longer.
        file.truncate()
        file.write(part.data)
