"""What an agent has on disk of a session, in parts that can be carried to another machine and placed in its storage there.

Agents write down a session in files that only grow, line by line. So what is new of them is read as often as one likes
(`tails`), in whole lines, each part with the place in its file at which it begins; and somewhere else all of it is put where
that agent looks for it (`place`). What was there of the same session before and has gone another way is moved away first:
only what was carried counts. Names and contents of parts come from another machine, so every agent says which it takes.
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
"""How large a part is, unless one line is larger."""
TAILS_BYTES: Final = 4 * 1024 * 1024
"""How much is read at once: of a long session that is carried for the first time, the rest comes with the next calls."""
NAME: Final = "name"
"""A part that is no file: what the session is called, where its files do not say."""
_BLOCK: Final = 1024 * 1024
_SESSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{7,99}")


class TranscriptPart(NamedTuple):
    """A piece of a file. It takes the place of all that the file has from `start` on."""

    file: str
    start: int
    data: bytes


class PlacedTranscript(Value, frozen=True):
    """What became of a transcript: the `name` to give the session again, and where the copies are that had to go."""

    name: str | None = None
    moved_away: Path | None = None


class TranscriptFile(Value, frozen=True):
    """A file that is needed to go on with a session, by the name under which it is carried.

    `is_own` is one of the session itself. Of another, which it goes on from, only what comes before `end` is needed.
    """

    name: str
    path: Path
    is_own: bool = True
    end: int | None = None


class CarriedTranscripts(ABC):
    """The transcripts of one agent on this machine. Methods block; they may be called from any thread, one at a time."""

    forms: tuple[str, ...] = ()
    """Forms of sessions that not every version of the agent can go on with, and the one that is here can."""

    def __init__(self) -> None:
        self._told_names: dict[str, str] = {}

    # --- what an agent says ------------------------------------------------------------------------------------------

    @abstractmethod
    def files(self, session_id: str) -> list[TranscriptFile]:
        """What is here of a session, in the order in which it has to be there elsewhere; nothing where it never ran."""

    @abstractmethod
    def targets(self, session_id: str, files: Collection[str], directory: Path) -> dict[str, Path]:
        """Where these files go, by their names, so that the session can go on in a directory.

        Raises:
            CannotMove: No file of this session has such a name.
        """

    def check(self, session_id: str, files: Mapping[str, Path]) -> None:
        """Look at what is about to be placed, by the names of the files.

        Raises:
            CannotMove: The agent that is here would damage it, or it is not complete.
        """
        if not files:
            raise CannotMove(f"Nothing was carried here of session {session_id}. Start a new session.")

    def form_of(self, session_id: str) -> str | None:
        """The form that a session here has; None of one that any version can go on with."""
        return None

    def name_of(self, session_id: str) -> str | None:
        """What the session is called, where that is not in its files."""
        return None

    def open(self, path: Path) -> BinaryIO:
        """A file as it is carried."""
        return path.open("rb")

    # --- carrying ----------------------------------------------------------------------------------------------------

    def tails(self, session_id: str, stored: Mapping[str, int]) -> list[TranscriptPart]:
        """What its files have beyond what is `stored` of each, in bytes. Call it again until it gives nothing."""
        parts: list[TranscriptPart] = []
        left = TAILS_BYTES
        for file in self.files(session_id):
            for part in self._tail(file, stored.get(file.name, 0)):
                parts.append(part)
                left -= len(part.data)
                if left <= 0:
                    return parts
        name = self.name_of(session_id)
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
                limit = PART_BYTES if file.end is None else min(PART_BYTES, file.end - start - len(rest))
                block = opened.read(limit)
                if not block:
                    return  # what is left is a line that is still being written
                whole, newline, rest = (rest + block).rpartition(b"\n")
                if newline:
                    yield TranscriptPart(file.name, start, whole + newline)
                    start += len(whole) + 1

    def place(
        self, session_id: str, parts: Iterable[TranscriptPart], *, directory: Path, away: Path
    ) -> PlacedTranscript:
        """Put a session that was carried here where its agent finds it, to go on in a directory.

        `parts` come file by file, each in order. What was here of it and is not the beginning of that goes into a new
        directory below `away`. No process may have the session meanwhile.

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
                    written[part.file] = target.with_name(f".{secrets.token_hex(8)}.carried")
                    written[part.file].touch(mode=0o600, exist_ok=False)
                _add(written[part.file], part)
            self.check(session_id, written)
            moved = self._settle(here, written, targets, away / f"{session_id}-{secrets.token_hex(4)}")
        except OSError as error:
            raise CannotMove(
                f"Session {session_id} cannot be placed here: {error}. Make room, or let another machine go on with it."
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
        """Put what was written where it belongs, past what is there."""
        for file in here:
            carried = written.get(file.name)
            if carried is None and not file.is_own:
                continue
            if carried is not None and self._begins(file.path, carried):
                if file.path != targets[file.name]:
                    file.path.unlink()
            elif carried is not None and not file.is_own and self._begins(carried, file.path):
                carried.unlink()  # of a session that this one came from more is here than is needed
            else:
                away.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.move(file.path, away / f"{len(list(away.iterdir()))}-{file.path.name}")
        for name, carried in written.items():
            if carried.exists():
                carried.replace(targets[name])
        return away if away.exists() else None

    def _begins(self, short: Path, long: Path) -> bool:
        """Whether a file is the beginning of another, or the same."""
        with self.open(short) as one, self.open(long) as other:
            while block := one.read(_BLOCK):
                if other.read(len(block)) != block:
                    return False
        return True


class OneFile(CarriedTranscripts):
    """Those of an agent that has a file for each session, `<id>.jsonl`, in a place that depends on where it works."""

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
        file.truncate()
        file.write(part.data)
