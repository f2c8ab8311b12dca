"""Write and read git bundles: part of a repository's history in one file.

Bundles are not written by `git bundle`, because the commit need not have a reference and the size must be limited. They
are not read by it either, because a bundle may come from an untrusted machine. Its references are ignored; its objects
are unpacked next to the repository, checked as git checks a push, and moved into it only if they are complete. All
functions block; call them in threads.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import tempfile
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import urlsplit

from helmsman.base.files import temporary_directory
from helmsman.base.structs import Value, replace
from helmsman.errors import InvalidInput, WorkspaceIncomplete, WorkspaceTooLarge, WorktreeError
from helmsman.git.command import SUBMODULE, Git, find_git, is_bare
from helmsman.git.included_files import pack_included
from helmsman.git.patches import named, shown
from helmsman.git.snapshot import scratch, take_snapshot
from helmsman.git.tree_changes import commit_object
from helmsman.git.worktree import slug
from helmsman.settings import Settings, ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


NAME: Final = "refs/helmsman/workspace"
"""Reference of the single commit in a bundle."""
_SIGNATURES: Final = {b"# v2 git bundle\n": "sha1", b"# v3 git bundle\n": "sha256"}
_SHA256: Final = b"@object-format=sha256\n"
_NEEDS: Final = re.compile(rb"-(?P<id>[0-9a-f]{40}|[0-9a-f]{64})(?: [^\n]*)?\n")
_HAS: Final = re.compile(rb"(?P<id>[0-9a-f]{40}|[0-9a-f]{64}) " + NAME.encode() + rb"\n")
_LONGEST_LINE: Final = 1024
_MOST_NEEDS: Final = 1000
_OLD_SLIPS: Final = (
    *("badDate", "badDateOverflow", "badEmail", "badTimezone", "missingEmail", "missingNameBeforeEmail"),
    *("missingSpaceBeforeDate", "missingSpaceBeforeEmail", "zeroPaddedDate", "zeroPaddedFilemode"),
)
"""Harmless errors of old tools, found in many repositories."""
_STRICTLY: Final = "--strict=" + ",".join(f"{slip}=ignore" for slip in _OLD_SLIPS)
_SIZE: Final = re.compile(rb"(?:^|\0)\d+ blob [0-9a-f]+ +(\d+)\t")
_MOST_LISTED: Final = 128 * 1024 * 1024
"""Enough for the names of more than a million files."""
_LARGEST_FILE: Final = 1024 * 1024 * 1024
_MOST_BYTES: Final = 16 * _LARGEST_FILE
_MOST_MEMORY: Final = 2 * _LARGEST_FILE
"""Limits against bombs: a delta of a few bytes can unpack to any size. Git makes no deltas of files above 512 MB."""
_SMALL_WINDOWS: Final = {"core.packedGitWindowSize": "32m", "core.packedGitLimit": "256m", "pack.threads": "1"}
"""Mapped parts of packs count as memory."""


@dataclass(frozen=True, slots=True)
class _Header:
    commit: str
    needs: tuple[str, ...]
    object_format: str


def write_bundle(git: Git, commit: str, known: Sequence[str], path: Path, most: int) -> bool:
    """Write a commit with its history to a file, without the history of the `known` commits.

    Returns False, and removes the file, if it would exceed `most` bytes.

    Raises:
        WorktreeError: An object is missing or unreadable.
    """
    # `_read_header` accepts no more.
    known = known[:_MOST_NEEDS]
    is_sha256 = git.text("rev-parse", "--show-object-format") == "sha256"
    head = b"# v3 git bundle\n" + _SHA256 if is_sha256 else b"# v2 git bundle\n"
    wanted = "".join(f"{name}\n" for name in (commit, *(f"^{one}" for one in known)))
    fits = False
    try:
        with path.open("xb") as file:
            file.write(head + "".join(f"-{one}\n" for one in known).encode() + f"{commit} {NAME}\n\n".encode())
            # Thin: with deltas against objects that only the receiver has. `index-pack --fix-thin` adds those.
            options = ("--revs", "--stdout", "--thin", "--delta-base-offset", "--quiet")
            fits = git.write("pack-objects", *options, stdin=wanted.encode(), into=file, most=most)
    finally:
        if not fits:
            path.unlink(missing_ok=True)
    return fits


def take_bundle(git: Git, path: Path, commit: str) -> None:
    """Unpack a bundle, which must contain this commit, into a repository. Changes no reference.

    Raises:
        WorkspaceIncomplete: The bundle requires commits that are missing here.
        WorktreeError: The file is no bundle, contains another commit, or is damaged or not allowed.
    """
    with path.open("rb", buffering=0) as file, scratch(git) as own:
        header = _read_header(file, path)
        if header.commit != commit or header.object_format != own.text("rev-parse", "--show-object-format"):
            raise WorktreeError(f"{path.name} is incomplete or damaged. Send it again.")
        missing = [one for one in header.needs if not own.has(f"{one}^{{commit}}")]
        if missing:
            raise WorkspaceIncomplete(
                f"{path.name} builds on commits that are not here: {', '.join(missing[:3])}. Send all of it.",
                missing=missing,
            )
        indexing = own.with_settings(_SMALL_WINDOWS)
        indexing.run("index-pack", "--stdin", "--fix-thin", _STRICTLY, stdin=file, most_memory=_MOST_MEMORY)
        check_whole(own, commit)
        _refuse_bombs(own, commit)
        _move_packs(own, git.common_dir)


def check_whole(git: Git, commit: str) -> None:
    """Check that a commit and all its objects are present.

    Raises:
        WorkspaceIncomplete: An object is missing.
        WorktreeError: It is not a commit.
    """
    if git.text("cat-file", "-t", commit) != "commit":
        raise WorktreeError(f"{commit} is no commit. Send it again.")
    all_of_it = ("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all")
    if git.run(*all_of_it, stdin=f"{commit}\n".encode(), accept=range(256)).code:
        raise WorkspaceIncomplete(f"Not all that commit {commit} needs is here. Send all of it.", missing=[commit])


def _refuse_bombs(git: Git, commit: str) -> None:
    """Reject a commit that unpacks to excessive size: a few objects can refer to each other many times.

    Raises:
        WorktreeError: The commit is too large.
    """
    bad = WorktreeError(f"The files of commit {commit} are more than any tree that is worked on. It is not taken.")
    with tempfile.TemporaryFile() as listed:
        if not git.write("ls-tree", "-r", "-l", "-z", "--full-tree", commit, stdin=b"", into=listed, most=_MOST_LISTED):
            raise bad
        listed.seek(0)
        sizes = [int(found[1]) for found in _SIZE.finditer(listed.read())]
    if max(sizes, default=0) > _LARGEST_FILE or sum(sizes) > _MOST_BYTES:
        raise bad


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pieces(path: Path | None) -> Iterator[bytes]:
    """Yield a file in pieces. An empty file has one empty piece, as has None. Blocks."""
    if path is None:
        yield b""
        return
    with path.open("rb") as file:
        yield file.read(PIECE)
        while piece := file.read(PIECE):
            yield piece


def _read_header(file: IO[bytes], path: Path) -> _Header:
    """Parse the header; leaves the file at the start of the pack."""
    bad = WorktreeError(f"{path.name} is no bundle that Helmsman has made. Send it again.")
    object_format = _SIGNATURES.get(_line(file))
    if object_format is None:
        raise bad
    line = _line(file)
    if object_format == "sha256":
        if line != _SHA256:
            raise bad
        line = _line(file)
    needs: list[str] = []
    while (found := _NEEDS.fullmatch(line)) is not None and len(needs) < _MOST_NEEDS:
        needs.append(found["id"].decode())
        line = _line(file)
    commit = _HAS.fullmatch(line)
    if commit is None or _line(file) != b"\n":
        raise bad
    return _Header(commit["id"].decode(), tuple(needs), object_format)


def _line(file: IO[bytes]) -> bytes:
    """Read a line byte by byte, because git reads the rest from the same descriptor."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
        one = file.read(1)
        if not one:
            break
        line += one
    return line


def _move_packs(own: Git, common_dir: Path) -> None:
    """Move unpacked packs into a repository, each index last: git looks for those first."""
    assert own.objects is not None
    target = common_dir / "objects" / "pack"
    try:
        target.mkdir(exist_ok=True)
        found = sorted((own.objects / "pack").glob("pack-*"), key=lambda one: (one.suffix == ".idx", one.name))
        for file in found:
            if not (target / file.name).exists():
                # If this process is killed, `git gc` removes files with this prefix.
                beside = target / f"tmp_{file.name}-{os.getpid()}"
                shutil.copyfile(file, beside)
                beside.chmod(0o444)
                beside.replace(target / file.name)
    except OSError as error:
        raise WorktreeError(f"{target} cannot be written: {error}. Make room, or make it writable.") from error


# Pack a working tree for another machine.
#
# A working tree is sent as a commit: HEAD if it is clean, otherwise a snapshot on top of HEAD, made with a private
# index. HEAD, index, branches and files are only read. A reference outside branches and tags (`refs/helmsman/away/…`)
# keeps the commit, because the result is based on it. If the other machine has the commit, or can fetch it from a
# remote, no data is sent; otherwise a bundle of the missing objects is.
#
# Ignored files are not sent, except those named by `.worktreeinclude`. Notes list everything else that is not sent:
# contents of submodules, nested repositories, git-lfs objects, a history that is too long or incomplete. No program
# named by the repository is run. All functions block; call them in threads.


AWAY: Final = "refs/helmsman/away"
MB: Final = 1024 * 1024
PIECE: Final = 256 * 1024
"""Chunk size for transfers."""
_MOST_CANDIDATES: Final = 60
_LARGEST_NAMED: Final = 3
_MOST_BRANCHES: Final = 8
"""Number of most recent remote branches that are compared with HEAD."""
REFERENCES: Final = {"core.logAllRefUpdates": "false"}
_SSH_PLACE: Final = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?!/?/)[^\s:][^\s]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Maximum bytes to send, in total and for one new or changed file."""

    total: int
    file: int

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(total=settings.workspace_limit_mb * MB, file=settings.workspace_file_limit_mb * MB)

    def check(self, root: Path, paths: Collection[str]) -> None:
        """Check the sizes of files before they are read.

        Raises:
            WorkspaceTooLarge: A file or their total is too large.
        """
        sizes = {path: _size(f"{root}/{path}") for path in paths}
        if max(sizes.values(), default=0) > self.file:
            raise _too_large(sizes, self.file, "of one new or changed file", "workspace_file_limit_mb")
        if sum(sizes.values()) > self.total:
            raise _too_large(sizes, self.total, "in all", "workspace_limit_mb")

    def refuse(self, git: Git, tree: str) -> WorkspaceTooLarge:
        """Return the error for a tree that is too large."""
        listed = (entry.partition("\t") for entry in git.names("ls-tree", "-r", "-l", "-z", tree))
        sizes = {path: int(size) for about, _, path in listed if (size := about.split()[-1]).isdecimal()}
        return _too_large(sizes, self.total, "in all", "workspace_limit_mb")


class PackedTree(Value, frozen=True, kw_only=True):
    """Working tree to be sent.

    `commit` is its content. `repository` identifies the repository across machines, so known objects are not sent
    again. `directory` is the requested working directory inside the tree. Without a bundle (`digest` is None), the
    other machine has the commit or fetches `branch` of `remote`; with both, the bundle builds on the fetched branch.
    `included` is the digest of the archive of ignored files. `head` is the commit that was checked out, which other
    clones know. `notes` list everything that is not sent.
    """

    id: str
    name: str
    repository: str
    object_format: str
    commit: str
    directory: str = ""
    remote: str | None = None
    branch: str | None = None
    digest: str | None = None
    included: str | None = None
    head: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """Files of a packed workspace."""

    bundle: Path | None
    included: Path | None


class Packer:
    """Working tree that is being packed. Created by `packing`, and valid inside its block."""

    def __init__(self, git: Git, folder: Path, directory: Path, limits: Limits) -> None:
        self._git = git
        self._folder = folder
        self._limits = limits
        self.work_tree = git.work_tree
        self.git_dir = git.git_dir
        own = replace(git, index=folder / "index")
        head = git.text("rev-parse", "--verify", "HEAD")
        snapshot = take_snapshot(own, check=partial(limits.check, git.work_tree))
        self._tree = snapshot.tree
        self._own = own
        notes = (
            _note(snapshot.nested, "nested repositories"),
            _note(snapshot.left_out, "no ordinary files"),
            _note(_submodules(own), "submodules; they are empty there"),
            _note(own.names("ls-files", "-z", "--", ":(attr:filter=lfs)"), "objects of git-lfs, only pointers"),
        )
        is_clean = snapshot.tree == git.text("rev-parse", "--verify", f"{head}^{{tree}}")
        is_cut = git.text("rev-parse", "--is-shallow-repository") == "true" or _is_partial(git)
        remote, branch = _pushed_to(git, head) if is_clean else (None, None)
        self._is_cut, self._has_history = is_cut, True
        commit = head if is_clean else commit_object(own, snapshot.tree, head)
        inside = directory.resolve().relative_to(git.work_tree.resolve())
        self.workspace = PackedTree(
            id=uuid.uuid4().hex[:12],
            name=slug(git.work_tree.name),
            repository=_fingerprint(git),
            object_format=git.text("rev-parse", "--show-object-format"),
            commit=commit,
            directory="" if inside == Path() else inside.as_posix(),
            remote=remote,
            branch=branch,
            head=head,
            notes=tuple(note for note in notes if note),
        )
        self._keep()

    def candidates(self) -> list[str]:
        """Return commits that the other machine may have; their objects need not be sent."""
        recent = ("rev-list", f"--max-count={_MOST_CANDIDATES}", self.workspace.commit)
        sent = ("for-each-ref", f"--count={_MOST_CANDIDATES}", "--sort=-creatordate", "--format=%(objectname)", AWAY)
        told = (self._git.run(*asked).output.decode().split() for asked in (recent, sent))
        return list(dict.fromkeys(name for names in told for name in names))

    def pack(self, known: Collection[str] = (), *, from_remote: bool = False) -> tuple[PackedTree, Parts]:
        """Write the files to send, without objects of the `known` commits.

        With `from_remote`, objects that the other machine can fetch from a remote are left out, too.

        Raises:
            WorkspaceTooLarge: The tree exceeds the limits.
            WorktreeError: A file cannot be read.
        """
        workspace = self.workspace
        bundle, archive = self._folder / "bundle", self._folder / "included"
        known = [one for one in self.candidates() if one in known] if known else []
        for file in (bundle, archive):
            file.unlink(missing_ok=True)
        included = pack_included(self._git, archive)
        has_it = workspace.commit in known or (from_remote and workspace.remote is not None)
        if not has_it:
            pushed = _pushed_before(self._git) if from_remote and not known and not self._is_cut else None
            workspace = self._bundled(bundle, known if pushed is None else pushed[:1])
            remote, branch = (None, None) if pushed is None else pushed[1:]
            workspace = replace(workspace, remote=remote, branch=branch, digest=digest_of(bundle))
        parts = Parts(None if has_it else bundle, archive if included.files else None)
        notes = (*workspace.notes, *((included.note,) if included.note else ()))
        digest = None if parts.included is None else digest_of(archive)
        return replace(workspace, included=digest, notes=notes), parts

    def forget(self) -> None:
        """Drop the reference of a workspace that is not sent."""
        self._git.with_settings(REFERENCES).run("update-ref", "-d", f"{AWAY}/{self.workspace.id}/base")

    def _bundled(self, bundle: Path, known: Collection[str]) -> PackedTree:
        there = list(known)
        limit = self._limits.total
        if self._is_cut:
            self._leave_history("this clone does not have all of it")
        if write_bundle(self._git, self.workspace.commit, there, bundle, limit):
            return self.workspace
        self._leave_history(f"it is more than {limit // MB} MB")
        if write_bundle(self._git, self.workspace.commit, there, bundle, limit):
            return self.workspace
        raise self._limits.refuse(self._git, self._tree)

    def _leave_history(self, why: str) -> None:
        if self._has_history:
            self._has_history = False
            notes = (*self.workspace.notes, f"The history of this repository does not travel: {why}.")
            self.workspace = replace(self.workspace, commit=commit_object(self._own, self._tree), notes=notes)
            self._keep()

    def _keep(self) -> None:
        name, commit = f"{AWAY}/{self.workspace.id}/base", self.workspace.commit
        self._git.with_settings(REFERENCES).run("update-ref", name, commit)


@contextmanager
def packing(directory: Path, state_dir: Path, limits: Limits) -> Iterator[Packer]:
    """Pack the working tree around a directory, for the length of the block. Blocks.

    Raises:
        InvalidInput: There is no working tree, or it has no commit.
        WorkspaceTooLarge: The tree exceeds the limits.
        WorktreeError: A file cannot be read.
    """
    state_dir = ensure_state_dir(state_dir.absolute())
    git = find_git(directory, state_dir)
    if git is None:
        what = "a bare repository" if is_bare(directory) else "not in the working tree of a git repository"
        raise InvalidInput(f"{directory} is {what}, so it cannot be brought to another machine. Name a repository.")
    if git.commit("HEAD") is None:
        raise InvalidInput(f"The repository {git.work_tree} has no commit yet, and so cannot travel. Commit first.")
    with git.viewed() as seen, temporary_directory(state_dir, "workspace") as folder:
        yield Packer(seen, Path(folder), directory, limits)


def is_fetchable(remote: str) -> bool:
    """Return whether another machine may fetch from a URL: an encrypted network protocol, without naming a program."""
    try:
        parts = urlsplit(remote)
        host = parts.hostname or ""
    except ValueError:
        return False
    # A password would be sent to the other machine.
    if any(not one.isprintable() for one in remote) or parts.password:
        return False
    if parts.scheme in ("https", "ssh") and "://" in remote:
        # Ssh takes a host that begins with `-` for an option.
        return host[:1].isalnum() and not (parts.scheme == "https" and parts.username)
    # `NAME::ADDRESS` makes git start the program `git-remote-NAME`.
    return "::" not in remote and _SSH_PLACE.fullmatch(remote) is not None


def _pushed_to(git: Git, head: str) -> tuple[str, str] | tuple[None, None]:
    """Return a remote that has a commit, as far as known locally, and its branch."""
    return next(((remote, branch) for _, remote, branch in _branches(git, f"--contains={head}")), (None, None))


def _pushed_before(git: Git) -> tuple[str, str, str] | None:
    """Return the newest ancestor of HEAD on a remote, as far as known locally, with that remote and its branch."""
    latest = _branches(git, "--sort=-creatordate", f"--count={_MOST_BRANCHES}")
    found = [(git.run("merge-base", "HEAD", ref, accept=(0, 1)).output.decode().strip(), *at) for ref, *at in latest]
    count = {base: int(git.text("rev-list", "--count", f"{base}..HEAD")) for base, *_ in found if base}
    nearest = min((one for one in found if one[0]), key=lambda one: count[one[0]], default=None)
    return None if nearest is None else (nearest[0], nearest[1], nearest[2])


def _branches(git: Git, *which: str) -> Iterator[tuple[str, str, str]]:
    """Yield remote branches that others can fetch: the local reference, the URL and the name of the branch."""
    # Exits with 1 if there is none.
    told = git.run("config", "-z", "--get-regexp", r"^remote\..*\.url$", accept=(0, 1)).output.split(b"\0")[:-1]
    entries = (os.fsdecode(entry).partition("\n") for entry in told)
    urls = {key[len("remote.") : -len(".url")]: value for key, _, value in entries}
    listed = ("for-each-ref", "--format=%(refname)", *which, "refs/remotes")
    for reference in git.run(*listed).output.decode("utf-8", "surrogateescape").splitlines() if urls else ():
        for name, url in urls.items():
            branch = reference.removeprefix(f"refs/remotes/{name}/")
            # `origin/HEAD` only refers to another branch.
            if branch not in (reference, "HEAD") and is_fetchable(place := _without_login(url)):
                yield reference, place, branch


def _without_login(url: str) -> str:
    """Remove a user name or token from a URL: it is for this machine only."""
    return re.sub(r"^https://[^/@]*@", "https://", url)


def _fingerprint(git: Git) -> str:
    """Return an identifier of this repository that is unique across machines."""
    here = f"{platform.node()}\0".encode() + os.fsencode(os.path.realpath(git.common_dir))
    return hashlib.sha256(here).hexdigest()[:24]


def _is_partial(git: Git) -> bool:
    # Git puts this file next to the packs of a partial clone.
    return any((git.common_dir / "objects" / "pack").glob("*.promisor"))


def _submodules(git: Git) -> list[str]:
    entries = (entry.partition("\t") for entry in git.names("ls-files", "-s", "-z"))
    return [path for about, _, path in entries if about.startswith(SUBMODULE)]


def _note(paths: Collection[str], what: str) -> str | None:
    return f"Not sent: {named(sorted(paths))} ({what})." if paths else None


def _size(path: str) -> int:
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _too_large(sizes: dict[str, int], limit: int, what: str, setting: str) -> WorkspaceTooLarge:
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:_LARGEST_NAMED]
    told = ", ".join(f"{shown(path)} ({size / MB:.1f} MB)" for path, size in largest)
    return WorkspaceTooLarge(
        f"This tree is too large to send: {told}. At most {limit // MB} MB {what} are sent. Name what is not needed in "
        f".gitignore, or set {setting}.",
        files=[{"path": shown(path), "bytes": size} for path, size in largest],
        limit=limit,
    )
