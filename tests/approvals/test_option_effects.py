"""Tests that deny rules cover every spelling of an option, and that unknown options are asked about."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from helmsman.approvals.option_effects import GIT_COMMANDS, grammar_of
from helmsman.approvals.policy import RuleSet, Workspace, decide
from helmsman.approvals.shell_words import git_runs_others, names, sensible_prefix
from helmsman.model.questions import Prompt, Question
from helmsman.model.rules import Rule

HERE = Path("/nowhere/repo")

# For each rule: what it means, what could be meant by it for all anyone can tell, and what it does not mean.
MEANT: dict[str, tuple[list[str], list[str], list[str]]] = {
    "git push --force": (
        [
            "git push -f", "git push origin +HEAD:main", "git push --force-with-lease",
            "git push --force-with-lease=main:abc", "git push --mirror", "git push --mir", "git push --force-w",
            "git push -qvf origin main", "git push origin main -uf", "git push -- origin +main",
            "git push --repo=origin +main", "git push origin +:main", "git -C x push -f", "git -c a=b push -f",
            "git --git-dir=x --work-tree y push -f", "git-push -f", "/usr/lib/git-core/git-push -f",
            "git -c alias.x=push x -f", "git -c alias.x='push --force' x",
            "git -c alias.X=y -c alias.y='push -f' x", "git -c alias.push=status push -f", "command git push -f",
            "env A=1 git push -f", "xargs git push -f", "nice git push -f", "git submodule foreach 'git push -f'",
            "git send-pack --force x", "g${X}it push -f", "git push 2>&1 $X -f", "git push \\\n-f $X",
            'awk \'BEGIN{system("git push -f")}\'', "git push --force --no-force", "git push -n -f",
            "if true; then git push -f; fi", "git -c 'alias.x=!git push -f' x", "git clone -u 'git push -f;' x y",
        ],
        [
            "git push --f", "git push --forc", "git push --frobnicate", "git push -Z", "git push $X",
            "git push origin $X", 'git push "$OPTIONS" origin main', "git push $(echo -f)",
            "git push `echo -f` origin", "git push -{u,f}", "git $X origin", "$X push origin", "git pf",
            "git -c remote.origin.mirror=1 push", "git -c push.default=x push", "git --config-env=a.b=C push",
            "git --exec-path=. push", "git --frob push push x", "git --frob x push -f",
            "GIT_CONFIG_COUNT=1 git push", "env GIT_CONFIG_COUNT=1 git push", "echo -f | xargs git push",
            "echo push -f | xargs git", "echo git push -f | sh", "alias g=git; g push -f",
            "f() { git $@; }; f push -f", "$'\\x67it' push -f", "${G:-git push} -f", "sed '1e git push -f' x",
            "make '--eval=$(shell git push -f)'", "{git,push,-f}",
            "tar cf x y --checkpoint-action='exec=git push -f'", "source <(echo git push -f)",
            "git push --receive-pack=x", "git push origin :main", "git push -d origin x", "git push --prune origin",
            "git push -o -f",
            # Commands of git that run another one, or a program that their words name.
            "git for-each-repo --config=a.b push -f", "git subtree push -P x y z", "git grep -O./x y",
            "git grep -nO./x y", "git grep --open=./x y", "git merge-index ./x -a", "git send-email --to-cmd=./x y",
            "git bisect run ./x", "git bisect visualize", "git submodule foreach ./x", "git submodule foreach --recursive x",
            "git rebase -x ./x main", "git rebase --exec=./x main", "git rebase -ix ./x main", "git difftool -x ./x",
            "git mergetool", "git filter-branch --tree-filter ./x", "git archive --remote=x --exec=./x HEAD",
            "git fetch --upload-pack=./x y", "git fetch --upl ./x y", "git clone -u ./x y", "git clone -qu./x y",
            "git clone -c core.sshCommand=./x y", "git clone --template=x y", "git init --template x",
            "git ls-remote --exec=./x y", "git fetch-pack --exec=./x y", "git pull --upload-pack ./x y",
            "git fetch ext::./x", "git clone 'x::y'", "git remote add x ext::./x", "git ls-remote foo::bar",
            "git credential fill", "git hook run x", "git maintenance start", "git instaweb -d ./x", "git web--browse x",
            "git p4 sync", "git svn dcommit", "git cvsserver", "git quiltimport", "git shell -c x", "git daemon",
            "git upload-pack x", "git lfs push x", "git annex sync", "git sh-i18n--envsubst x", "git remote-ext x y",
            "git submodule--helper foreach x", "git merge -s ./x y", "git merge --strategy=mine y", "git pull -s mine",
            "git rebase --strat mine", "git cherry-pick --strategy mine x", "git -c core.pager=./x log",
            "git -c diff.external=./x diff", "git -c core.fsmonitor=./x status", "git -c include.path=x status",
            "git -c core.sshCommand=./x fetch", "git --config-env=core.pager=X log", "git --exec-path=./x log",
            "git -c 'alias.x=!./x' x", "git config alias.x push", "git config set core.pager ./x", "git config -e",
            "GIT_EXTERNAL_DIFF=./x git diff", "GIT_PAGER=./x git log", "git -p -c pager.log=./x log",
        ],
        [
            "git push", "git push origin main", "git push -u origin main", "git push -o f", "git push -of",
            "git push --tags", "git push --no-force", "git push --follow-tags --atomic --signed=yes",
            "git push --force-if-includes", "git push origin main -- -f", "git commit -m 'push --force'",
            "git commit -m 'git push --force'", "git fetch --force", "git stash push --force",
            "git -c user.name=x push", "git status --frobnicate", "git log --format=push",
            "git -c core.quotepath=off ls-files", "git -c core.pager=cat log", "git -c color.ui=never diff",
            "git grep -n std::vector", "git grep -e x --or -e y", "git log --format=%h::%s", "git bisect good",
            "git submodule status", "git rebase main", "git rebase -i main", "git merge -s ours x", "git merge x",
            "git merge --squash x", "git cherry-pick -s x", "git revert -s x", "git pull -s ort", "git clone -q x y",
            "git clone --depth 1 --branch main x", "git fetch -u x", "git config user.name x", "git config --get a.b",
            "git config --list", "git config a.b", "git archive HEAD", "git ls-files --exclude-standard", "git init",
        ],
    ),
    "git fetch": (["git fetch x"], ["git pull", "git remote update", "git submodule update"], ["git log", "git add x"]),
    "git merge": (["git merge x"], ["git pull x", "git for-each-repo --config=a.b merge x"], ["git rebase x"]),
    "curl evil": (
        [
            "git bisect run curl evil", "git submodule foreach 'curl evil'", "kubectl run x --image=y -- curl evil",
            "git grep -O'curl evil' x", "git fetch --upload-pack='curl evil' x", "git -c core.pager='curl evil' log",
            "git send-email --to-cmd='curl evil' x", "rg --pre='curl evil' x", "go test -exec 'curl evil' ./...",
            "sort --compress-program='curl evil' x", "split --filter='curl evil' x",
        ],
        ["git fetch 'ext::curl evil'", "git grep '-Ocurl evil' x"],
        ["git log -S 'curl evil'", "git commit -m 'curl evil'"],
    ),
    "git push --delete": (
        [
            "git push -d origin x", "git push origin :x", "git push origin +:x", "git push --del origin x",
            "git push --prune", "git push --mirror",
        ],
        ["git push --frobnicate"],
        ["git push -f", "git push origin x", "git push origin x:y", "git push origin :"],
    ),
    "git push origin main": (
        [
            "git push origin main", "git push -u origin main", "git push origin HEAD:main",
            "git push origin +x:refs/heads/main", "git push origin feature main", "git push origin :main",
        ],
        [
            "git push", "git push origin", "git push origin HEAD", "git push --all origin",
            "git push origin 'refs/heads/*'", "git push git@host:x.git main", "git push ../x.git HEAD:main",
        ],
        ["git push origin feature", "git push upstream main", "git push git@host:x.git feature"],
    ),
    "rm -rf": (
        [
            "rm -Rf x", "rm -fR x", "rm --recursive --force x", "rm --recurs --f x", "rm -r -f x",
            "rm x -r --force", "rm -vrf x", "/bin/rm -Rf x", "sudo rm --force -R x", "rm -R --force $X",
            "busybox rm -Rf x",
        ],
        [
            "rm *", "rm -r $X", "rm -{r,f} x", "rm -rZ x", "rm -r --frobnicate x", "rm --r --v x",
            "find . | xargs rm -r", "rm -r --interactive=never x",
        ],
        ["rm x", "rm -r x", "rm -f x", "rm -- -rf", "rm --recursive x", "rm -fv x", "rmdir x", "ls -rf"],
    ),
    "rm -rf /": (
        ["rm -rf /", "rm -Rf //", "rm --force -r x /", "rm -rf /x/.."],
        ["rm -rf /*", "rm -rf $X", "rm -rf ../../../.."],
        ["rm -rf node_modules", "rm -rf /tmp/x", "rm /"],
    ),
    "git reset --hard": (
        ["git reset --har", "git reset HEAD~1 --hard", "git -C x reset -q --hard"],
        ["git reset --frobnicate", "git reset $X"],
        ["git reset", "git reset --soft HEAD~1", "git reset -- --hard"],
    ),
    "git clean -fdx": (
        ["git clean -xdf", "git clean --force -d -x", "git clean --for -xd"],
        ["git clean -fd $X", "git clean -fd -Z", "git clean -dxi"],
        ["git clean -fd", "git clean -ndx", "git clean -fd -e x"],
    ),
    "git branch -D": (
        ["git branch -d -f x", "git branch --delete --force x", "git branch -fd x", "git branch --del x --forc"],
        ["git branch -d $X"],
        ["git branch -d x", "git branch -f x y", "git branch -v"],
    ),
    "git checkout -f": (
        ["git checkout --force", "git checkout main --forc"],
        ["git checkout -B x", "git checkout -tf x"],
        ["git checkout main"],
    ),
    "git checkout .": (
        ["git checkout -- .", "git checkout HEAD -- ./"],
        ["git checkout $X", "git checkout :/", "git checkout ':(top)'", "git checkout HEAD -- '*'"],
        ["git checkout main"],
    ),
    "git commit --amend": (
        ["git commit --am", "git commit -a --amend --no-edit"],
        ["git commit --fixup=amend:HEAD", "git commit -m --amend"],
        ["git commit -am x"],
    ),
    "git commit --no-verify": (
        ["git commit -n -m x", "git commit -anm x", "git commit --no-veri"],
        ["git commit --frobnicate", "git commit -m -n"],
        ["git commit -m x", "git commit --verify"],
    ),
    "git rebase -i": (["git rebase --interactive", "git rebase --inter x"], ["git rebase $X"], ["git rebase main"]),
    "git config --global": (["git config --glob a b", "git config set --global a b"], [], ["git config a b"]),
    "git filter-branch": (["git filter-branch --tree-filter x", "git-filter-branch"], ["git fb"], ["git branch"]),
    "git stash drop": (
        ["git stash drop", "git stash -q drop"],
        ["git stash $X"],
        ["git stash list", "git stash push -m drop"],
    ),
    "chmod -R 777": (
        ["chmod 777 -R x", "chmod --recursive 0777 x", "chmod --recurs 777 x y", "chmod -R 4777 x"],
        ["chmod -R a+rwx x", "chmod -R --reference=y x", "chmod 777 $X"],
        ["chmod 777 x", "chmod -R 755 x", "chmod -R +x x"],
    ),
    "chown -R root": (
        ["chown --recursive root x", "chown root x -Rv"],
        ["chown -R $X x"],
        ["chown root x", "chown -R me x"],
    ),
    "curl -X POST": (
        [
            "curl -XPOST u", "curl --request POST u", "curl --req post u", "curl -d x u", "curl --json x u",
            "curl -sF a=b u",
        ],
        ["curl -K x u", "curl --frobnicate u"],
        ["curl u", "curl -X GET u", "curl -fsSL u -o x"],
    ),
    "wget --post-data": (["wget --post-data=x u", "wget --post-file=x u"], ["wget -e x u"], ["wget -qO- u"]),
    "npm install -g": (
        [
            "npm i -g x", "npm -g add x", "npm i --global x", "npm isntall -gD x", "npm i -global x",
            "npm --prefix . i --g x",
        ],
        ["npm i --location=global x", "npm i --glob x", "npm i --frobnicate"],
        ["npm i x", "npm install --save-dev x", "npm ci"],
    ),
    "npm install left-pad": (["npm i left-pad@1.0", "npm i x left-pad"], ["npm i $X"], ["npm i left", "npm i"]),
    "npm publish": (
        [
            "npm publ", "npm --access public publish", "npm -w x publish", "npm --dry-run false publish",
            "npm -y true --color always publish",
        ],
        ["npm $X"],
        ["npm pack", "npm run publish"],
    ),
    "pnpm publish": (
        ["pnpm -r publish", "pnpm --filter x publish", "pnpm -r true publish"],
        ["pnpm --frob x publish"],
        ["pnpm install"],
    ),
    "yarn publish": (["yarn npm publish", "yarn --cwd x publish"], ["yarn --frob x publish"], ["yarn install"]),
    "pip install": (["pip3 install x", "pip3.12 -q install x", "python -m pip install x"], ["pip $X"], ["pip list"]),
    "pip install requests": (
        ["pip install 'requests>=2'", "pip install x Requests"],
        ["pip install -r x"],
        ["pip install x"],
    ),
    "docker run --privileged": (
        [
            "docker container run --privileged x", "docker run -it --privileged=true x",
            "docker --debug run --privileged x",
        ],
        ["docker run --frobnicate x", "docker --frob x run --privileged y", "docker run -v --privileged x"],
        ["docker run x --privileged"],
    ),
    "docker run -v /:/host": (
        ["docker run -v/:/host x", "docker run --volume=/:/host x", "docker run -itv /:/host x"],
        ["docker run --mount type=bind,source=/ x"],
        ["docker run -v /x:/host y"],
    ),
    "docker run nginx": (
        ["docker run nginx:1.27", "docker run -d nginx:latest sh"],
        ["docker run $X"],
        ["docker run redis:7", "docker run redis nginx"],
    ),
    "docker system prune": (
        ["docker system prune -af", "docker -D system prune"],
        ["docker $X"],
        ["docker system df"],
    ),
    "docker compose down -v": (
        ["docker-compose down --volumes", "docker compose -p x down -v", "docker compose down --volumes"],
        [],
        ["docker compose down", "docker compose up -v"],
    ),
    "kubectl delete namespace prod": (
        ["kubectl delete ns prod", "kubectl -n x delete ns/prod", "kubectl delete ns staging prod"],
        ["kubectl delete -f x", "kubectl delete --all ns", "kubectl delete ns -l a=b"],
        ["kubectl delete pod prod", "kubectl get ns prod"],
    ),
    "terraform destroy": (
        ["terraform -chdir=x destroy", "terraform apply -destroy", "terraform apply --destroy=true", "tofu destroy"],
        ["terraform apply -frobnicate", "TF_CLI_ARGS=x terraform apply"],
        ["terraform apply", "terraform plan"],
    ),
    "terraform apply -auto-approve": (
        ["terraform apply --auto-approve"],
        ["terraform apply $X"],
        ["terraform apply"],
    ),
    "git": (["git status", "git -C x frob", "/usr/bin/git annex add"], [], ["ls git"]),
    "git push": (
        ["git -c alias.a=push a"],
        # More aliases of aliases than are followed.
        ["git -c alias.a=b -c alias.b=c -c alias.c=d -c alias.d=push a"],
        ["git -c alias.a=status a"],
    ),
    "terraform apply -destroy": (["terraform apply --destroy"], ["terraform apply -d"], ["terraform apply"]),
    "sudo": (["sudo -u x ls", "/usr/bin/sudo ls", "ls | sudo tee x"], [], ["ls sudo"]),
    "ssh prod": (
        ["ssh me@prod ls", "ssh -p 22 prod", "ssh ssh://me@prod:22"],
        ["ssh -o HostName=prod x"],
        ["ssh x prod"],
    ),
    "dd of=/dev/sda": (["dd if=x of=/dev/sda", "dd of=//dev/sda bs=1M"], ["dd of=$X"], ["dd of=x"]),
    "mkfs": (["mkfs.ext4 /dev/sda", "/sbin/mkfs -t ext4 x", "mke2fs x"], [], ["ls mkfs"]),
    "find -delete": (
        ["find . -delete", "find x -name '*.py' -delete", "gfind . -delete"],
        ["find . -exec rm {} +", "find . -files0-from x", "find . $X", "find . -name -delete"],
        ["find . -name '*.py'", "find . -type f -print"],
    ),
    "sed -i": (
        ["sed --in-place p x", "sed -i.bak p x", "sed -ni p x", "sed --in-pl=x p y"],
        ["sed $X", "sed -e -i x"],
        ["sed -n p x"],
    ),
    "tar -x": (["tar xzf x", "tar --extr -f x", "tar -zxf x", "tar --get -f x"], ["tar $X"], ["tar czf x y"]),
    "make deploy": (["make -C x deploy", "make -j4 all deploy", "make X=1 deploy"], ["make --eval=x"], ["make test"]),
    # An unknown program: spellings cannot be distinguished from other options.
    "mytool deploy --prod": (
        ["mytool deploy --prod", "mytool -v deploy x --prod=1"],
        [
            "mytool deploy --pro", "mytool deploy --production", "mytool deploy -p", "mytool deploy @file",
            "mytool deploy $X",
        ],
        ["mytool deploy", "mytool deploy --staging", "mytool status -p"],
    ),
    "mytool deploy": (["mytool --region eu deploy"], [], ["mytool status deploy"]),
    "mytool -rf": (["mytool -fr", "mytool -r x -f"], ["mytool -r --force"], ["mytool -r", "mytool rf"]),
}  # fmt: skip


def effect(text: str, *rules: Rule, sandbox: str = "inside") -> str:
    question = Question(
        asker="Codex",
        id="q_1",
        type="command_approval",
        session_id="T1",
        turn_id="U1",
        prompts=(Prompt(text="May I?", options=("approve", "deny")),),
        details={"command": text, "directory": str(HERE), "sandbox": sandbox},
    )
    return decide(question, RuleSet(rules=rules), Workspace(directory=HERE)).effect


def spellings(column: int) -> Iterator[tuple[str, str, str]]:
    for rule, columns in MEANT.items():
        for text in columns[column]:
            for shown in (text, f"/bin/bash -lc {shlex.quote(text)}"):
                yield rule, text, shown


def allowed_as_a_whole(shown: str) -> Rule:
    """An allow rule for the whole text, so that nothing but the other rule can be the reason for a question."""
    return Rule(effect="allow", text=shown)


@pytest.mark.parametrize(("rule", "text", "shown"), list(spellings(0)))
def test_a_deny_rule_denies_what_does_the_same(rule: str, text: str, shown: str) -> None:
    assert effect(shown, allowed_as_a_whole(shown), Rule(effect="deny", command=tuple(rule.split()))) == "deny", text


@pytest.mark.parametrize(("rule", "text", "shown"), list(spellings(1)))
def test_a_deny_rule_asks_about_commands_that_may_mean_the_same(rule: str, text: str, shown: str) -> None:
    assert effect(shown, allowed_as_a_whole(shown), Rule(effect="deny", command=tuple(rule.split()))) == "ask", text


@pytest.mark.parametrize(("rule", "text", "shown"), list(spellings(2)))
def test_a_deny_rule_leaves_other_commands_alone(rule: str, text: str, shown: str) -> None:
    assert effect(shown, allowed_as_a_whole(shown), Rule(effect="deny", command=tuple(rule.split()))) == "allow", text


def test_an_ask_rule_means_the_same_and_a_deny_beats_what_only_may_be_meant() -> None:
    asking, denying = (
        Rule(effect="ask", command=("git", "push", "--force")),
        Rule(effect="deny", command=("git", "push")),
    )
    for text in ("git push -f", "git push --frobnicate"):
        assert effect(text, allowed_as_a_whole(text), asking) == "ask"
        assert effect(text, allowed_as_a_whole(text), asking, denying) == "deny"
    assert effect("git push", allowed_as_a_whole("git push"), asking) == "allow"


def test_an_exact_deny_rule_means_its_words_as_they_are_written() -> None:
    rule = Rule(effect="deny", command=("git", "push", "--force"), exact=True)
    for text in (
        "git push --force",
        "git push --force origin",
        "sudo git push --force",
        "bash -c 'ls; git push --force'",
    ):
        assert effect(text, allowed_as_a_whole(text), rule) == "deny"
    for text in (
        "git push -f",
        "git push origin --force",
        "git -C x push --force",
        "/usr/bin/git push --force",
        "git push $X",
    ):
        assert effect(text, allowed_as_a_whole(text), rule) == "allow"


def test_words_far_behind_a_program_are_found() -> None:
    many = " ".join(f"b{number}" for number in range(500))
    rule = Rule(effect="deny", command=("git", "push", "--force"))
    assert effect(f"git push origin {many} -f", Rule(effect="allow", command=("git", "push")), rule) == "deny"
    shown = f"sudo git push origin {many} -f"
    assert effect(shown, allowed_as_a_whole(shown), rule) in ("ask", "deny")


def test_too_many_commands_to_compare_are_asked_about() -> None:
    shown = "sudo sh -c $X " + "git status " * 300
    assert effect(shown, allowed_as_a_whole(shown), Rule(effect="deny", command=("git", "push", "--force"))) == "ask"


@pytest.mark.needs_git
@pytest.mark.parametrize(
    "command",
    [
        "push",
        "reset",
        "clean",
        "checkout",
        "switch",
        "restore",
        "branch",
        "tag",
        "commit",
        "rebase",
        "merge",
        "rm",
        "config",
    ],
)
def test_the_table_has_every_option_of_the_git_that_is_here(command: str, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    listed = subprocess.run(
        ["git", command, "--git-completion-helper-all"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    grammar = grammar_of(f"git {command}")
    assert grammar is not None
    options = {word.rstrip("=") for word in listed.stdout.split() if word != "--" and not word.startswith("--no-")}
    options.discard("--preserve-merges")  # gone in newer ones
    assert {word for word in options if word not in grammar.options} == set()
    takes_value = {word.rstrip("=") for word in listed.stdout.split() if word.endswith("=")}
    assert {word for word in options if (grammar.options[word].value == "=") != (word in takes_value)} <= VALUE_OR_NOT


VALUE_OR_NOT = {"--contains", "--with", "--without", "--points-at", "--file"}
"""Options whose value git's list does not show, since it may be left out at the end."""


@pytest.mark.needs_git
def test_the_table_has_every_command_of_the_git_that_is_here() -> None:
    listed = subprocess.run(["git", "--list-cmds=builtins"], capture_output=True, text=True, check=True)
    assert {word for word in listed.stdout.split() if "--" not in word} - GIT_COMMANDS - NOT_FOR_PEOPLE == set()


NOT_FOR_PEOPLE = {"fsck-objects", "merge-recursive-ours", "merge-recursive-theirs", "remote-ext", "remote-fd"}


PROGRAM = re.compile(
    r"(-[\w-]+)(?:, (--[\w-]+))?[ =\[]+<(?:cmd|command|exec|pager|git-upload-pack|template-directory)>"
)


@pytest.mark.needs_git
def test_every_option_of_the_git_that_is_here_which_names_a_program_is_known(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    found = set[str]()
    for command in sorted(names("git own work")):
        usage = subprocess.run(
            ["git", command, "-h"], cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        for match in PROGRAM.finditer(usage.stdout + usage.stderr):
            for option in filter(None, match.groups()):
                found.add(f"{command} {option}")
                assert git_runs_others(command, [option, "x"]), f"git {command} {option}"
    assert {"grep -O", "archive --exec", "init --template", "ls-remote --upload-pack"} <= found


@pytest.mark.parametrize(
    ("prefix", "text", "expected"),
    [
        ("git", "git status", "allow"),
        ("git", "git grep -O./x y", "ask"),
        ("git", "git for-each-repo --config=a.b push -f", "ask"),
        ("git bisect run", "git bisect run make", "allow"),
        ("git grep", "git grep x", "allow"),
        ("git grep", "git grep --open-files-in-pager=./x y", "ask"),
        ("git fetch", "git fetch --upload-pack=./x y", "ask"),
        ("rg", "rg x", "allow"),
        ("rg", "rg --pre ./x y", "ask"),
    ],
)
def test_first_words_allow_no_program_outside_the_sandbox_that_further_words_name(
    prefix: str, text: str, expected: str
) -> None:
    rule = Rule(effect="allow", command=tuple(prefix.split()), outside=True, prefix=True)
    assert effect(text, rule, sandbox="outside") == expected


@pytest.mark.parametrize("text", ["git subtree push x", "git for-each-repo x", "git grep -O x", "git send-email x"])
def test_no_prefix_is_offered_that_runs_what_further_words_name(text: str) -> None:
    assert sensible_prefix(tuple(text.split())) is None


@pytest.mark.parametrize("program", ["rm", "chmod", "chown", "sed", "make"])
def test_the_table_has_every_option_that_the_program_itself_lists(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"There is no {program} here.")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    if "GNU" not in version.stdout:
        pytest.skip(f"This is not GNU's {program}.")
    grammar = grammar_of(program)
    assert grammar is not None
    options = {
        option.strip().split("=")[0].split("[")[0].split(" ")[0]
        for line in done.stdout.splitlines()
        if line.strip().startswith("-")
        for option in line.strip().split("  ")[0].split(",")
        if option.strip().startswith("-")
    }
    assert len(options) > 5
    assert {option for option in options if option not in grammar.options} <= {"--help", "--version"}
