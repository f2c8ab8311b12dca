"""Whatever a repository's configuration names, no program of it runs when Helmsman asks git something. With a real git."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
import pytest

from helmsman import Helmsman
from helmsman.capabilities.github_guide import github_guide
from helmsman.capabilities.reviews import resolve, with_instructions
from helmsman.errors import HelmsmanError, WorktreeError
from helmsman.git import lifecycle, tree_changes
from helmsman.git.command import current_branch, find_git, read_settings, view_of
from helmsman.git.patches import apply_patch
from helmsman.model.options import ReviewTarget
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, patch, say
from helmsman.testing.repository import git, make_repository
from helmsman.testing.script import add

pytestmark = [pytest.mark.needs_git, pytest.mark.skipif(os.name != "posix", reason="the canary is a shell script")]

SECONDS = 60
ATTRIBUTES = "* filter=trap diff=trap merge=trap\n*.inc filter=included\n"


@dataclass(frozen=True)
class Canary:
    """A program that leaves a mark when it is run."""

    program: Path

    @property
    def song(self) -> str:
        mark = self.program.with_name("canary.song")
        return mark.read_text(encoding="utf-8") if mark.exists() else ""

    def traps(self, included: Path) -> str:
        """A configuration that names the program wherever git knows to run one."""
        run = str(self.program)
        sections = {
            "core": {
                "fsmonitor": run,
                "hooksPath": str(self.program.parent / "hooks"),
                **dict.fromkeys(("pager", "editor", "askPass", "sshCommand", "gitProxy", "alternateRefsCommand"), run),
            },
            "diff": {"external": run, "submodule": "diff", "ignoreSubmodules": "none"},
            'diff "trap"': {"textconv": run, "command": run},
            'merge "trap"': {"driver": f"{run} %A"},
            'filter "trap"': {"clean": run, "smudge": run, "process": run, "required": "true"},
            "gpg": {"program": run},
            "log": {"showSignature": "true"},
            "commit": {"gpgSign": "true"},
            "status": {"submoduleSummary": "true"},
            "submodule": {"recurse": "true"},
            "credential": {"helper": run},
            "uploadpack": {"packObjectsHook": run},
            "interactive": {"diffFilter": run},
            "sequence": {"editor": run},
            "trace2": {"eventTarget": str(self.program.parent / "canary.song")},
            'hook "trap"': {"command": run, "event": "reference-transaction"},
            'hook "trap2"': {"command": run, "event": "post-checkout"},
            "include": {"path": str(included)},
            "protocol": {"allow": "always"},
        }
        return "".join(
            f"[{section}]\n" + "".join(f'\t{key} = "{value}"\n' for key, value in values.items())
            for section, values in sections.items()
        )


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    folder = tmp_path / "cage"
    (folder / "hooks").mkdir(parents=True)
    program = folder / "canary"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> "{folder}/canary.song"\ncat\n', encoding="utf-8")
    program.chmod(0o755)
    for name in (
        "post-checkout",
        "post-index-change",
        "reference-transaction",
        "pre-commit",
        "post-merge",
        "fsmonitor",
    ):
        (folder / "hooks" / name).symlink_to(program)
    return Canary(program)


@pytest.fixture
def hostile(git_repo: Path, tmp_path: Path, canary: Canary) -> Path:
    """A repository with traps in its configuration, its attributes, its submodule, and in a bare repository in its tree."""
    library = make_repository(tmp_path / "library")
    git(git_repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    git(git_repo, "config", "--file=.gitmodules", "submodule.lib.ignore", "none")
    (git_repo / ".gitattributes").write_text("*.inc filter=included\n*.txt filter=trap\n", encoding="utf-8")
    (git_repo / "plain.md").write_text("plain\n", encoding="utf-8")
    git(git_repo, "add", ".")
    git(git_repo, "commit", "--quiet", "--message=Everything")
    included = git_repo / "included.cfg"
    included.write_text(f'[filter "included"]\n\tclean = "{canary.program}"\n', encoding="utf-8")
    planted = git_repo / "planted"
    shutil.copytree(library / ".git", planted)
    for git_dir in (git_repo / ".git", git_repo / ".git" / "modules" / "lib", planted):
        with (git_dir / "config").open("a", encoding="utf-8") as config:
            config.write(canary.traps(included))
        shutil.copytree(canary.program.parent / "hooks", git_dir / "hooks", symlinks=True, dirs_exist_ok=True)
    git(planted, "config", "--file=config", "core.bare", "false")
    git(planted, "config", "--file=config", "core.worktree", "..")
    (git_repo / ".git" / "modules" / "lib" / "info").mkdir(exist_ok=True)
    (git_repo / ".git" / "modules" / "lib" / "info" / "attributes").write_text(ATTRIBUTES, encoding="utf-8")
    for file in (git_repo / "lib" / "README.md", git_repo / "plain.md"):
        file.write_text(
            file.read_text(encoding="utf-8").swapcase(), encoding="utf-8"
        )  # as long as before: git must look
    assert canary.song == ""
    return git_repo


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


def ask_everything(place: Path, state_dir: Path) -> None:
    """Every question that Helmsman has for git about a directory; some must be refused, none may run anything."""
    for target in (
        ReviewTarget(kind="uncommitted", value=""),
        ReviewTarget(kind="base", value="main"),
        ReviewTarget(kind="commit", value="HEAD"),
    ):
        for ask in (
            lambda target=target: resolve(place, target, state_dir),
            lambda target=target: with_instructions(place, target, "look", state_dir),
        ):
            quietly(ask)
    quietly(lambda: tree_changes.diff_of_directory(place, state_dir=state_dir))
    quietly(lambda: tree_changes.diff_of_directory(place, "HEAD", state_dir=state_dir))
    github_guide(place, state_dir=state_dir)
    current_branch(place)
    new = "diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n"
    quietly(lambda: apply_patch(place, new, allow_dirty=True, state_dir=state_dir))


def quietly(ask: object) -> None:
    assert callable(ask)
    with suppress(HelmsmanError):
        ask()


@pytest.mark.parametrize("where", [".", "lib", "planted"])
@pytest.mark.parametrize("attributes", ["", ATTRIBUTES])
def test_no_question_runs_a_program(
    hostile: Path, state_dir: Path, canary: Canary, where: str, attributes: str
) -> None:
    (hostile / ".git" / "info").mkdir(exist_ok=True)
    (hostile / ".git" / "info" / "attributes").write_text(attributes, encoding="utf-8")
    ask_everything(hostile / where, state_dir)
    assert canary.song == ""


def test_a_whole_worktree_runs_no_program(hostile: Path, state_dir: Path, canary: Canary) -> None:
    tree = lifecycle.create(hostile, state_dir)
    (tree.path / "plain.md").write_text("of the worktree\n", encoding="utf-8")
    (tree.path / "new.md").write_text("new\n", encoding="utf-8")
    assert "+of the worktree" in tree_changes.diff(tree).text
    (hostile / "plain.md").write_text("plain\n", encoding="utf-8")
    tree_changes.apply(tree, allow_dirty=True)
    assert (hostile / "new.md").read_text(encoding="utf-8") == "new\n"
    ask_everything(tree.path, state_dir)
    assert lifecycle.leftovers(state_dir) == ()
    lifecycle.discard(tree)
    assert canary.song == ""


def test_a_file_that_needs_a_trap_is_refused_by_its_name(hostile: Path, state_dir: Path, canary: Canary) -> None:
    tree = lifecycle.create(hostile, state_dir)
    for name, trap in (("a.txt", "trap"), ("b.inc", "included")):
        (tree.path / name).write_text("x\n", encoding="utf-8")
        with pytest.raises(WorktreeError, match=f"{name} needs the filter '{trap}'"):
            tree_changes.diff(tree)
        (tree.path / name).unlink()
    lifecycle.discard(tree)
    assert canary.song == ""


def test_a_partial_clone_fetches_nothing(tmp_path: Path, state_dir: Path, canary: Canary) -> None:
    origin = make_repository(tmp_path / "origin")
    (origin / "big").write_text("big\n", encoding="utf-8")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "--message=Big")
    git(origin, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--no-checkout", "--filter=blob:none", f"file://{origin}", "clone")
    clone = tmp_path / "clone"
    git(clone, "config", "remote.origin.uploadpack", str(canary.program))
    with pytest.raises(WorktreeError):
        lifecycle.create(clone, state_dir)
    ask_everything(clone, state_dir)
    assert canary.song == ""


def test_a_configuration_that_changes_while_git_runs_is_not_read(
    hostile: Path, state_dir: Path, canary: Canary
) -> None:
    """What was read once is in the view: a file that the configuration includes may lie where a model can write."""
    found = find_git(hostile, state_dir)
    assert found is not None
    with found.viewed() as seen:
        (hostile / "included.cfg").write_text(f'[core]\n\tfsmonitor = "{canary.program}"\n', encoding="utf-8")
        seen.run("status")
    assert canary.song == ""


def test_nothing_but_data_is_in_a_view(hostile: Path, state_dir: Path, canary: Canary) -> None:
    state_dir.mkdir(mode=0o700)
    listed = git(hostile, "config", "-z", "--list", "--show-scope").encode()
    git_dir = hostile / ".git"
    with view_of(git_dir, git_dir, read_settings(listed), state_dir) as view:
        text = (view.directory / "config").read_text(encoding="utf-8")
        assert view.directory.stat().st_mode & 0o077 == 0
        assert not (view.directory / "hooks").exists()
        assert git(hostile, "config", "--file", str(view.directory / "config"), "core.filemode") == "true\n"
    assert str(canary.program) not in text
    assert "promisor" not in text
    assert view.refused_filters == {"trap", "included"}
    assert list(state_dir.iterdir()) == []


@pytest.mark.anyio
async def test_sessions_with_a_real_codex_run_no_program_through_helmsman(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, hostile: Path, canary: Canary
) -> None:
    """Codex asks git for itself, which is not ours to prevent: so its own song, while it works, does not count."""
    model.on("", patch(add("made.md", "made\n")), say("ok"))
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("write", cwd=hostile, worktree=True, sandbox="workspace-write")
        assert await session.wait(until="end", timeout=SECONDS)
        canary.program.with_name("canary.song").unlink(missing_ok=True)
        assert "made.md" in (await helm.extras.changes.diff(session.id)).diff.text
        (hostile / "plain.md").write_text("plain\n", encoding="utf-8")
        await helm.extras.changes.apply(session.id, allow_dirty=True)
        assert (hostile / "made.md").exists()
        await anyio.to_thread.run_sync(lambda: github_guide(hostile, state_dir=settings.state_dir))
        await helm.list()
        await helm.extras.changes.discard(session.id)
        assert canary.song == ""


def test_git_and_its_helpers_are_never_taken_from_a_repository(
    tmp_path: Path, git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a virtual environment activated, a repository's directory is the first on PATH."""
    planted, ran = git_repo / ".venv" / "bin", tmp_path / "ran"
    planted.mkdir(parents=True)
    for name in ("git", "git-lfs", "less"):
        (planted / name).write_text(f"#!/bin/sh\necho {name} >> {ran}\n")
        (planted / name).chmod(0o755)
    (tmp_path / "global").write_text('[filter "lfs"]\n\tclean = git-lfs clean\n\tsmudge = git-lfs smudge\n')
    (git_repo / ".gitattributes").write_text("* filter=lfs\n")
    (git_repo / "large").write_text("content\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "global"))
    monkeypatch.setenv("GIT_EXEC_PATH", str(planted))
    monkeypatch.setenv("PATH", f"{planted}{os.pathsep}{os.environ['PATH']}")
    git = find_git(git_repo, tmp_path / "state")
    assert git is not None
    git.run("add", "-A", accept=range(256))
    git.run("status", accept=range(256))
    assert not ran.exists()
