"""A working tree packed here and placed elsewhere is the same tree; what was done to it comes back; and nothing of either
runs a program or gets where it does not belong, whoever made it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helmsman.base.structs import replace
from helmsman.errors import (
    ApplyConflict,
    DirtyTree,
    InvalidInput,
    WorkspaceIncomplete,
    WorkspaceTooLarge,
    WorktreeError,
)
from helmsman.git import lifecycle, remote_trees, tree_changes
from helmsman.git.bundles import MB, Limits, PackedTree, Parts, digest_of, is_fetchable, packing
from helmsman.git.remote_trees import (
    RemoteTree,
    apply_result,
    diff_of_result,
    find_remote_tree,
    forget_remote_tree,
    known_commits,
    pack_result,
    place,
    remove_workspace,
    take_result,
    write_remote_tree,
)
from helmsman.testing.repository import git
from tests.git.test_hostile_content import set_traps, sprung, trap

__all__ = ["trap"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs_git,
    pytest.mark.skipif(os.name != "posix", reason="machines are reached from these only"),
]

LIMITS = Limits(total=64 * MB, file=MB)


def said(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def content(root: Path) -> dict[str, tuple[int, bytes]]:
    """All files below a directory but git's own: what kind, and what is in them."""
    found = {}
    for path in root.rglob("*"):
        name = os.fsdecode(os.fsencode(path.relative_to(root)))
        if name.split("/")[0] != ".git" and (path.is_symlink() or path.is_file()):
            data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            found[name] = (path.lstat().st_mode & 0o120100, data)
    return found


def sent(
    main: Path, state_dir: Path, there: Path, known: tuple[str, ...] = ()
) -> tuple[remote_trees.Placed, RemoteTree]:
    with packing(main, state_dir, LIMITS) as packer:
        workspace, parts = packer.pack(known)
        found = place(workspace, parts, there)
    away = RemoteTree(
        id=workspace.id,
        host="build",
        repository=packer.work_tree,
        git_dir=packer.git_dir,
        base=workspace.commit,
        state_dir=state_dir,
        sent_at=datetime.now(UTC),
        session_id="0192-aaaa",
    )
    write_remote_tree(away)
    return found, away


def make_untidy(main: Path) -> None:
    (main / "staged").write_text("staged\n", encoding="utf-8")
    git(main, "add", "staged")
    (main / "poem.txt").write_text("changed\n", encoding="utf-8")
    (main / "picture").unlink()
    (main / "run.sh").chmod(0o755)
    (main / "out").symlink_to("/etc")
    (main / "odd\nname \udcff\t'x'").write_bytes(b"odd\0")
    (main / ".gitignore").write_text("*.log\n.env\n", encoding="utf-8")
    (main / "noise.log").write_text("noise", encoding="utf-8")
    (main / ".env").write_text("TOKEN=1", encoding="utf-8")
    (main / ".worktreeinclude").write_text(".env\n", encoding="utf-8")


def test_a_tree_goes_as_it_is_and_what_was_done_to_it_comes_back(main: Path, state_dir: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    make_untidy(main)
    before = said(main, "status", "--porcelain"), said(main, "rev-parse", "HEAD")
    (main / "inner").mkdir()
    git(main / "inner", "init", "--quiet")
    found, away = sent(main, state_dir, there)
    assert (said(main, "status", "--porcelain", "--", ".", ":!inner"), said(main, "rev-parse", "HEAD")) == before
    assert content(found.path) == {
        name: what for name, what in content(main).items() if name != "noise.log" and not name.startswith("inner/")
    }
    assert any("inner" in note for note in found.workspace.notes)
    assert any(".env" in note for note in found.workspace.notes)

    tree = lifecycle.create(found.directory, there)
    assert tree.included == (".env",)
    (tree.path / "poem.txt").write_text("changed\nand more\n", encoding="utf-8")
    (tree.path / "new").write_text("by the agent\n", encoding="utf-8")
    git(tree.path, "add", "new")
    git(tree.path, "-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--message=By the agent")
    (tree.path / "staged").unlink()
    result = pack_result(tree, tmp_path / "result", LIMITS)
    away = take_result(away, result.commit, tmp_path / "result")
    diff = diff_of_result(away)
    assert diff == tree_changes.diff(tree)
    assert {file.path for file in diff.files} == {"poem.txt", "new", "staged"}
    assert "By the agent" in said(main, "log", "--format=%s", result.commit)
    assert said(main, "branch", "--format=%(refname)").split() == ["refs/heads/main"]

    (main / "run.sh").write_text("mine\n", encoding="utf-8")
    with pytest.raises(DirtyTree, match=r"run\.sh"):
        apply_result(away)
    (main / "new").write_text("mine\n", encoding="utf-8")
    with pytest.raises(ApplyConflict, match="new"):
        apply_result(away, allow_dirty=True)
    assert (main / "poem.txt").read_text(encoding="utf-8") == "changed\n"
    (main / "new").unlink()
    applied = apply_result(away, allow_dirty=True)
    assert {file.path for file in applied.files} == {"poem.txt", "new", "staged"}
    assert (main / "poem.txt").read_text(encoding="utf-8") == "changed\nand more\n"
    assert (main / "run.sh").read_text(encoding="utf-8") == "mine\n"
    assert apply_result(away, allow_dirty=True).files == ()  # once more does no harm
    assert find_remote_tree(state_dir, "0192-aaa") == (away,)
    forget_remote_tree(away)
    assert "refs/helmsman" not in said(main, "for-each-ref")
    lifecycle.discard(tree)
    remove_workspace(there, found.workspace.id)
    assert not found.path.exists()


def test_only_what_is_missing_is_sent(main: Path, state_dir: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    with packing(main, state_dir, LIMITS) as packer:
        whole, parts = packer.pack()
        assert parts.bundle is not None
        place(whole, parts, there)
        said(main, "bundle", "verify", str(parts.bundle))  # it is one of git's own
        size = parts.bundle.stat().st_size
    (main / "poem.txt").write_text("another\n", encoding="utf-8")
    with packing(main, state_dir, LIMITS) as packer:
        known = known_commits(there, packer.workspace.repository, packer.candidates())
        assert set(known) == set(said(main, "rev-list", "HEAD").split())
        thin, parts = packer.pack(known)
        assert parts.bundle is not None
        assert parts.bundle.stat().st_size < size / 2
        with pytest.raises(WorkspaceIncomplete):
            place(thin, parts, tmp_path / "elsewhere")
        found = place(thin, parts, there)
        assert (found.path / "poem.txt").read_text(encoding="utf-8") == "another\n"
        assert place(thin, Parts(None, None), there) == found  # asked again
    git(main, "checkout", "--quiet", "poem.txt")
    with packing(main, state_dir, LIMITS) as packer:
        assert packer.pack(known)[1].bundle is None
    shallow = tmp_path / "shallow"
    said(tmp_path, "clone", "--quiet", "--depth=1", main.as_uri(), str(shallow))
    found, _ = sent(shallow, state_dir, there)
    assert content(found.path) == content(main)
    assert "history" in found.workspace.notes[0]


def test_a_tree_that_was_pushed_is_fetched_from_there(
    main: Path, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, own = tmp_path / "there", tmp_path / "gitconfig"
    said(tmp_path, "clone", "--quiet", "--bare", str(main), str(tmp_path / "remote.git"))
    own.write_text(f'[url "{tmp_path.as_uri()}/"]\n\tinsteadOf = https://git.example/\n', encoding="utf-8")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(own))
    git(main, "remote", "add", "origin", "https://me:secret@git.example/remote.git")
    git(main, "update-ref", "refs/remotes/origin/main", "HEAD")
    with packing(main, state_dir, LIMITS) as packer:
        workspace, parts = packer.pack(from_remote=True)
    assert (workspace.remote, workspace.branch, parts) == ("https://git.example/remote.git", "main", Parts(None, None))
    with pytest.raises(WorkspaceIncomplete):  # only what comes over the network may be fetched
        place(workspace, parts, there)
    monkeypatch.setattr(remote_trees, "PROTOCOLS", "file")
    assert content(place(workspace, parts, there).path) == content(main)
    (main / "new").write_text("not pushed\n", encoding="utf-8")
    with packing(main, state_dir, LIMITS) as packer:
        thin, parts = packer.pack(from_remote=True)
        assert (thin.remote, thin.branch) == ("https://git.example/remote.git", "main")
        assert content(place(thin, parts, tmp_path / "third").path) == content(main)
        monkeypatch.setattr(remote_trees, "PROTOCOLS", "https:ssh")
        with pytest.raises(WorkspaceIncomplete):
            place(thin, parts, tmp_path / "fourth")
    for address in (
        "ext::sh -c id",
        "file:///etc",
        "/etc",
        "-x",
        "ssh://-oProxyCommand=x/y",
        "https://a:b@c/d",
        "a::b:c",
    ):
        assert not is_fetchable(address), address
    assert is_fetchable("git@github.com:a/b.git")


def test_files_that_are_too_large_are_named(main: Path, state_dir: Path) -> None:
    (main / "data.bin").write_bytes(os.urandom(MB + 1))
    with pytest.raises(WorkspaceTooLarge, match=r"data\.bin \(1\.0 MB\)"), packing(main, state_dir, LIMITS):
        pass
    git(main, "add", "data.bin")
    git(main, "commit", "--quiet", "--message=Data")
    small = Limits(total=MB, file=MB)
    with pytest.raises(WorkspaceTooLarge, match=r"data\.bin"), packing(main, state_dir, small) as packer:
        packer.pack()
    git(main, "rm", "--quiet", "data.bin")
    git(main, "commit", "--quiet", "--message=None")
    with packing(main, state_dir, small) as packer:
        assert "history" in packer.pack()[0].notes[0]


def test_many_files_are_too_large_together(main: Path, state_dir: Path) -> None:
    for name in ("a.bin", "b.bin"):
        (main / name).write_bytes(os.urandom(MB))
    both = Limits(total=MB, file=MB)
    with pytest.raises(WorkspaceTooLarge, match=r"in all.*workspace_limit_mb"), packing(main, state_dir, both):
        pass


def test_where_there_is_no_tree_to_send_it_is_said_what_is_missing(main: Path, state_dir: Path, tmp_path: Path) -> None:
    plain, bare, empty = (tmp_path / name for name in ("plain", "bare", "empty"))
    plain.mkdir()
    said(tmp_path, "clone", "--quiet", "--bare", str(main), str(bare))
    said(tmp_path, "init", "--quiet", str(empty))
    for directory, why in (
        (plain, "not in the working tree of a git repository"),
        (bare, "a bare repository"),
        (empty, "has no commit yet, and so cannot travel. Commit first"),
    ):
        with pytest.raises(InvalidInput, match=why), packing(directory, state_dir, LIMITS):
            pass


def test_where_nothing_was_done_nothing_comes_back(main: Path, state_dir: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    found, away = sent(main, state_dir, there)
    tree = lifecycle.create(found.directory, there)
    result = pack_result(tree, tmp_path / "bundle", LIMITS)
    assert (result.commit, result.base, (tmp_path / "bundle").exists()) == (away.base, away.base, False)
    back = take_result(away, result.commit, None)
    assert diff_of_result(back).files == ()
    with pytest.raises(WorktreeError, match="is not whole"):
        take_result(away, "0" * 40, None)
    lifecycle.discard(tree)


def test_a_repository_that_is_gone_gets_nothing_back(main: Path, state_dir: Path, tmp_path: Path) -> None:
    _, away = sent(main, state_dir, tmp_path / "there")
    main.rename(tmp_path / "moved")
    with pytest.raises(WorktreeError, match="is gone, so nothing can be brought back"):
        take_result(away, away.base, None)
    with pytest.raises(WorktreeError, match="is gone or has no commit at HEAD"):
        apply_result(away)


def test_no_program_of_the_repository_is_run(main: Path, state_dir: Path, tmp_path: Path, trap: Path) -> None:
    there = tmp_path / "there"
    (main / ".gitattributes").write_text("* diff=trap merge=trap\n", encoding="utf-8")
    set_traps(main / ".git", trap, filters=False)
    git_dir = main / ".git"
    for key in ("core.sshCommand", "core.alternateRefsCommand", "uploadpack.packObjectsHook", "gpg.program"):
        subprocess.run(["git", "config", "--file", git_dir / "config", key, str(trap)], check=True)
    (main / "poem.txt").write_text("changed\n", encoding="utf-8")
    found, away = sent(main, state_dir, there)
    tree = lifecycle.create(found.directory, there)
    (tree.path / "poem.txt").write_text("again\n", encoding="utf-8")
    result = pack_result(tree, tmp_path / "result", LIMITS)
    away = take_result(away, result.commit, tmp_path / "result")
    assert apply_result(away).how == "clean"
    assert (main / "poem.txt").read_text(encoding="utf-8") == "again\n"
    (main / ".gitattributes").write_text("* filter=trap\n", encoding="utf-8")
    set_traps(git_dir, trap, filters=True)
    with pytest.raises(WorktreeError, match="filter 'trap'"), packing(main, state_dir, LIMITS):
        pass
    assert sprung(trap) == ""


def test_claims_of_another_machine_are_not_believed(main: Path, state_dir: Path, tmp_path: Path) -> None:
    there, outside = tmp_path / "there", tmp_path / "outside"
    with packing(main, state_dir, LIMITS) as packer:
        good, parts = packer.pack()
        assert parts.bundle is not None
        kept = tmp_path / "bundle"
        kept.write_bytes(parts.bundle.read_bytes())

    def refused(workspace: PackedTree, bundle: Path | None = kept, included: Path | None = None) -> None:
        if bundle is not None and bundle != kept:
            workspace = replace(workspace, digest=digest_of(bundle))
        if included is not None:
            workspace = replace(workspace, included=digest_of(included))
        with pytest.raises((InvalidInput, WorktreeError)):
            place(workspace, Parts(bundle, included), there)
        assert not list((there / "workspaces").glob("*"))
        assert not outside.exists()

    refused(replace(good, id="../../outside"))
    refused(replace(good, name="../outside"))
    refused(replace(good, repository="../../../outside"))
    refused(replace(good, directory="../.."))
    refused(replace(good, commit="HEAD"))
    refused(replace(good, commit=said(main, "rev-parse", "HEAD^{tree}").strip()))
    refused(replace(good, digest="0" * 64))
    refused(replace(good, digest=None, remote="ext::sh -c id", branch="main"), None)
    data = kept.read_bytes()
    for number, changed in enumerate(
        (
            data.replace(b" refs/helmsman/workspace\n", b" refs/heads/main\n"),
            data.replace(b"\n\n", b"\n" + good.commit.encode() + b" refs/heads/main\n\n", 1),
            data[:-40],
            b"# v2 git bundle\n" + b"-" * 5000,
            b"PACK",
        )
    ):
        bad = tmp_path / f"bad-{number}"
        bad.write_bytes(changed)
        refused(good, bad)
    # A tree with a `.git` in it, which git itself would not make of files.
    blob = subprocess.run(
        ["git", "hash-object", "-w", "--stdin"], cwd=main, input=b"x", capture_output=True, check=True
    )
    entry = f"100644 blob {blob.stdout.decode().strip()}\tconfig\n"
    inner = subprocess.run(["git", "mktree"], cwd=main, input=entry.encode(), capture_output=True, check=True)
    for name in (".git", ".GIT", ".."):
        raw = b"40000 " + name.encode() + b"\0" + bytes.fromhex(inner.stdout.decode().strip())
        made = subprocess.run(
            ["git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally"],
            cwd=main,
            input=raw,
            capture_output=True,
        )
        commit = said(main, "commit-tree", "-m", "evil", made.stdout.decode().strip()).strip()
        evil = tmp_path / f"evil-{len(name)}-{name.lower() == name}"
        pack = subprocess.run(
            ["git", "pack-objects", "--revs", "--stdout", "-q"],
            cwd=main,
            input=f"{commit}\n".encode(),
            capture_output=True,
        )
        evil.write_bytes(b"# v2 git bundle\n" + f"{commit} refs/helmsman/workspace\n\n".encode() + pack.stdout)
        refused(replace(good, commit=commit), evil)
    for number, (path, kind) in enumerate(
        (
            ("../outside", tarfile.REGTYPE),
            ("a/.git/config", tarfile.REGTYPE),
            (".GIT/config", tarfile.REGTYPE),  # the same on a system that ignores case
            ("link", tarfile.SYMTYPE),
        )
    ):
        archive = tmp_path / f"included-{number}"
        with tarfile.open(archive, "w") as written:
            member = tarfile.TarInfo(path)
            member.type, member.linkname = kind, str(outside)
            written.addfile(member, io.BytesIO())
        refused(good, included=archive)
    assert place(good, Parts(kept, None), there).path.is_dir()
