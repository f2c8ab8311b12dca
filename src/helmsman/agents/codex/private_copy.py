"""A copy of Codex in the state directory, for a Codex that lies where sessions write.

The wheel `openai-codex-cli-bin` in a project's `.venv` is inside the working directory of sessions in that project. Such a
session could replace the program, which runs outside the sandbox the next time. So it is copied once, before it is first
run, and only the copy is run. The original is recognised by its inode, size and times of change; a changed one is refused
until the user says that the change is theirs, by removing the copy. Hard links would share the inode, and its content.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.files import file_lock, replace_file
from helmsman.base.json_values import json_object_in
from helmsman.errors import ProgramRefused
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

COPIES: Final = "programs"
"""Where in the state directory the copies are."""
_RECORD: Final = "source.json"
_BESIDE: Final = ("codex-path", "path", "codex-resources", "codex-package.json")
"""What comes with Codex, beside the directory of its program: ripgrep, bubblewrap."""
_LOCK_SECONDS: Final = 120.0


def private_copy(program: Path, state_dir: Path, reason: str) -> Path:
    """Return a copy of a program that no session can replace, made if there is none. Blocks.

    Raises:
        ProgramRefused: The original was changed since it was copied.
        OSError: It cannot be copied.
    """
    copies = ensure_state_dir(state_dir) / COPIES
    copies.mkdir(mode=0o700, exist_ok=True)
    place = copies / hashlib.sha256(os.fsencode(program)).hexdigest()[:16]
    copied = place / program.parent.name / program.name
    with file_lock(copies / f"{place.name}.lock", timeout=_LOCK_SECONDS):
        record, now = json_object_in(place / _RECORD), _identity(program)
        if record is None:
            _copy(program, place)
        elif record.get("identity") != now:
            if _digest(program) != record.get("sha256"):
                raise ProgramRefused(
                    f"{program} was changed since Helmsman first used it, and {reason}, so it need not be your Codex. If "
                    f"you changed it yourself, remove {place} and try again. Better, install Codex in a directory that "
                    "only you or the system writes.",
                    program=program.name,
                    path=str(program),
                )
            _write_record(place, program, now, str(record["sha256"]))
    return copied


def _copy(program: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)  # of one that was cut off
    target = place / program.parent.name
    target.mkdir(mode=0o700, parents=True)
    try:
        before = _identity(program)
        shutil.copyfile(program, target / program.name)
        (target / program.name).chmod(0o700)
        for source, path in _beside(program.parent.parent):
            (place / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(source, place / path)
            (place / path).chmod(0o700)
        _write_record(place, program, before, _digest(target / program.name))  # last: a copy without a record is none
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(place)
        raise


def _beside(package: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the regular files that come with a program, each with its place in the package. Links are not followed."""
    for name in _BESIDE:
        found = [package / name]
        for directory, _, files in os.walk(package / name):
            found += [Path(directory, file) for file in files]
        for path in found:
            with suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path, path.relative_to(package)


def _write_record(place: Path, program: Path, identity: list[int], digest: str) -> None:
    about = {"source": os.fsdecode(program), "identity": identity, "sha256": digest}
    replace_file(place / _RECORD, json.dumps(about))


def _identity(program: Path) -> list[int]:
    """Return what changes whenever a file is replaced or written. No program can set the time of the last change."""
    status = program.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _digest(program: Path) -> str:
    with program.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
