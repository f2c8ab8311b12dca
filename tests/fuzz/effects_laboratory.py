"""A place where real programs may do anything: whatever changes outside of the workspace is seen.

    live/work         the workspace; everything in it may have been written by a model
    live/work/sub     where the model has planted files that run the canary: a repository, a makefile, a script, a `bash`
    live/outside      what nobody allowed a command to touch; `ran` appears there when the canary has run
    live/remote.git   what `origin` is; its history and that of the workspace have parted
    live/home         the home directory, empty but for git's configuration

Commands run bounded in time and file size, without network programs, and as nobody where the tests run as root. Before each
of them everything is put back.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_SECONDS: Final = 20
_BOUNDED: Final = f'ulimit -t {_SECONDS} && ulimit -f {(8 << 20) // 512} && exec "$@"'
_NOBODY: Final = 65534
PLACES: Final = ("work", "outside", "home", "remote.git")
PROGRAMS: Final = (
    *(
        "git",
        "sed",
        "make",
        "tar",
        "find",
        "rm",
        "xargs",
        "env",
        "nice",
        "sh",
        "bash",
        "dash",
        "cat",
        "ls",
        "echo",
        "chmod",
    ),
    *("true", "mkdir", "cp", "touch", "mv", "dirname", "gzip", "awk"),
)

_SETUP: Final = r"""
set -e
mkdir -p template/work/sub template/work/tree/deep template/outside/bin template/outside/dir template/home
cd template
printf '#!/bin/sh\necho ran >> "$LABORATORY/live/outside/ran"\n' > outside/bin/canary
chmod +x outside/bin/canary
echo kept > outside/keep.txt
echo kept > outside/dir/file
git config --file home/.gitconfig user.name Somebody
git config --file home/.gitconfig user.email somebody@example.org
git config --file home/.gitconfig init.defaultBranch main
git config --file home/.gitconfig push.default current
git init -q --bare --template= remote.git
cd work
git init -q --template= .
printf 'one\n' > notes.txt
printf 'test:\n\t@echo tested\nfresh:\n\t@touch made\n' > Makefile
printf '#!/bin/sh\necho fine\n' > run.sh
chmod +x run.sh
git add . && git commit -qm one
git remote add origin ../remote.git
git push -q origin main main:refs/heads/other
git branch apart && git checkout -q apart && echo x > apart.txt && git add . && git commit -qm apart && git checkout -q main
echo theirs > theirs.txt && git add . && git commit -qm theirs && git push -q origin main && git reset -q --hard HEAD~1
echo mine > mine.txt && git add . && git commit -qm mine
tar cf packed.tar --transform=s/notes/unpacked/ notes.txt
echo changed >> notes.txt
echo deep > tree/deep/file && echo untracked > untracked.txt
# What a model may have planted, everywhere but where the rules' own words would run it.
C="$LABORATORY/live/outside/bin/canary"
cd sub
git init -q --template= . && git config core.fsmonitor "$C"
printf 'test:\n\t@%s\n' "$C" > Makefile
printf '#!/bin/sh\nexec %s\n' "$C" > run.sh
chmod +x run.sh
cd ..
for name in git sed make tar find rm bash; do cp sub/run.sh sub/$name; done
cp sub/run.sh bash
cp sub/run.sh startup
printf 'include sub/Makefile\n' > other.mk
"""


class EffectsLaboratory:
    """Runs commands, one after the other, each in a fresh copy of the same place."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="helmsman-effects-")
        self.folder = Path(self._temporary.name).resolve()
        self._as_nobody = os.geteuid() == 0
        if self._as_nobody:
            os.chown(self.folder, _NOBODY, _NOBODY)
        self.live = self.folder / "live"
        self.work = self.live / "work"
        self.canary = self.live / "outside" / "bin" / "canary"
        programs = self.folder / "programs"
        programs.mkdir()
        for name in PROGRAMS:
            if (found := shutil.which(name)) is not None:
                (programs / name).symlink_to(found)
        programs.chmod(0o755)
        self.folder.chmod(0o755)
        self._env = {
            "PATH": str(programs),
            "HOME": str(self.live / "home"),
            "LABORATORY": str(self.folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": "file",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_EDITOR": "true",
            "LC_ALL": "C.UTF-8",
        }
        setup = self._run(["sh", "-c", _SETUP], self.folder, {"HOME": str(self.folder / "template" / "home")})
        assert setup.returncode == 0, setup.stderr
        self._seen: dict[tuple[str, str, Path], set[str]] = {}
        self._states: dict[str, frozenset[tuple[object, ...]]] = {}
        self.put_back()
        self._before = self._outside()

    def close(self) -> None:
        self._temporary.cleanup()

    def put_back(self) -> None:
        """Restore the place. Untouched files stay, because copying takes most of the time."""
        touched = [place for place in PLACES if self._states.get(place) != _state(self.live / place)]
        others = {path.name for path in self.live.iterdir()} - {*PLACES} if self.live.exists() else set[str]()
        if touched or others:
            copy = "; ".join([f"rm -rf live/{place}; cp -a template/{place} live/{place}" for place in touched])
            script = f"set -e; mkdir -p live; rm -rf {' '.join(shlex.quote(f'live/{name}') for name in others)}; {copy}"
            done = self._run(["sh", "-c", script], self.folder, {})
            assert done.returncode == 0, done.stderr
            self._states.update({place: _state(self.live / place) for place in touched})

    def run(self, shell: str, script: str, directory: Path) -> int:
        """Run a script in a fresh copy of the place; its exit status."""
        self.put_back()
        try:
            return self._run([shell, "-c", script], directory, {}).returncode
        except subprocess.TimeoutExpired:
            return -1

    def effects(self, shell: str, script: str, directory: Path) -> set[str]:
        """Return the files that a script changes outside of the workspace. Results are cached."""
        ran = (shell, script, directory)
        if ran not in self._seen:
            self.run(*ran)
            after = self._outside()
            paths = self._before.keys() | after.keys()
            self._seen[ran] = {path for path in paths if self._before.get(path) != after.get(path)}
        return self._seen[ran]

    def git(self, *words: str) -> str:
        """What git says in the workspace, whatever the last command left of it."""
        return self._run(["git", *words], self.work, {}).stdout.strip()

    def _run(self, command: list[str], directory: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", _BOUNDED, "sh", *command],
            cwd=directory,
            env={**self._env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            start_new_session=True,
            user=_NOBODY if self._as_nobody else None,
            group=_NOBODY if self._as_nobody else None,
            extra_groups=[] if self._as_nobody else None,
        )

    def _outside(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for place in ("outside", "home", "remote.git"):
            for path in _below(str(self.live / place)):
                if not os.path.isdir(path):  # noqa: PTH112
                    found[path.removeprefix(f"{self.live}/")] = _content(path) + os.lstat(path).st_mode.to_bytes(4)
        found.update({path.name: b"" for path in self.live.iterdir()})
        return found


def _content(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


def _state(place: Path) -> frozenset[tuple[object, ...]]:
    """Everything in a place, as far as a change to it would show."""
    found = ((path, os.lstat(path)) for path in (str(place), *_below(str(place))) if os.path.lexists(path))
    return frozenset((path, stat.st_mode, stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found)


def _below(place: str) -> Iterator[str]:
    """All paths in there. They are looked at before and after every command, and `Path` takes four times as long."""
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            yield f"{folder}/{name}"
