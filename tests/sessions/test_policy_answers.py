"""The rules that answers make: no broader than what was approved, and only where it was."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.errors import AnswerInvalid
from helmsman.questions import Prompt, Question, QuestionType
from helmsman.sessions.policy import Rule, RuleSet, Workspace, decide
from helmsman.sessions.rules_from_answers import prefixes_for, rule_for_always, rule_for_session


def ask(kind: QuestionType, **details: Any) -> Question:
    prompts = (Prompt(text="May I?", options=("approve", "deny")),)
    return Question(id="q_1", type=kind, session_id="T1", turn_id="U1", prompts=prompts, details=details)


def command(text: str, directory: Path | str = "/nowhere/repo", **details: Any) -> Question:
    return ask("command_approval", command=text, directory=str(directory), **details)


def tool(name: str | None = "write") -> Question:
    return ask("mcp_elicitation", server="lab", tool=name, approvalKind="mcp_tool_call", mode="form")


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
    assert prefixes_for(command(text)) == [words.split(" ") for words in offered]


@pytest.mark.parametrize(
    "text",
    [
        "rm x", "rm -rf build", "sudo ls", "env ls", "xargs ls", "python x.py", "python -c 'x'", "python -m pip install x",
        "node x.js", "bash x.sh", "sh x.sh", "perl -e x", "curl https://example.org", "git", "git -c a=b push",
        "git config x", "ssh host ls", "docker run x", "npx x", "npm install x", "find . -name x", "sed -n p x",
        "./run.sh test", "uv run python x", "bundle exec ruby x", "go run x", "git submodule foreach x", "npm run",
        "npm run a/b", "python3.12 x", "git fetch --upload-pack=x", "git log --output=x", "rg --pre x y",
        "/usr/bin/git push", "nohup ls", "timeout 5 ls", "mv a b", "cp a b", "chmod +x a", "dd if=a", "tee x", "awk x",
        "sort x", "echo hi", "pip install x", "git 'push it'", "foo 'a b'", "RM x", "cargo run x/y",
    ],
)  # fmt: skip
def test_what_is_too_broad_as_a_beginning_is_only_offered_whole(text: str) -> None:
    question = command(text)
    assert prefixes_for(question) == [shlex.split(text)]
    assert not is_allowed(command(text + " x"), rule_for_always(question, Workspace(), shlex.split(text)))


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
        tool(),
    ],
)
def test_nothing_is_offered_for_what_is_not_one_plain_command(question: Question) -> None:
    assert prefixes_for(question) == []


# --- for the session -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["ls", "/bin/bash -lc 'git status && rm $X > y'", "/bin/bash -lc 'cat <<EOF\nFüße\nEOF'"]
)
def test_a_command_approved_for_the_session_is_allowed_again_and_no_other(text: str, repo: Path) -> None:
    rule = rule_for_session(command(text, repo), Workspace())
    assert is_allowed(command(text, repo), rule)
    assert not is_allowed(command(text + " x", repo), rule)
    assert not is_allowed(command(text, repo.parent), rule)
    assert not is_allowed(command(text, repo, additionalPermissions={"x": 1}), rule)


def test_files_approved_for_the_session_are_allowed_again_and_no_others(repo: Path) -> None:
    (repo / "link").symlink_to(repo / "b")

    def patch(*paths: str) -> Question:
        return ask("patch_approval", paths=[str(repo / path) for path in paths])

    rule = rule_for_session(patch("a", "link"), Workspace())
    assert is_allowed(patch("a"), rule)
    assert is_allowed(patch("a", "b"), rule)
    assert not is_allowed(patch("a", "c"), rule)
    assert not is_allowed(patch("a/d"), rule)


def test_a_tool_approved_for_the_session_is_allowed_again_and_no_other() -> None:
    rule = rule_for_session(tool("write"), Workspace())
    assert is_allowed(tool("write"), rule)
    assert not is_allowed(tool("delete"), rule)


@pytest.mark.parametrize(
    "question",
    [
        ask("permission_approval", permissions={"network": {"enabled": True}}),
        ask("user_input"),
        ask("patch_approval"),
        ask("patch_approval", paths=["/x"], grantRoot="/"),
        ask("mcp_elicitation", server="lab", mode="form"),
        tool(None),
        ask("command_approval"),
        command("ls", networkContext={"host": "x"}),
        command("ls \u200b"),
        command("ls", "relative"),
    ],
)
def test_what_could_not_be_recognised_again_makes_no_rule(question: Question) -> None:
    assert rule_for_session(question, Workspace(directory=Path("/nowhere"))) is None


# --- for good --------------------------------------------------------------------------------------------------------


def test_a_chosen_prefix_is_allowed_in_the_repository_of_the_question(repo: Path) -> None:
    rule = rule_for_always(command("git push origin main", repo / "sub"), Workspace(), ["git", "push"])
    assert (rule.command, rule.directory) == (("git", "push"), repo)
    assert is_allowed(command("git push --tags", repo), rule)
    assert not is_allowed(command("git pull", repo), rule)
    assert not is_allowed(command("git push", repo.parent), rule)


def test_the_whole_command_is_allowed_as_it_stands_and_not_as_a_prefix(repo: Path) -> None:
    question = command("/bin/bash -lc 'rm -rf build'", repo)
    for rule in (
        rule_for_always(question, Workspace()),
        rule_for_always(question, Workspace(), ["rm", "-rf", "build"]),
    ):
        assert is_allowed(question, rule)
        assert not is_allowed(command("/bin/bash -lc 'rm -rf build /'", repo), rule)


def test_a_compound_command_can_be_allowed_for_good_as_a_whole(repo: Path) -> None:
    question = command("/bin/bash -lc 'make && ./run > log'", repo)
    assert is_allowed(question, rule_for_always(question, Workspace()))


def test_a_tool_can_be_allowed_for_good_where_the_session_works(repo: Path) -> None:
    rule = rule_for_always(tool(), Workspace(directory=repo / "sub"))
    assert (rule.mcp, rule.directory) == (("lab", "write"), repo)
    assert is_allowed(tool(), rule, Workspace(directory=repo))
    assert not is_allowed(tool(), rule, Workspace(directory=repo.parent))


@pytest.mark.parametrize("prefix", [["git"], ["git", "push", "origin"], ["rm"], [], ["git", "pull"], ["GIT", "push"]])
def test_a_prefix_that_was_not_offered_is_refused(prefix: list[str], repo: Path) -> None:
    with pytest.raises(AnswerInvalid, match="Choose git push or git push origin main"):
        rule_for_always(command("git push origin main", repo), Workspace(), prefix)


@pytest.mark.parametrize(
    "question",
    [
        ask("patch_approval", paths=["/x"]),
        ask("permission_approval"),
        ask("user_input"),
        tool(None),
        command("ls", "/nowhere/x", additionalPermissions={"x": 1}),
        command("ls \u202e", "/nowhere/x"),
    ],
)
def test_what_has_no_permanent_form_is_refused(question: Question) -> None:
    with pytest.raises(AnswerInvalid, match="cannot be allowed for good"):
        rule_for_always(question, Workspace(directory=Path("/nowhere/x")))


def test_a_permanent_rule_never_holds_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".git").mkdir(parents=True)
    (home / ".git" / "HEAD").touch()
    (home / "notes").mkdir()
    monkeypatch.setenv("HOME", str(home))
    for directory in ("/", home, home / "notes"):
        with pytest.raises(AnswerInvalid, match="outside of any project"):
            rule_for_always(command("ls", directory), Workspace())
    with pytest.raises(AnswerInvalid, match="outside of any project"):
        rule_for_always(tool(), Workspace())


@given(words=st.lists(st.text(max_size=10), min_size=1, max_size=4))
def test_every_prefix_offered_allows_the_command_it_was_offered_for(words: list[str]) -> None:
    question = command(f"/bin/bash -lc {shlex.quote(shlex.join(words))}")
    for prefix in prefixes_for(question):
        assert is_allowed(question, rule_for_always(question, Workspace(), prefix))
