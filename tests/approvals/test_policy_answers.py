"""Tests of rules from answers: no broader than what was approved, and only in its place."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.approvals.policy import RuleSet, Workspace, decide
from helmsman.approvals.rule_book import prefixes_for, rule_for_always, rule_for_session, with_prefix
from helmsman.base.structs import replace
from helmsman.errors import AnswerInvalid
from helmsman.model.questions import Prompt, Question, QuestionType
from helmsman.model.rules import Rule


def ask(kind: QuestionType, **details: Any) -> Question:
    prompts = (Prompt(text="May I?", options=("approve", "deny")),)
    return Question(asker="Codex", id="q_1", type=kind, session_id="T1", turn_id="U1", prompts=prompts, details=details)


def command(
    text: str, directory: Path | str = "/nowhere/repo", sandbox: str | None = "inside", **details: Any
) -> Question:
    return ask("command_approval", command=text, directory=str(directory), sandbox=sandbox, **details)


def always(question: Question, prefix: list[str] | None = None) -> Rule:
    rule = rule_for_always(question, Workspace())
    assert rule is not None
    return rule if prefix is None else with_prefix(rule, question, Workspace(), prefix)


def is_allowed(question: Question, rule: Rule | None, workspace: Workspace | None = None) -> bool:
    assert rule is not None
    return decide(question, RuleSet(rules=(rule,)), workspace or Workspace()).effect == "allow"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / ".git" / "HEAD").touch()
    (tmp_path / "repo" / "sub").mkdir()
    return tmp_path / "repo"


# --- which prefixes are offered --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("git push", ["git push"]),
        ("git push origin main", ["git push", "git push origin main"]),
        ("ls -la src", ["ls", "ls -la src"]),
        ("ls", ["ls"]),
        ("pytest -q tests", ["pytest", "pytest -q tests"]),
        ("make test", ["make test"]),
        ("make -j4 test", ["make -j4 test"]),
        ("npm run build -- --prod", ["npm run build", "npm run build -- --prod"]),
        ("npm test", ["npm test"]),
        ("cargo build --release", ["cargo build", "cargo build --release"]),
        ("uv run pytest -q", ["uv run pytest", "uv run pytest -q"]),
        ("python -m pytest -q", ["python -m pytest", "python -m pytest -q"]),
        ("python3.12 -m pytest", ["python3.12 -m pytest"]),
        ("/bin/bash -lc 'git push origin main'", ["git push", "git push origin main"]),
        ("/bin/bash -lc 'cd sub && git push -v'", ["git push", "git push -v"]),
    ],
)
def test_a_sensible_beginning_is_offered_and_then_the_whole_command(text: str, offered: list[str]) -> None:
    assert prefixes_for(command(text), Workspace()) == [words.split(" ") for words in offered]


@pytest.mark.parametrize(
    "text",
    [
        "rm x", "rm -rf build", "sudo ls", "env ls", "xargs ls", "python x.py", "python -c 'x'", "python -m pip install x",
        "node x.js", "bash x.sh", "sh x.sh", "perl -e x", "curl https://example.org", "git", "git -c a=b push",
        "git config x", "ssh host ls", "docker run x", "npx x", "npm install x", "find . -name x", "sed -n p x",
        "./run.sh test", "uv run python x", "bundle exec ruby x", "go run x", "git submodule foreach x", "npm run",
        "npm run a/b", "python3.12 x", "/usr/bin/git push",
        "nohup ls", "timeout 5 ls", "mv a b", "cp a b", "chmod +x a", "dd if=a", "tee x", "awk x",
        "sort x", "echo hi", "pip install x", "git 'push it'", "foo 'a b'", "RM x", "cargo run x/y",
    ],
)  # fmt: skip
def test_a_prefix_that_is_too_broad_is_offered_only_as_the_whole_command(text: str) -> None:
    question = command(text)
    assert prefixes_for(question, Workspace()) == [shlex.split(text)]
    assert not is_allowed(command(text + " x"), always(question, shlex.split(text)))


@pytest.mark.parametrize(
    "question",
    [
        command("git status && git push"),
        command("git push $X"),
        command("git push > x"),
        command("A=1 git push"),
        command("cd sub"),
        command("git push", additionalPermissions={"network": {"enabled": True}}),
        command("git push", networkContext={"host": "x"}),
        command("git push \u202e"),
        ask("command_approval"),
        ask("patch_approval", paths=["/x"]),
        ask("permission_approval"),
        ask("user_input"),
        command("git push", sandbox="outside"),
        command("git push", sandbox="inside-then-outside"),
        command("git push", sandbox=None),
    ],
)
def test_no_prefix_is_offered_for_what_is_not_one_plain_command_that_stays_inside(question: Question) -> None:
    assert prefixes_for(question, Workspace()) == []


# --- for the session -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["ls", "/bin/bash -lc 'git status && rm $X > y'", "/bin/bash -lc 'cat <<EOF\nFüße\nEOF'"]
)
@pytest.mark.parametrize("make", [rule_for_session, rule_for_always])
def test_an_approved_command_is_allowed_again_in_this_directory_and_no_other(text: str, repo: Path, make: Any) -> None:
    rule = make(command(text, repo), Workspace())
    assert is_allowed(command(text, repo), rule)
    assert not is_allowed(command(text + " x", repo), rule)
    assert not is_allowed(command(text, repo.parent), rule)
    assert not is_allowed(command(text, repo / "sub"), rule)
    assert not is_allowed(command(text, repo, additionalPermissions={"x": 1}), rule)


@pytest.mark.parametrize("make", [rule_for_session, rule_for_always])
def test_a_yes_to_what_stays_inside_lets_nothing_leave(repo: Path, make: Any) -> None:
    rule = make(command("./run.sh", repo, "inside"), Workspace())
    assert rule.outside is False
    assert is_allowed(command("./run.sh", repo, "inside"), rule)
    for sandbox in ("outside", "inside-then-outside", None):
        assert not is_allowed(command("./run.sh", repo, sandbox), rule)


@pytest.mark.parametrize("make", [rule_for_session, rule_for_always])
@pytest.mark.parametrize("sandbox", ["outside", "inside-then-outside", None])
def test_a_yes_to_what_may_leave_covers_both(repo: Path, make: Any, sandbox: str | None) -> None:
    rule = make(command("./run.sh", repo, sandbox), Workspace())
    assert rule.outside is True
    for later in ("inside", "outside", "inside-then-outside", None):
        assert is_allowed(command("./run.sh", repo, later), rule)


def test_a_rule_is_for_the_directory_as_it_was_when_it_was_asked_about(repo: Path) -> None:
    link = repo.parent / "link"
    link.symlink_to(repo)
    question = command("./run.sh", link, "outside")
    rule = rule_for_session(question, Workspace())
    assert is_allowed(question, rule)
    link.unlink()
    link.symlink_to(repo / "sub")
    assert not is_allowed(question, rule)


@pytest.mark.parametrize("make", [rule_for_session, rule_for_always])
def test_a_link_in_the_place_of_the_directory_leads_no_rule_elsewhere(repo: Path, make: Any) -> None:
    question = command("npm publish", repo / "sub", "outside")
    rule = make(question, Workspace())
    (repo / "sub").rmdir()
    (repo.parent / "other").mkdir()
    (repo / "sub").symlink_to(repo.parent / "other")
    assert not is_allowed(question, rule)
    assert not is_allowed(command("npm publish", repo.parent / "other", "outside"), rule)


MORE_THAN_WORDS: list[dict[str, Any]] = [
    {"details": {"kind": "writeStdin"}},
    {"details": {"kind": "something new"}},
    {"details": {"additionalPermissions": {"network": {"enabled": True}}}},
    {"details": {"networkContext": {"host": "example.org"}}},
    {"environment": "production"},
]


@pytest.mark.parametrize("more", MORE_THAN_WORDS)
@pytest.mark.parametrize("sandbox", ["inside", "outside"])
def test_a_rule_does_not_cover_a_command_that_asks_for_more_than_to_run_here(
    repo: Path, more: dict[str, Any], sandbox: str
) -> None:
    plain = command("rm -rf dist", repo, sandbox)
    question = replace(
        plain, details={**plain.details, **more.get("details", {})}, environment=more.get("environment", "local")
    )
    written = Rule(effect="allow", command=("rm", "-rf", "dist"), outside=True, prefix=True)
    for rule in (rule_for_session(plain, Workspace()), rule_for_always(plain, Workspace()), written):
        assert is_allowed(plain, rule)
        assert not is_allowed(question, rule)
    assert rule_for_session(question, Workspace()) is None
    assert rule_for_always(question, Workspace()) is None
    denied = RuleSet(rules=(Rule(effect="deny", command=("rm", "-rf")),))
    assert decide(question, denied, Workspace()).effect == "deny"


def patch(repo: Path, *paths: str) -> Question:
    return ask("patch_approval", paths=[str(repo / path) for path in paths])


def test_files_approved_for_the_session_are_allowed_again_and_no_others(repo: Path) -> None:
    (repo / "link").symlink_to(repo / "b")
    rule = rule_for_session(patch(repo, "a", "link"), Workspace())
    assert is_allowed(patch(repo, "a"), rule)
    assert is_allowed(patch(repo, "a", "b"), rule)
    assert not is_allowed(patch(repo, "a", "c"), rule)
    assert not is_allowed(patch(repo, "a/d"), rule)


def test_files_approved_where_the_session_may_write_are_not_approved_where_it_may_not(repo: Path) -> None:
    writes = Workspace(directory=repo, writes="workspace")
    reads = Workspace(directory=repo, writes="nothing")
    inside = rule_for_session(patch(repo, "a"), writes)
    assert is_allowed(patch(repo, "a"), inside, writes)
    assert not is_allowed(patch(repo, "a"), inside, reads)
    outside = rule_for_session(patch(repo, "a"), reads)
    assert is_allowed(patch(repo, "a"), outside, reads)
    assert is_allowed(patch(repo, "a"), outside, writes)


UNRECOGNISABLE = [
    ask("permission_approval", permissions={"network": {"enabled": True}}),
    ask("user_input"),
    ask("patch_approval"),
    ask("patch_approval", paths=["/x"], grantRoot="/"),
    ask("mcp_elicitation", server="lab", tool="write", approvalKind="mcp_tool_call", mode="form"),
    ask("command_approval"),
    command("ls", networkContext={"host": "x"}),
    command("ls", additionalPermissions={"x": 1}),
    command("ls \u200b"),
    command("ls \u202e"),
    command("ls", "relative"),
]


@pytest.mark.parametrize("question", UNRECOGNISABLE)
def test_a_command_that_cannot_be_recognised_again_makes_no_rule(question: Question) -> None:
    assert rule_for_session(question, Workspace(directory=Path("/nowhere"))) is None
    assert rule_for_always(question, Workspace(directory=Path("/nowhere"))) is None


# --- for good --------------------------------------------------------------------------------------------------------


def test_a_chosen_prefix_of_what_stays_inside_is_allowed_in_this_directory(repo: Path) -> None:
    rule = always(command("git push origin main", repo / "sub"), ["git", "push"])
    assert (rule.command, rule.directory, rule.outside) == (("git", "push"), repo / "sub", False)
    assert is_allowed(command("git push --tags", repo / "sub"), rule)
    assert not is_allowed(command("git push --tags", repo / "sub", "outside"), rule)
    assert not is_allowed(command("git pull", repo / "sub"), rule)
    assert not is_allowed(command("git push", repo), rule)


@pytest.mark.parametrize("sandbox", ["inside", "outside"])
def test_the_whole_command_is_allowed_as_it_stands_and_not_as_a_prefix(repo: Path, sandbox: str) -> None:
    question = command("/bin/bash -lc 'rm -rf build'", repo, sandbox)
    prefixes = [None, ["rm", "-rf", "build"]] if sandbox == "inside" else [None]
    for prefix in prefixes:
        rule = always(question, prefix)
        assert is_allowed(question, rule)
        assert not is_allowed(command("/bin/bash -lc 'rm -rf build /'", repo, sandbox), rule)


def test_a_compound_command_can_be_allowed_for_good_as_a_whole(repo: Path) -> None:
    question = command("/bin/bash -lc 'make && ./run > log'", repo, "outside")
    assert is_allowed(question, always(question))


@pytest.mark.parametrize("prefix", [["git"], ["git", "push", "origin"], ["rm"], [], ["git", "pull"], ["GIT", "push"]])
def test_a_prefix_that_was_not_offered_is_refused(prefix: list[str], repo: Path) -> None:
    with pytest.raises(AnswerInvalid, match="Choose git push or git push origin main"):
        always(command("git push origin main", repo), prefix)


@pytest.mark.parametrize("prefix", [["git"], ["git", "push"], ["git", "push", "origin", "main"]])
def test_no_prefix_is_taken_for_what_may_leave(prefix: list[str], repo: Path) -> None:
    with pytest.raises(AnswerInvalid, match="Choose none: answer approve_always alone"):
        always(command("git push origin main", repo, "outside"), prefix)


def test_a_permanent_rule_never_holds_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "notes").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    assert rule_for_always(command("ls", "/"), Workspace()) is None
    assert rule_for_always(command("ls", home), Workspace()) is None
    rule = rule_for_always(command("ls", home / "notes"), Workspace())
    assert rule is not None
    assert (rule.directory, rule.below) == (home / "notes", False)


@given(words=st.lists(st.text(max_size=10), min_size=1, max_size=4))
def test_every_prefix_offered_allows_the_command_it_was_offered_for(words: list[str]) -> None:
    question = command(f"/bin/bash -lc {shlex.quote(shlex.join(words))}")
    for prefix in prefixes_for(question, Workspace()):
        assert is_allowed(question, always(question, prefix))


@pytest.mark.parametrize("text", ["curl -u me:hunter22 https://example.org", "PGPASSWORD=hunter22 psql -c 'select 1'"])
def test_a_command_with_a_secret_in_it_is_not_kept_on_disk(text: str) -> None:
    assert rule_for_always(command(text), Workspace()) is None
    assert rule_for_session(command(text), Workspace()) is not None
