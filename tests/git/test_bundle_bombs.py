"""A bundle that becomes far too many files, or far too large ones, is not taken."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from helmsman.errors import WorktreeError
from helmsman.git import bundles
from helmsman.git.command import find_git
from helmsman.testing.repository import make_repository

pytestmark = [pytest.mark.needs_git, pytest.mark.timeout(100)]


def git(place: Path, *words: str, given: str = "") -> str:
    return subprocess.run(
        ["git", *words], cwd=place, input=given, capture_output=True, text=True, check=True
    ).stdout.strip()


def bundled(place: Path, tree: str, into: Path) -> str:
    """A commit of a tree, in a bundle that builds on nothing."""
    named = ("-c", "user.name=x", "-c", "user.email=x@x")
    commit = git(place, *named, "commit-tree", "-m", "bomb", tree)
    found = find_git(place, into.parent)
    assert found is not None
    assert bundles.write_bundle(found, commit, [], into, 1024 * 1024)
    return commit


@pytest.mark.parametrize("kind", ["files", "size", "total"])
def test_a_bundle_that_becomes_far_more_than_it_is_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = make_repository(tmp_path / "here"), make_repository(tmp_path / "there")
    content = "x" * (200_000 if kind != "files" else 1)
    tree = git(here, "mktree", given=f"100644 blob {git(here, 'hash-object', '-w', '--stdin', given=content)}\tx\n")
    for _ in range(9 if kind == "files" else 1):  # 10 ** 9 files in ten objects
        tree = git(here, "mktree", given="".join(f"040000 tree {tree}\tf{number}\n" for number in range(10)))
    if kind == "size":
        monkeypatch.setattr(bundles, "_LARGEST_FILE", 100_000)
    if kind == "total":
        monkeypatch.setattr(bundles, "_MOST_BYTES", 1_000_000)
    if kind == "files":
        monkeypatch.setattr(bundles, "_MOST_LISTED", 4 * 1024 * 1024)
    bundle = tmp_path / "bundle"
    commit = bundled(here, tree, bundle)
    assert bundle.stat().st_size < 10_000
    (tmp_path / "state").mkdir()
    found = find_git(there, tmp_path / "state")
    assert found is not None
    with pytest.raises(WorktreeError, match="not taken"):
        bundles.take_bundle(found, bundle, commit)
    assert not found.has(f"{commit}^{{commit}}")


def _head(kind: int, size: int) -> bytes:
    found, size = [kind << 4 | size & 15], size >> 4
    while size:
        found[-1] |= 0x80
        found.append(size & 0x7F)
        size >>= 7
    return bytes(found)


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_a_delta_of_some_bytes_that_becomes_gigabytes_is_refused(tmp_path: Path) -> None:
    """Git would take as much memory, and the machine with it."""
    base, times = b"x" * 0x10000, 3 * 2**30 // 0x10000
    delta = _number(len(base)) + _number(len(base) * times) + b"\x80" * times  # each copies all of the base
    name = hashlib.sha1(b"blob %d\0" % len(base) + base, usedforsecurity=False).digest()
    objects = _head(3, len(base)) + zlib.compress(base) + _head(7, len(delta)) + name + zlib.compress(delta)
    pack = b"PACK" + struct.pack(">II", 2, 2) + objects
    commit, bundle = "a" * 40, tmp_path / "bundle"
    bundle.write_bytes(
        b"# v2 git bundle\n"
        + f"{commit} {bundles.NAME}\n\n".encode()
        + pack
        + hashlib.sha1(pack, usedforsecurity=False).digest()
    )
    assert bundle.stat().st_size < 1000
    (tmp_path / "state").mkdir()
    found = find_git(make_repository(tmp_path / "there"), tmp_path / "state")
    assert found is not None
    with pytest.raises(WorktreeError, match="Out of memory"):
        bundles.take_bundle(found, bundle, commit)
