"""Tests of rules: which commands, patches and tools they cover."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from helmsman.approvals.policy import RuleSet, Ruling, Workspace, decide
from helmsman.model.questions import QuestionType
from helmsman.model.rules import Rule
from tests.approvals.policy_questions import GIT_STATUS, HERE, LS, allow, ask, command, decided, deny, patch


@pytest.mark.parametrize(
    "text",
    [
        "git status",
        "git status -s",
        "git status --short .",
        "'git' \"status\"",
        "g\\it status",
        "git status | ls",
        "git status && ls -la; git status",
        "cd sub && git status",
        "cd sub && cd .. && git status",
        "git status 2>/dev/null",
        "git status 2>&1 | ls",
        "git status < file",
        "git status &\nls",
        "git status '; rm -rf /'",
        'git status "a && rm b"',
        "git status 'Füße'",
    ],
)
@pytest.mark.parametrize("wrapper", [None, "/bin/bash -lc", "bash -c", "/bin/zsh -lc", "sh -c"])
def test_a_command_is_allowed_when_every_part_of_it_is(text: str, wrapper: str | None) -> None:
    shown = text if wrapper is None else f"{wrapper} {shlex.quote(text)}"
    decision = decided(command(shown), GIT_STATUS, LS)
    assert (decision.effect, decision.rule in (GIT_STATUS, LS)) == ("allow", True)


NOT_COVERED = [
    # Other words.
    "git", "git statusx", "git stat", "gitstatus", "git -c x status", "git -C /etc status", "status git", "git push",
    "/usr/bin/git status", "./git status", "GIT status", "git Status", "lsof", "git 'status -s'", "'git status'",
    "git '' status",
    # One part that is not allowed.
    "git status; rm -rf /", "git status && rm -rf /", "git status || rm -rf /", "git status | sh", "git status & rm x",
    "git status\nrm -rf /", "rm -rf / ; git status", "git status;rm -rf /", "git status |& rm", "git status && git push",
    "ls && git status && curl x", "cd sub && rm x", "cd sub",
    # Computed parts.
    "git status $(rm -rf /)", "git status `rm -rf /`", 'git status "$(rm -rf /)"', "git status <(rm x)", "git status $X",
    "git status ${X:-$(rm x)}", "git status *", "git status ~", "git status {a,b}", "git $STATUS", "git status # x",
    "git status $'\\x3b' rm", "git status <<EOF\n$(rm x)\nEOF", "git status !rm",
    # What writes.
    "git status > x", "git status >> x", "git status >| x", "git status 2> x", "git status <> x", "> x git status",
    "ls; git status > .git/hooks/pre-commit", "git status > /dev/null > x",
    # What changes the meaning of a program.
    "PATH=. git status", "LD_PRELOAD=./x.so git status", "GIT_DIR=x git status", "GIT_SSH_COMMAND=x git status",
    "FOO=1 git status", "FOO= git status", "PATH=.; git status", "export PATH=.; git status", "alias git=rm; git status",
    "git() { rm x; }; git status", "hash -p ./x git; git status", "set -- x; git status",
    # What runs other words.
    "env git status", "sudo git status", "xargs git status", "nohup git status", "time git status", "command git status",
    "exec git status", "eval git status", "nice git status", "timeout 5 git status", "builtin git status",
    "ssh h git status", "env FOO=1 git status", "find . -exec git status '{}' +", "python -c 'git status'",
    "watch git status",
    # Shells that are not what they seem.
    "./bash -c 'git status'", "/tmp/sh -c 'git status'", "bash -ic 'git status'", "bash -c 'git status' x",
    "bash --rcfile x -c 'git status'", "BASH_ENV=x bash -c 'git status'", "bash -c 'git status' > x", "bash git status",
    "fish -c 'git status'", "bash -c 'git status; rm x'", "bash -c \"bash -c 'git status; rm x'\"",
    # The language.
    "if git status; then ls; fi", "while git status; do ls; done", "(git status)", "{ git status; }", "! git status",
    "for x in a; do git status; done", "case x in x) git status;; esac",
    # Disguises.
    "git\u00a0status", "g\u0456t status", "git status\u202e", "git status\r", "git status\x00", "git status\x1b[1A",
    "\uff47\uff49\uff54 status", "git \u200bstatus", "git status\u2028rm x", "git status \uff1b rm",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_COVERED)
def test_a_command_that_is_not_covered_in_every_part_is_asked(text: str) -> None:
    wrapped = f"/bin/bash -lc {shlex.quote(text)}"
    assert decided(command(text), GIT_STATUS, LS).effect == "ask"
    assert decided(command(wrapped), GIT_STATUS, LS).effect == "ask"


def test_without_rules_everything_is_asked() -> None:
    assert decided(command("ls")) == Ruling("ask", None, "No rule allows this part of the command: ls")


def test_a_variable_may_be_set_where_the_rule_names_it() -> None:
    rule = allow("pytest", env=("CI", "TZ"))
    assert decided(command("CI=1 pytest -q"), rule).effect == "allow"
    assert decided(command("CI=1 TZ=UTC pytest -q"), rule).effect == "allow"
    assert decided(command("CI=1 PATH=. pytest -q"), rule).effect == "ask"


OUTSIDE = ["outside", "inside-then-outside", None, "", "Inside", 7, ["inside"]]


@pytest.mark.parametrize("sandbox", OUTSIDE)
def test_a_plain_rule_answers_only_what_is_proved_to_stay_inside(sandbox: Any) -> None:
    question = command("git status -s", sandbox=sandbox)
    decision = decided(question, GIT_STATUS, Rule(effect="allow", text="git status -s"))
    assert decision.effect == "ask"
    assert "no `outside = true`: allow git status" in decision.reason
    assert decided(command("git status -s"), GIT_STATUS).effect == "allow"


@pytest.mark.parametrize("sandbox", ["inside", *OUTSIDE])
def test_a_rule_for_outside_covers_its_exact_words_wherever_they_run(sandbox: Any) -> None:
    rules = (allow("npm", "test", outside=True), allow("git", "push", outside=True))
    for text in ("npm test", "npm 'test'", "npm test && git push", "npm test 2>/dev/null", "cd x && npm test"):
        assert decided(command(f"/bin/bash -lc {shlex.quote(text)}", sandbox=sandbox), *rules).effect == "allow", text
    for text in (
        "npm test -- --watch", "git push --force", "git push -f", "npm", "npm test && rm x", "npm test > log",
        "npm test < in", "CI=1 npm test", "npm test $X", "./npm test", "/bin/npm test", "npm test; npm run x",
    ):  # fmt: skip
        assert decided(command(f"/bin/bash -lc {shlex.quote(text)}", sandbox=sandbox), *rules).effect == "ask", text


TOLD_TO_RUN = [
    "git clone -u 'touch x' a b", "git -c core.fsmonitor='touch x' status", "git archive -o /x/.bashrc HEAD",
    "git log --output=/x", "git grep -Ovi x", "git fetch --upload-pack=x", "git diff --ext-diff", "sed -n '1e touch x' f",
    "sed -i s/a/b/ x", "sed 'w /x' f", "make test --eval='$(shell touch x)'", "make -C elsewhere test", "make -f other test",
    "find . -delete", "find . -exec rm x +", "fd x -x rm", "sort -o x y", "rg --pre rm x", "tar -xf x --to-command=rm",
    "tar c --checkpoint-action=exec=x y", "npm test --prefix elsewhere", "npm test --script-shell=./x", "pytest -p planted",
    "pytest --rootdir=/x", "pip install ./planted", "cargo test --config=x", "go test -exec ./x", "ls --hyperlink",
]  # fmt: skip


"""Commands that other programs can be told to run or write.

The list of options would be endless, so words must match exactly.
"""


@pytest.mark.parametrize("text", TOLD_TO_RUN)
def test_no_option_makes_a_rule_let_anything_else_leave(text: str) -> None:
    words = tuple(shlex.split(text))
    first_words = [words[:length] for length in (1, 2) if length < len(words)]
    plain = [Rule(effect="allow", command=prefix) for prefix in first_words]
    exact = [Rule(effect="allow", command=prefix, outside=True) for prefix in first_words]
    assert decided(command(text, sandbox="outside"), *plain, *exact).effect == "ask"
    assert decided(command(text, sandbox="inside"), *plain).effect == "allow"  # the sandbox is what protects there
    assert (
        decided(command(text, sandbox="outside"), Rule(effect="allow", command=words, outside=True)).effect == "allow"
    )


def test_a_prefix_for_outside_covers_what_follows_but_nothing_else() -> None:
    rule = allow("npm", "run", outside=True, prefix=True, env=("CI",))
    for text in ("npm run", "npm run build", "CI=1 npm run build -- --prod"):
        assert decided(command(text, sandbox="outside"), rule).effect == "allow"
    for text in ("npm run build > x", "A=1 npm run build", "npm run build; npm test", "npm run $X", "npm test"):
        assert decided(command(text, sandbox="outside"), rule).effect == "ask"


def test_a_text_for_outside_covers_whatever_it_says() -> None:
    text = "/bin/bash -lc 'CI=1 npm test > log; echo $?'"
    rule = Rule(effect="allow", text=text, outside=True)
    assert decided(command(text, sandbox="outside"), rule).effect == "allow"
    assert decided(command(text + " ", sandbox="outside"), rule).effect == "ask"
    first = Rule(effect="allow", text=text)
    assert decided(command(text, sandbox="outside"), first).effect == "ask"
    assert decided(command(text, sandbox="outside"), first, rule).effect == "allow"


def test_a_text_is_the_command_as_the_question_shows_it() -> None:
    """People copy what they read, and that is without the shell that Codex puts around each command."""
    text = "touch $HOME/x; echo $?"
    asked = command(f"/bin/bash -lc {shlex.quote(text)}", sandbox="outside")
    assert decided(asked, Rule(effect="allow", text=text, outside=True)).effect == "allow"
    assert decided(asked, Rule(effect="allow", text=text)).effect == "ask"
    assert decided(asked, Rule(effect="allow", text="touch $HOME/x", outside=True)).effect == "ask"
    elsewhere = command(f"/home/me/bin/bash -lc {shlex.quote(text)}", sandbox="outside")
    assert decided(elsewhere, Rule(effect="allow", text=text, outside=True)).effect == "ask"


@pytest.mark.parametrize(
    "text",
    [
        "git push origin",
        "/bin/bash -lc 'git push origin'",
        """sh -c 'bash -c "git push origin"'""",
    ],
)
def test_a_text_is_denied_whatever_shell_is_around_it(text: str) -> None:
    rules = (allow("git"), Rule(effect="deny", text="git push origin"))
    assert decided(command(text), *rules).effect == "deny"


def test_a_rule_for_one_directory_does_not_hold_below(tmp_path: Path) -> None:
    (tmp_path / "repo" / "vendor").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "repo")
    rule = allow("./run.sh", outside=True, directory=tmp_path / "repo", below=False)

    def effect(text: str, directory: Path) -> str:
        return decided(command(text, str(directory), "outside"), rule, workspace=Workspace()).effect

    assert effect("./run.sh", tmp_path / "repo") == effect("./run.sh", tmp_path / "link") == "allow"
    assert effect("./run.sh", tmp_path / "repo" / "vendor") == "ask"
    assert effect("cd vendor && ./run.sh", tmp_path / "repo") == "ask"
    assert effect("./run.sh", tmp_path) == "ask"


def test_a_deny_rule_for_one_directory_does_not_hold_below_either(tmp_path: Path) -> None:
    rules = (LS, deny("ls", directory=tmp_path, below=False))
    assert decided(command("ls", str(tmp_path)), *rules).effect == "deny"
    assert decided(command("ls", str(tmp_path / "sub")), *rules).effect == "allow"
    patches = Rule(effect="deny", type="patch_approval", directory=tmp_path, below=False)
    workspace = Workspace(directory=tmp_path, writes="workspace")
    assert decided(patch(tmp_path / "a"), patches, workspace=workspace, switch=True).effect == "deny"
    assert decided(patch(tmp_path / "sub" / "a"), patches, workspace=workspace, switch=True).effect == "allow"


def test_an_exact_deny_rule_compares_the_words_as_they_stand() -> None:
    rules = (allow("git"), deny("git", "push", "--force", exact=True))
    assert decided(command("git push --force origin"), *rules).effect == "deny"
    assert decided(command("git push origin --force"), *rules).effect == "allow"


def test_a_rule_for_a_text_allows_that_text_and_nothing_else() -> None:
    text = "/bin/bash -lc 'for x in *; do wc $x > y; done'"
    rule = Rule(effect="allow", text=text)
    assert decided(command(text), rule) == Ruling("allow", rule, f"A rule allows it: {rule.describe()}.")
    assert decided(command(text + " "), rule).effect == "ask"
    assert decided(command(text.replace("wc", "rm")), rule).effect == "ask"


@pytest.mark.parametrize(
    "details",
    [{"additionalPermissions": {"network": {"enabled": True}}}, {"networkContext": {"host": "example.org"}}],
)
def test_a_command_that_asks_for_more_than_to_run_is_never_allowed_by_rule(details: dict[str, Any]) -> None:
    rules = (LS, Rule(effect="allow", text="ls"))
    assert decided(command("ls"), *rules).effect == "allow"
    assert decided(command("ls", **details), *rules).effect == "ask"


@pytest.mark.parametrize("odd", [None, "", 7, ["ls"], {"ls": 1}])
def test_a_question_without_a_readable_command_is_asked(odd: Any) -> None:
    assert decided(ask("command_approval", command=odd, directory=str(HERE)), LS).effect == "ask"


# --- where ----------------------------------------------------------------------------------------------------------


def test_a_rule_for_a_directory_holds_there_and_below(tmp_path: Path) -> None:
    (tmp_path / "repo" / "sub").mkdir(parents=True)
    (tmp_path / "repository").mkdir()
    (tmp_path / "repo" / "out").symlink_to(tmp_path / "repository")
    (tmp_path / "in").symlink_to(tmp_path / "repo" / "sub")
    rule = allow("ls", directory=tmp_path / "repo")

    def effect(text: str, directory: str | None) -> str:
        return decided(command(text, directory), rule, workspace=Workspace()).effect

    inside = str(tmp_path / "repo")
    assert effect("ls", inside) == "allow"
    assert effect("ls", inside + "/sub") == "allow"
    assert effect("ls", str(tmp_path / "in")) == "allow"
    assert effect("cd sub && ls", inside) == "allow"
    assert effect("cd sub/.. && ls", inside) == "allow"
    assert effect("ls", inside + "sitory") == "ask"
    assert effect("ls", inside + "/out") == "ask"
    assert effect("ls", inside + "/sub/../..") == "ask"
    assert effect("ls", str(tmp_path)) == "ask"
    assert effect("ls", None) == "ask"
    assert effect("ls", "repo") == "ask"
    assert effect("cd .. && ls", inside) == "ask"
    assert effect("cd / && ls", inside) == "ask"
    assert effect("cd out && ls", inside) == "ask"
    assert effect("cd out/.. && ls", inside) == "ask"
    assert effect("cd sub; cd ../..; ls", inside) == "ask"
    assert effect("ls; cd /", inside) == "allow"
    assert effect("cd - && ls", inside) == "ask"
    assert effect("cd && ls", inside) == "ask"
    assert effect("cd -P sub && ls", inside) == "ask"
    assert effect("HOME=/ cd sub && ls", inside) == "ask"
    assert effect(" && ".join(["cd sub", *["cd .."] * 6, "ls"]), inside) == "ask"
    assert effect(" && ".join([*[f"cd {number}" for number in range(9)], "ls"]), inside) == "ask"


def test_a_cd_that_leads_who_knows_where_does_so_even_if_a_rule_allows_it(tmp_path: Path) -> None:
    rules = (allow("cd"), allow("ls", directory=tmp_path))
    for text in ("cd -P / && ls", "cd - && ls", "cd && ls", "HOME=/ cd && ls"):
        assert decided(command(text, str(tmp_path)), *rules).effect == "ask"
        assert decided(command(text), allow("cd"), LS, deny("ls", directory=tmp_path)).effect == "deny"


def test_a_question_that_names_no_place_arose_where_the_session_works(tmp_path: Path) -> None:
    rule = allow("ls", directory=tmp_path)
    workspace = Workspace(directory=tmp_path / "x")
    assert decided(ask("command_approval", command="ls", sandbox="inside"), rule, workspace=workspace).effect == "allow"


@pytest.mark.parametrize("odd", ["", "x", "../x", "/a\nb", "/a\0b", "/\ud800", 7, ["/"]])
def test_a_question_with_an_unreadable_directory_may_be_about_any_directory(tmp_path: Path, odd: Any) -> None:
    workspace = Workspace(directory=tmp_path)
    question = ask("command_approval", command="ls", sandbox="inside", directory=odd)
    assert decided(question, allow("ls", directory=tmp_path), workspace=workspace).effect == "ask"
    assert decided(question, LS, deny("ls", directory=Path("/x/y")), workspace=workspace).effect == "deny"


def test_a_deny_rule_for_a_directory_holds_in_doubt(tmp_path: Path) -> None:
    rule = deny("ls", directory=tmp_path / "Repo")
    for text, directory in [
        ("ls", str(tmp_path / "Repo" / "sub")),
        ("ls", str(tmp_path / "repo")),
        ("cd Repo && ls", str(tmp_path)),
        ("ls", None),
    ]:
        assert decided(command(text, directory), LS, rule, workspace=Workspace()).effect == "deny"
    assert decided(command("ls", str(tmp_path)), LS, rule).effect == "allow"


# --- deny and ask ----------------------------------------------------------------------------------------------------

DENIED = {
    "rm": [
        "rm x", "/bin/rm x", "./rm x", "RM x", "r''m x", "r\\m x", "'rm' x", "sudo rm x", "env A=1 rm x", "xargs rm",
        "ls | xargs rm", "ls; rm x", "ls && rm x", "(rm x)", "$(rm x)", "ls $(rm x)", "ls `rm x`", "if true; then rm x; fi",
        "for x in *; do rm $x; done", "find . -exec rm {} \\;", "find . -exec rm '{}' +", "bash -c 'rm x'",
        "bash -c \"bash -c 'rm x'\"", "eval rm x", "eval 'rm x'", "command rm x", "\\rm x", "A=1 rm x", "A=$(x) rm y",
        "! rm x", "{ rm x; }", "time rm x", "nohup rm x &", "ssh host 'rm x'", "ls <(rm x)", "cat <<EOF | sh\nrm x\nEOF",
        "rm${IFS}x", "rm $X", "rm *", "ls\nrm x", "ls & rm x", "python -c 'import os; os.system(\"rm x\")'", "$X rm y",
        "rm > x", "rm.exe x", "timeout 5 rm x", "./bash -c 'rm x'", "busybox rm x", "sh -c 'ls;rm x'",
        "python3.12 -c 'rm x'",
    ],
    "git push --force": [
        "git push --force", "git push origin main --force", "git push --force origin", "git -C x push --force",
        "git -c a=b --no-pager push --force", "git push --force=x", "sudo git push --force", "/usr/bin/git push -v --force",
        "git push origin $BRANCH --force",
    ],
    "rm -rf": [
        "rm -rf x", "rm -fr x", "rm -r -f x", "rm -f x -r", "rm -vrf x", "rm x -rf", "rm -rf $X", "sudo rm -fr x",
        "rm$IFS-rf${IFS}x",
    ],
    "docker run -v /:/host": ["docker run -v /:/host x", "docker --debug run -it -v /:/host x"],
}  # fmt: skip


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in DENIED.items() for text in texts])
def test_a_denied_command_is_found_wherever_it_hides(rule: str, text: str) -> None:
    everything = [allow(word) for word in ("ls", "rm", "git", "sudo", "env", "xargs", "find", "docker")]
    for shown in (text, f"/bin/bash -lc {shlex.quote(text)}"):
        decision = decided(command(shown), *everything, deny(*rule.split(" ")))
        assert (decision.effect, decision.rule) == ("deny", deny(*rule.split(" ")))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("rm", "ls rm"),
        ("rm", "git rm x"),
        ("rm", "git commit -m 'rm x'"),
        ("rm", 'git commit -m "no; rm"'),
        ("rm", "rmdir x"),
        ("git push", "git commit -m push"),
        ("git push", "git stash push"),
        ("git push --force", "git push origin main"),
        ("rm -rf", "rm -r x"),
        ("rm -rf", "rm x"),
    ],
)
def test_a_deny_rule_does_not_take_words_for_commands(rule: str, text: str) -> None:
    everything = [allow("ls"), allow("git"), allow("rm"), allow("rmdir")]
    assert decided(command(text), *everything, deny(*rule.split(" "))).effect == "allow"


def test_deny_beats_ask_and_ask_beats_allow_whatever_their_order() -> None:
    rules = [LS, Rule(effect="ask", command=("ls",)), deny("ls")]
    for order in (rules, rules[::-1], rules[1:] + rules[:1]):
        assert decided(command("ls"), *order).effect == "deny"
        assert decided(command("ls"), *(rule for rule in order if rule.effect != "deny")).effect == "ask"
    assert decided(command("ls && git push"), LS, allow("git"), deny("git", "push")).effect == "deny"


def test_the_reason_of_a_rule_is_the_reason_of_the_decision() -> None:
    rule = deny("git", "push", reason="History is shared.", origin="rule 1 of x")
    assert decided(command("git push"), rule) == Ruling("deny", rule, "History is shared.")
    assert rule.describe() == "deny git push (rule 1 of x)"


def test_while_some_rules_cannot_be_read_the_reason_to_ask_says_so() -> None:
    rules = RuleSet(rules=(deny("rm"),), problem="x.toml is not valid TOML. Correct it.")
    assert decide(command("rm x"), rules, Workspace()).effect == "deny"
    assert decide(command("ls"), rules, Workspace()).reason.endswith("x.toml is not valid TOML. Correct it.")


def test_a_rule_for_a_type_speaks_of_that_type_only() -> None:
    no_commands = Rule(effect="deny", type="command_approval")
    assert decided(command("ls"), LS, no_commands).effect == "deny"
    assert decided(ask("user_input"), no_commands).effect == "ask"
    assert decided(ask("user_input"), Rule(effect="deny", type="user_input")).effect == "deny"
    assert decided(ask("user_input"), Rule(effect="deny")).effect == "deny"
    assert decided(command("ls"), allow("ls", type="patch_approval")).effect == "ask"


@pytest.mark.parametrize("kind", ["permission_approval", "user_input"])
def test_no_rule_answers_what_only_a_person_can(kind: QuestionType) -> None:
    question = ask(kind, command="ls", directory=str(HERE), permissions={"network": {"enabled": True}}, paths=["/x"])
    rules = (LS, Rule(effect="allow", type=kind), Rule(effect="allow", text="ls"), Rule(effect="allow"))
    assert decided(question, *rules, switch=True).effect == "ask"
