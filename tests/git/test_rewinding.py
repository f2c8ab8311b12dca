"""Snapshots of a working tree before turns, and files that are taken back to one, with real git."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helmsman.errors import ApplyConflict, WorktreeError
from helmsman.git import command as base_git
from helmsman.git import turn_snapshots
from helmsman.git.command import Git, find_git
from helmsman.git.patches import settle_writes
from helmsman.git.snapshot import SizeLimits, Snapshot
from helmsman.git.turn_snapshots import (
    FilesRewind,
    RewindTarget,
    SnapshotPlace,
    TurnSnapshot,
    forget_snapshots,
    plan_rewind,
    read_snapshots,
    rewind_files,
    state_now,
    take_after,
    take_before,
)
from helmsman.testing.repository import git, make_repository
from tests.git.contents import content

pytestmark = pytest.mark.needs_git

SESSION = "session/1"


@pytest.fixture
def place(main: Path, state_dir: Path) -> Git:
    return located(main, state_dir)


def located(root: Path, state_dir: Path) -> Git:
    found = find_git(root, state_dir)
    assert found is not None
    return found


def snapshot(place: Git, task: str = "T-1") -> TurnSnapshot:
    take_before(SnapshotPlace(git=place, session_id=SESSION), task)
    known = read_snapshots(place.place, SESSION)
    assert known is not None
    found = known.of_task(task)
    assert found is not None
    return found


def rewind(place: Git, wanted: Snapshot, after: str | None = None) -> FilesRewind:
    (done,) = rewind_files([target(place, wanted, after)], lambda _: None)
    return done


def target(place: Git, wanted: Snapshot, after: str | None = None) -> RewindTarget:
    return RewindTarget(place=SnapshotPlace(git=place, session_id=SESSION), wanted=wanted, after=after)


def not_files(root: Path) -> tuple[bytes, str, str]:
    """What a snapshot and a rewind leave alone: the index, HEAD and all references that are not ours."""
    references = git(root, "for-each-ref", "refs/heads", "refs/tags", "refs/stash")
    return (root / ".git" / "index").read_bytes(), (root / ".git" / "HEAD").read_text(encoding="utf-8"), references


def test_a_snapshot_has_all_files_after_a_hub_was_killed_in_the_middle_of_one(
    main: Path, place: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    snapshot(place)
    (main / "new.txt").write_text("new\n", encoding="utf-8")
    before = content(main)
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(turn_snapshots, "replace_file", die)
        take_before(SnapshotPlace(git=place, session_id=SESSION), "T-2")
    found = snapshot(place, "T-3")
    (main / "new.txt").unlink()
    rewind(place, found.before)
    assert content(main) == before


def test_all_kinds_of_files_come_back_and_the_rewind_is_taken_back(main: Path, place: Git) -> None:
    (main / "new\nline.txt").write_text("odd\n", encoding="utf-8")
    (main / "link").symlink_to("poem.txt")
    (main / "staged.txt").write_text("staged\n", encoding="utf-8")
    git(main, "add", "staged.txt")
    (main / "picture").unlink()
    (main / "kept.log").write_text("ignored\n", encoding="utf-8")
    before, untouched = content(main), not_files(main)
    first = snapshot(place)
    assert not_files(main) == untouched
    assert git(main, "log", "--all", "--format=%s").split("\n")[0] == "Files"  # no log shows it
    (main / "poem.txt").write_text("gone\n", encoding="utf-8")
    (main / "run.sh").chmod(0o755)
    (main / "link").unlink()
    (main / "link").mkdir()
    (main / "link" / "inside").write_text("x\n", encoding="utf-8")
    (main / "new\nline.txt").unlink()
    (main / "pack" / "inner.txt").unlink()
    (main / "pack").rmdir()
    (main / "pack").write_text("a file now\n", encoding="utf-8")
    (main / "made" / "deep").mkdir(parents=True)
    (main / "made" / "deep" / "new.txt").write_text("1\n2\n", encoding="utf-8")
    take_after(SnapshotPlace(git=place, session_id=SESSION), "T-1")
    (main / "by hand.txt").write_text("a person\n", encoding="utf-8")
    known = read_snapshots(place.place, SESSION)
    assert known is not None
    later = content(main)
    plan = plan_rewind(target(place, first.before, known.turns[0].after))
    assert content(main) == later
    assert plan.changed_since == ("by hand.txt",)
    lines = {file.path: (file.kind, file.added, file.removed) for file in plan.diff.files}
    assert lines["made/deep/new.txt"] == ("deleted", 0, 2)
    assert lines["poem.txt"] == ("modified", 20, 1)
    done = rewind(place, first.before)
    assert done.diff.digest == plan.diff.digest
    assert content(main) == before
    assert not (main / "made").exists()
    assert rewind(place, first.before).diff.patch == b""
    rewind(place, done.now)
    assert content(main) == later
    assert not_files(main) == untouched


def test_a_rewind_leaves_files_that_no_snapshot_holds_and_names_them(
    main: Path, place: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_snapshots, "_LIMITS", SizeLimits(largest=1000, most=10_000, takes="a snapshot takes"))
    (main / "large.bin").write_bytes(b"x" * 2000)
    (main / "grows.bin").write_bytes(b"x")
    (main / "secret.env").write_text("first\n", encoding="utf-8")
    git(
        main,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        str(make_repository(tmp_path / "sub")),
        "sub",
    )
    first = snapshot(place)
    assert [*first.before.left_out] == ["large.bin"]
    (main / "large.bin").write_bytes(b"small by now")
    (main / "grows.bin").write_bytes(b"x" * 2000)
    (main / ".gitignore").write_text("*.log\n*.env\n", encoding="utf-8")
    (main / "secret.env").write_text("second\n", encoding="utf-8")
    git(main / "sub", "commit", "--quiet", "--allow-empty", "--message=inside")
    make_repository(main / "nested")
    before = content(main)
    plan = rewind(place, first.before)
    assert plan.left == ("grows.bin", "large.bin", "sub")
    assert plan.diff.nested == ("nested",)
    assert (main / "large.bin").read_bytes() == b"small by now"
    assert len((main / "grows.bin").read_bytes()) == 2000
    assert (main / "nested" / ".git").is_dir()
    assert (main / "secret.env").read_text(encoding="utf-8") == "first\n"
    rewind(place, plan.now)
    assert content(main) == before  # also what git ignored when it was taken back


def test_a_second_snapshot_reads_only_what_has_changed(main: Path, place: Git) -> None:
    for number in range(500):
        (main / f"untracked-{number}.txt").write_text(f"{number}\n", encoding="utf-8")
    first = snapshot(place)
    index = next((place.place / "snapshots").glob("tree-*")) / "index"
    version = index.stat().st_mtime_ns
    second = snapshot(place, "T-2")
    assert second.before == first.before
    assert index.stat().st_mtime_ns == version  # nothing was read again
    (main / "untracked-7.txt").write_text("changed\n", encoding="utf-8")
    git(main, "add", "--force", "untracked-8.txt")
    third = snapshot(place, "T-3")
    assert third.before.tree != first.before.tree
    plan = plan_rewind(target(place, first.before))
    assert [file.path for file in plan.diff.files] == ["untracked-7.txt"]
    assert plan.changed_since is None


def test_of_a_tree_in_which_nothing_has_changed_no_git_is_asked(
    main: Path, place: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_snapshots, "_SETTLED_NS", 0)
    (main / "empty").mkdir()
    (main / ".git" / "info").mkdir(exist_ok=True)
    first = snapshot(place)
    take_after(SnapshotPlace(git=place, session_id=SESSION), "T-1")
    with monkeypatch.context() as without_git:
        without_git.setattr(base_git, "_run", None)
        second = snapshot(place, "T-2")
        take_after(SnapshotPlace(git=place, session_id=SESSION), "T-2")
    assert (second.before, second.head) == (first.before, first.head)

    def edit_unseen() -> None:
        before = (main / "poem.txt").stat()
        (main / "poem.txt").write_bytes((main / "poem.txt").read_bytes().swapcase())
        os.utime(main / "poem.txt", ns=(before.st_atime_ns, before.st_mtime_ns))

    changes: tuple[Callable[[], object], ...] = (
        edit_unseen,
        lambda: (main / "run.sh").chmod(0o755),
        lambda: (main / "empty" / "new.txt").write_text("new\n", encoding="utf-8"),
        lambda: (main / ".git" / "info" / "exclude").write_text("new.txt\n", encoding="utf-8"),
        lambda: (main / "picture").unlink(),
    )
    trees = {first.before.tree}
    for number, change in enumerate(changes):
        change()
        taken = snapshot(place, f"T-1{number}")
        take_after(SnapshotPlace(git=place, session_id=SESSION), f"T-1{number}")
        with state_now(place) as (_, now, _):
            assert taken.before == now
        trees.add(now.tree)
    assert len(trees) == 5  # what is ignored by now stays, as it was seen before


@pytest.mark.parametrize("changed", [False, True])
def test_a_snapshot_that_git_has_pruned_is_taken_again(
    main: Path, place: Git, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    monkeypatch.setattr(turn_snapshots, "_SETTLED_NS", 0)
    (main / "new.txt").write_text("known to no commit\n", encoding="utf-8")
    first = snapshot(place)
    take_after(SnapshotPlace(git=place, session_id=SESSION), "T-1")
    forget_snapshots(place.place, SESSION)
    git(main, "prune", "--expire=now")
    assert not place.has(f"{first.before.tree}^{{tree}}")
    if changed:
        (main / "other.txt").write_text("other\n", encoding="utf-8")
    second = snapshot(place, "T-2")
    assert changed is (second.before.tree != first.before.tree)
    (main / "new.txt").unlink()
    rewind(place, second.before)
    assert (main / "new.txt").read_text(encoding="utf-8") == "known to no commit\n"


def test_repositories_in_odd_states(tmp_path: Path, state_dir: Path, main: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    place = located(empty, state_dir)
    first = snapshot(place)
    assert first.head is None
    (empty / "a.txt").write_text("a\n", encoding="utf-8")
    rewind(place, first.before)
    assert not (empty / "a.txt").exists()
    forget_snapshots(state_dir, SESSION)
    # In the middle of a merge with conflicts, on no branch, with a sparse checkout.
    git(main, "checkout", "--quiet", "--detach")
    git(main, "sparse-checkout", "set", "--no-cone", "/*", "!/pack/")
    (main / "poem.txt").write_text("ours\n", encoding="utf-8")
    git(main, "commit", "--quiet", "--all", "--message=ours")
    ours = git(main, "rev-parse", "HEAD").strip()
    git(main, "checkout", "--quiet", "main")
    (main / "poem.txt").write_text("theirs\n", encoding="utf-8")
    git(main, "commit", "--quiet", "--all", "--message=theirs")
    with pytest.raises(subprocess.CalledProcessError):
        git(main, "merge", "--quiet", ours)
    before, untouched = content(main), not_files(main)
    place = located(main, state_dir)
    first = snapshot(place)
    assert first.head == git(main, "rev-parse", "HEAD").strip()
    (main / "poem.txt").write_text("resolved\n", encoding="utf-8")
    (main / "made.txt").write_text("new\n", encoding="utf-8")
    plan = rewind(place, first.before)
    assert {file.path for file in plan.diff.files} == {"poem.txt", "made.txt"}
    assert content(main) == before
    assert not (main / "pack").exists()
    assert not_files(main) == untouched
    assert "<<<<<<<" in (main / "poem.txt").read_text(encoding="utf-8")


def test_nothing_of_the_repository_is_run(main: Path, place: Git, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 >> {ran}\ncat\n", encoding="utf-8")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "filter.evil.clean", "filter.evil.smudge", "diff.evil.textconv"):
        git(main, "config", key, str(program))
    hooks = main / ".git" / "hooks"
    for folder in (hooks, main / ".git" / "info"):
        folder.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-index-change", "post-checkout", "pre-auto-gc"):
        (hooks / name).write_bytes(program.read_bytes())
        (hooks / name).chmod(0o755)
    (main / ".git" / "info" / "attributes").write_text("*.txt diff=evil\n", encoding="utf-8")
    first = snapshot(place)
    (main / "poem.txt").write_text("changed\n", encoding="utf-8")
    rewind(place, first.before)
    forget_snapshots(place.place, SESSION)
    assert not ran.exists()
    (main / ".git" / "info" / "attributes").write_text("*.txt filter=evil\n", encoding="utf-8")
    (main / "poem.txt").write_text("changed\n", encoding="utf-8")
    with pytest.raises(WorktreeError, match="filter 'evil'"):
        snapshot(place)
    assert not ran.exists()


def test_snapshots_are_kept_for_the_last_turns_and_go_with_their_session(
    main: Path, place: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_snapshots, "MOST_TURNS", 2)
    trees = []
    for number in range(4):
        (main / "poem.txt").write_text(f"{number}\n", encoding="utf-8")
        trees.append(snapshot(place, f"T-{number}").before.tree)
        if number == 1:
            git(main, "pack-refs", "--all")
    known = read_snapshots(place.place, SESSION)
    assert known is not None
    assert [turn.task_id for turn in known.turns] == ["T-2", "T-3"]
    ours = git(main, "for-each-ref", "--format=%(refname) %(objecttype)", "refs/helmsman").split("\n")[:-1]
    assert sorted(line.rpartition("/")[2] for line in ours) == sorted(f"{tree} tree" for tree in trees[2:])
    git(main, "gc", "--quiet", "--prune=now")
    rewind(place, known.turns[0].before)
    assert (main / "poem.txt").read_text(encoding="utf-8") == "2\n"
    take_before(SnapshotPlace(git=place, session_id=SESSION), "late", is_in_time=lambda: False)
    assert read_snapshots(place.place, SESSION) == known
    forget_snapshots(place.place, SESSION)
    assert git(main, "for-each-ref", "refs/helmsman") == ""
    assert read_snapshots(place.place, SESSION) is None
    monkeypatch.setattr(turn_snapshots, "_LIMITS", SizeLimits(largest=1000, most=10, takes="a snapshot takes"))
    (main / "data").write_bytes(b"x" * 11)
    with pytest.raises(WorktreeError, match="\\.gitignore"):
        snapshot(place)


def test_a_rewind_that_cannot_be_is_refused_and_one_that_is_killed_is_put_back(main: Path, place: Git) -> None:
    first = snapshot(place)
    (main / "poem.txt").write_text("later\n", encoding="utf-8")
    (main / "pack" / "inner.txt").unlink()
    (main / "pack" / "x.log").write_text("ignored\n", encoding="utf-8")
    (main / "pack" / "inner.txt").mkdir()
    (main / "pack" / "inner.txt" / "x.log").write_text("ignored\n", encoding="utf-8")
    before = content(main)
    with pytest.raises(ApplyConflict, match="directory with other files"):
        rewind(place, first.before)
    assert content(main) == before
    (main / "pack" / "inner.txt" / "x.log").unlink()
    before = content(main)
    program = (
        "import json, os, sys; from pathlib import Path\n"
        "from helmsman.git import patches; from helmsman.git.command import find_git\n"
        "from helmsman.git.turn_snapshots import RewindTarget, SnapshotPlace, rewind_files\n"
        "from helmsman.git.snapshot import Snapshot\n"
        "put = patches._Journal._put\n"
        "def killed(*args):\n    put(*args)\n    os._exit(9)\n"
        "patches._Journal._put = killed\n"
        "git = find_git(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "place = SnapshotPlace(git=git, session_id='')\n"
        "rewind_files([RewindTarget(place=place, wanted=Snapshot(tree=sys.argv[3]), after=None)], lambda _: None)\n"
    )
    arguments = [sys.executable, "-c", program, str(main), str(place.place), first.before.tree]
    assert subprocess.run(arguments, check=False, timeout=60).returncode == 9
    assert content(main) != before
    settle_writes(place.place)  # as the next hub does
    assert content(main) == before
    rewind(place, first.before)
    assert (main / "poem.txt").read_text(encoding="utf-8").startswith("line 1\n")
