"""The GitHub guide on real repositories in every state of readiness."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.capabilities.github_guide import Guide, GuideStep, github_guide, setup_script
from helmsman.testing import git

pytestmark = pytest.mark.needs_git


def step(guide: Guide, title: str) -> GuideStep:
    return next(step for step in guide.steps if title in step.title)


def states(guide: Guide) -> dict[str, str]:
    return {step.title.split()[0]: step.state for step in guide.steps}


@pytest.fixture
def published(git_repo: Path) -> Path:
    """A repository whose remote on GitHub is known to have everything."""
    git(git_repo, "remote", "add", "origin", "git@github.com:owner/name.git")
    git(git_repo, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(git_repo, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    return git_repo


def test_a_place_without_a_repository_begins_at_the_beginning(tmp_path: Path) -> None:
    guide = github_guide(tmp_path, state_dir=tmp_path.with_name("state"))

    assert "git init" in step(guide, "git repository").text
    assert "There is no remote" in step(guide, "on GitHub").text
    assert states(guide)["A"] == "todo"


def test_a_repository_without_a_commit_needs_one(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=trunk")

    guide = github_guide(tmp_path, state_dir=tmp_path.with_name("state"))

    assert "no commit" in step(guide, "git repository").text
    assert "The default branch is `trunk`." in step(guide, "pushed").text


def test_a_repository_that_has_everything_leaves_only_what_cannot_be_seen(published: Path) -> None:
    (published / "AGENTS.md").write_text("Run the tests.\n", encoding="utf-8")
    (published / ".github" / "workflows").mkdir(parents=True)
    (published / ".github" / "workflows" / "ci.yml").write_text("on: [push, pull_request]\n", encoding="utf-8")
    git(published, "add", "--all")
    git(published, "commit", "--quiet", "--message=Ready")
    git(published, "update-ref", "refs/remotes/origin/main", "HEAD")

    guide = github_guide(published, environments=["site"], state_dir=published.with_name("state"))

    assert [found.title for found in guide.steps if found.state != "done"] == ["GitHub connected to Codex"]
    assert "The default branch is `main`." in step(guide, "pushed").text
    assert step(guide, "Checks").text == "Run on pull requests: .github/workflows/ci.yml."
    assert "owner/name" in guide.text
    assert "1 of 7 steps are open" in guide.text
    assert "site" in step(guide, "environment").text


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("git@github.com:owner/name.git", "owner/name"),
        ("https://github.com/owner/name", "owner/name"),
        ("https://github.com/owner/name.git/", "owner/name"),
        ("ssh://git@ssh.github.com:443/owner/name.git", "owner/name"),
        ("https://GitHub.com/owner/na.me.git", "owner/na.me"),
        ("git@gitlab.com:owner/name.git", None),
        ("https://github.com.evil.example/owner/name", None),
        ("https://evil.example/github.com/owner/name", None),
        ("/srv/git/name.git", None),
        ("C:/repos/name.git", None),
    ],
)
def test_a_remote_is_on_github_or_not(git_repo: Path, url: str, name: str | None) -> None:
    git(git_repo, "remote", "add", "origin", url)

    found = step(github_guide(git_repo, state_dir=git_repo.with_name("state")), "on GitHub")

    assert found.state == ("todo" if name is None else "done")
    assert name is None or found.text.startswith(f"{name} (remote")


def test_a_remote_on_github_counts_before_origin(git_repo: Path) -> None:
    git(git_repo, "remote", "add", "origin", "https://gitlab.com/owner/name.git")
    git(git_repo, "remote", "add", "mirror", "https://github.com/owner/name.git")

    assert (
        "remote `mirror`: https://github.com/owner/name.git"
        in step(github_guide(git_repo, state_dir=git_repo.with_name("state")), "on GitHub").text
    )


def test_a_login_in_the_remote_does_not_come_out(git_repo: Path) -> None:
    git(git_repo, "remote", "add", "origin", "https://me:ghp_secretsecretsecret@github.com/owner/name.git")

    guide = github_guide(git_repo, state_dir=git_repo.with_name("state"))

    assert "ghp_" not in guide.text
    assert "https://github.com/owner/name.git" in guide.text


def test_changes_that_the_cloud_does_not_see_are_reported(published: Path) -> None:
    pushed = step(github_guide(published, state_dir=published.with_name("state")), "pushed")
    (published / "new.txt").write_text("new\n", encoding="utf-8")
    uncommitted = step(github_guide(published, state_dir=published.with_name("state")), "pushed")
    git(published, "add", "new.txt")
    git(published, "commit", "--quiet", "--message=New")
    unpushed = step(github_guide(published, state_dir=published.with_name("state")), "pushed")
    git(published, "switch", "--quiet", "--create", "feature")
    new_branch = step(github_guide(published, state_dir=published.with_name("state")), "pushed")
    git(published, "switch", "--quiet", "--detach")
    detached = step(github_guide(published, state_dir=published.with_name("state")), "pushed")

    assert pushed.state == "done"
    assert (uncommitted.state, "uncommitted changes: 1 file." in uncommitted.text) == ("todo", True)
    assert "1 unpushed commit." in unpushed.text
    assert "git push --set-upstream origin feature" in new_branch.text
    assert (detached.state, "No branch is checked out" in detached.text) == ("unseen", True)


@pytest.mark.parametrize(
    ("files", "script"),
    [
        ([], None),
        (["pyproject.toml"], 'pip install -e "."'),
        (["pyproject.toml", "uv.lock"], "pip install uv && uv sync"),
        (["requirements.txt", "package.json"], "pip install -r requirements.txt\nnpm install"),
        (["package.json", "package-lock.json"], "npm ci"),
        (["package.json", "pnpm-lock.yaml"], "corepack enable && pnpm install --frozen-lockfile"),
        (["Cargo.toml", "go.mod"], "cargo fetch\ngo mod download"),
    ],
)
def test_the_set_up_script_fits_what_lies_there(tmp_path: Path, files: list[str], script: str | None) -> None:
    for name in files:
        (tmp_path / name).touch()

    assert setup_script(tmp_path) == script


def test_an_extra_for_developers_is_installed(tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text("[project.optional-dependencies]\ntest = ['pytest']\n", encoding="utf-8")
    assert setup_script(tmp_path) == 'pip install -e ".[test]"'
    pyproject.write_text("project = ] broken", encoding="utf-8")
    assert setup_script(tmp_path) == 'pip install -e "."'


def test_the_script_and_the_place_to_put_it_are_in_the_guide(published: Path) -> None:
    (published / "go.mod").touch()

    found = step(github_guide(published, state_dir=published.with_name("state")), "environment")

    assert found.state == "todo"
    assert "    go mod download\n" in found.text
    assert "https://chatgpt.com/codex/settings/environments" in found.text
    assert "owner/name" in found.text


def test_checks_are_found_wherever_they_are(git_repo: Path) -> None:
    assert "No CI" in step(github_guide(git_repo, state_dir=git_repo.with_name("state")), "Checks").text
    (git_repo / ".gitlab-ci.yml").touch()
    assert "GitLab CI" in step(github_guide(git_repo, state_dir=git_repo.with_name("state")), "Checks").text
    (git_repo / ".github" / "workflows").mkdir(parents=True)
    (git_repo / ".github" / "workflows" / "release.yaml").write_text("on: push\n", encoding="utf-8")
    assert (
        "none runs on `pull_request`"
        in step(github_guide(git_repo, state_dir=git_repo.with_name("state")), "Checks").text
    )


def test_a_directory_inside_tells_of_the_whole_repository(published: Path) -> None:
    (published / "deep" / "down").mkdir(parents=True)

    for inside in (published / "deep" / "down", published / "not" / "there"):
        assert github_guide(inside, state_dir=inside.with_name("state")).text.startswith("# owner/name: ready")
