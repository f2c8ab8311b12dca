"""Tests of parsing commands, compared with what a real shell runs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helmsman.approvals.shell_words import SimpleCommand, innermost_script, parse_command, quoted


def words(text: str) -> list[list[str]] | None:
    commands = parse_command(text)
    return None if commands is None else [list(command.words) for command in commands]


GIT_STATUS = [["git", "status"]]

UNDERSTOOD = [
    ("git status", GIT_STATUS),
    ("  git \t status  ", GIT_STATUS),
    ("git status\n", GIT_STATUS),
    ("\n\n git status\n\n", GIT_STATUS),
    ("git 'status'", GIT_STATUS),
    ('git "status"', GIT_STATUS),
    ("g''it st\"at\"us", GIT_STATUS),
    ("g\\it \\s\\tatus", GIT_STATUS),
    ("gi\\\nt sta\\\ntus", GIT_STATUS),
    ("git \\\n  status", GIT_STATUS),
    ("'git' status", GIT_STATUS),
    ("git status;", GIT_STATUS),
    ("git status &", GIT_STATUS),
    ("git status & ls", [*GIT_STATUS, ["ls"]]),
    ("git status && ls", [*GIT_STATUS, ["ls"]]),
    ("git status&&ls", [*GIT_STATUS, ["ls"]]),
    ("git status || ls -la", [*GIT_STATUS, ["ls", "-la"]]),
    ("git status; ls", [*GIT_STATUS, ["ls"]]),
    ("git status\nls", [*GIT_STATUS, ["ls"]]),
    ("git status &&\n\n ls", [*GIT_STATUS, ["ls"]]),
    ("git status | head -n 5 | wc -l", [*GIT_STATUS, ["head", "-n", "5"], ["wc", "-l"]]),
    ("cd sub && git status", [["cd", "sub"], *GIT_STATUS]),
    ("echo ''", [["echo", ""]]),
    ("echo \"\" ''", [["echo", "", ""]]),
    ("echo 'a  b'", [["echo", "a  b"]]),
    ("echo 'a\nb'", [["echo", "a\nb"]]),
    ("echo '; rm -rf /'", [["echo", "; rm -rf /"]]),
    ("echo '$(id)' '`id`' '${x}' '*' '~' '#' '!'", [["echo", "$(id)", "`id`", "${x}", "*", "~", "#", "!"]]),
    (
        'echo "; rm" "&& x" "| y" "a > b" "(c)" "#d" "*" "~"',
        [["echo", "; rm", "&& x", "| y", "a > b", "(c)", "#d", "*", "~"]],
    ),
    ('echo "a\\$b" "a\\`b" "a\\"b" "a\\\\b" "a\\b"', [["echo", "a$b", "a`b", 'a"b', "a\\b", "a\\b"]]),
    ('echo "a\\\nb"', [["echo", "ab"]]),
    (
        "echo \\$HOME \\; \\& \\| \\> \\< \\( \\) \\* \\# \\~ \\' \\\" \\\\",
        [["echo", "$HOME", ";", "&", "|", ">", "<", "(", ")", "*", "#", "~", "'", '"', "\\"]],
    ),
    ("echo a\\ b", [["echo", "a b"]]),
    ("echo it\\'s", [["echo", "it's"]]),
    ("git show HEAD~1 HEAD^", [["git", "show", "HEAD~1", "HEAD^"]]),
    (
        "git log a..b --format=%h -n5 user@host:x +x a,b",
        [["git", "log", "a..b", "--format=%h", "-n5", "user@host:x", "+x", "a,b"]],
    ),
    ("echo 'Füße' \"日本\"", [["echo", "Füße", "日本"]]),
    ("git status 2>/dev/null", GIT_STATUS),
    ("git status >/dev/null 2>&1", GIT_STATUS),
    ("git status > /dev/null", GIT_STATUS),
    ("git status >'/dev/null'", GIT_STATUS),
    ("git status 2>&1 | cat", [*GIT_STATUS, ["cat"]]),
    ("2>/dev/null git status", GIT_STATUS),
    ("git 2>/dev/null status", GIT_STATUS),
    ("git status 2>&-", GIT_STATUS),
    ("git status >&2", GIT_STATUS),
    ("git status <&-", GIT_STATUS),
    ("wc -l < file", [["wc", "-l"]]),
    ("wc -l <file", [["wc", "-l"]]),
    ("wc -l < /dev/null", [["wc", "-l"]]),
    ("echo 2 >/dev/null", [["echo", "2"]]),
    ("echo '2'>/dev/null", [["echo", "2"]]),
    ("echo a2>/dev/null", [["echo", "a2"]]),
    ("bash run.sh", [["bash", "run.sh"]]),
    ("bash run.sh --check -c x", [["bash", "run.sh", "--check", "-c", "x"]]),
    ("bash", [["bash"]]),
    ("env git status", [["env", "git", "status"]]),
    ("sudo git status", [["sudo", "git", "status"]]),
    ("xargs git status", [["xargs", "git", "status"]]),
    ("nohup git status &", [["nohup", "git", "status"]]),
    ("find . -name x -exec rm '{}' +", [["find", ".", "-name", "x", "-exec", "rm", "{}", "+"]]),
    # Shells around a script.
    ("/bin/bash -lc 'git status'", GIT_STATUS),
    ("/bin/bash -lc 'git status && ls'", [*GIT_STATUS, ["ls"]]),
    ("/bin/bash -c 'git status'", GIT_STATUS),
    ("bash -lc 'git status'", GIT_STATUS),
    ("/usr/bin/bash -l -c 'git status'", GIT_STATUS),
    ("bash --login -c 'git status'", GIT_STATUS),
    ("bash -euxc 'git status'", GIT_STATUS),
    ("bash -e -u -c 'git status'", GIT_STATUS),
    ("/bin/zsh -lc 'git status'", GIT_STATUS),
    ("zsh -c 'git status'", GIT_STATUS),
    ("/bin/sh -c 'git status'", GIT_STATUS),
    ("dash -c 'git status'", GIT_STATUS),
    ("bash -lc \"bash -c 'git status'\"", GIT_STATUS),
    ("bash -lc 'cd x && sh -c \"git status\"'", [["cd", "x"], *GIT_STATUS]),
    ("/bin/bash -lc 'git status &>/dev/null'", GIT_STATUS),
    ("/bin/bash -lc 'git status |& cat'", [*GIT_STATUS, ["cat"]]),
    ("""/bin/bash -lc "echo \\$'a\\\\n\\\\'b'" """, [["echo", "a\n'b"]]),
    # As Codex 0.93 to 0.166 were seen to quote them.
    ("/bin/bash -lc \"echo it\\\\'s 'a b'\"", [["echo", "it's", "a b"]]),
    ("/bin/bash -lc \"printf '%s\\\\n' \\\"a b\\\" '\"'$x'\"'\"", [["printf", "%s\\n", "a b", "$x"]]),
    ("/bin/bash -lc 'touch ''x^ '\"\\\\~\"", [["touch", "x^", "~"]]),
    ("/bin/bash -lc 'echo multi\necho line'", [["echo", "multi"], ["echo", "line"]]),
]


@pytest.mark.parametrize(("text", "expected"), UNDERSTOOD)
def test_a_command_is_taken_apart_into_its_words(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


NOT_UNDERSTOOD = [
    "git push 2''>&1 --force",
    # Nothing, or a piece of something.
    "", " ", "\n", ";", "&&", "|", "git status &&", "git status ||", "git status |", "&& git status",
    "git status ;; ls", "git status ; ; ls", "git status &; ls", "git status & & ls", "git status | | ls",
    "| git status", "; git status", "git 'status", 'git "status', "git status\\", "git status >", "git status <",
    "git status 2>", "git status >&",
    # Expansions.
    "git $X", "git ${X}", 'git "$X"', 'git "${X}"', "git $(id)", "git `id`", 'git "$(id)"', 'git "`id`"',
    "git $((1+1))", "$X status", "git status$", 'git "a$"', "git $'status'", 'git $"status"', "git $1", "git $@",
    "git $?", "git $$", "git *", "git a*b", "git ?", "git [ab]", "git {a,b}", "git {a..b}", "git a{b", "git }",
    "git ~", "git ~/x", "git ~root", "git show HEAD^^", "git --x=~/y", "git a:~/y", "=ls", "git =ls", "git ^x",
    "git !!", "git !x", 'git "a!b"', 'git "a\\!b"',
    # The shell language.
    "(git status)", "{ git status; }", "git status; (ls)", "! git status", "if true; then ls; fi",
    "if ls; then ls; fi", "for x in a b; do ls; done", "while true; do ls; done", "case x in x) ls;; esac",
    "f() { ls; }", "function f { ls; }", "[[ -f x ]]", "[ -f x ]", "((x=1))", "time ls", "coproc ls",
    "select x in a; do ls; done", "until ls; do ls; done", "cat <<EOF\nx\nEOF", "cat <<-EOF\nx\nEOF", "cat <<<x",
    "cat <(ls)", "tee >(ls)", "git status # x", "# git status", "#", "a=(1 2) ls", "a[0]=1 ls", "{fd}>x ls",
    "cat 10<x", "cat 10>/dev/null", "repeat 3 ls", "noglob ls", "- ls",
    # Builtins that run or change things.
    "eval ls", "exec ls", "command ls", "builtin ls", ". ./x", "source x", "trap ls EXIT", "alias ls=rm",
    "export PATH=x", "set -e", "shopt -s extglob", "setopt x", "declare x=1", "read x", "read PATH < x",
    "printf -v PATH x", "let x=1", "test -v x", "mapfile -C ls x", "compgen -C ls", "hash -p /x ls", "enable -f x",
    "unset PATH", "emulate sh", "fc -s", "typeset x", "local x", "readonly x", "getopts a x", "wait -p x",
    "jobs -x ls", "umask 0", "ulimit -f 0", "exit 0", "'eval' ls", "\\eval ls", "e''val ls", "git status; eval ls",
    "git status && . x", "pushd x", "unalias ls", "print x",
    # Assignments that last.
    "PATH=/x", "PATH=/x; git status", "A=1 B=2", "git status; PATH=/x", "PATH=/x && ls", "A=", "A+=x",
    # Redirections that are something else.
    "git status &>/dev/null", "git status |& ls", "git status >&x", "git status <&x", "git status >&1x",
    "cat </dev/tcp/h/1", "cat < /dev/udp/h/1", "cat < '/dev/tcp/h/1'", "git status &> x", "> x", "< x",
    ">/dev/null", "git status >/dev/null; >x", "git a!b", "git status >!x", "git status >>|", "git status > $X",
    "git status > *", "git status 2 >&$X",
    # Characters that are not what they seem.
    "git\u00a0status", "git\u2003status", "git status\r", "git status\x00", "git\x0bstatus", "git \x1b[2Kstatus",
    "git\u200b status", "g\u0456t status", "\uff47it status", "git \u202estatus", "git '\u202e'", "git '\u200b'",
    "git '\x07'", "git st\u00e4tus", "git status\uff1b ls", "git status \u037e ls", "'g\u0456t' status",
    "git \ufeffstatus", "git '\ud800'", "git\u2028ls",
    # Programs with odd names.
    "''", "'' x", "-x", "+x", "%1", "'a=b' c", "1=2 x", "a/b=c x",
    # Shells that are not what they seem, or that do more than run a script.
    "./bash -c 'git status'", "/tmp/bash -lc 'git status'", "/bash -c ls", "bin/bash -c ls", "../sh -c ls", "fish -c ls",
    "ksh -c ls", "bash -ic 'git status'", "bash -c", "bash -lc", "bash -c 'ls' x", "bash -c ls -l", "bash -c -l ls",
    "bash -c ''", "bash -c ' '", "bash -o pipefail -c ls", "bash --rcfile x -c ls", "bash -s", "bash --init-file x",
    "bash +x -c ls", "X=1 bash -c ls", "bash -c ls > x", "bash -c ls < x", "bash -x run.sh", "bash -c '-x'",
    "bash -- -c ls", "bash -lc 'git $X'", "bash -lc 'git status", "bash -lc 'eval ls'", "bash -lc 'PATH=x; ls'",
    "bash -lc 'x &'  'y'", "bash -c \"bash -c 'bash -c \\\"bash -c ls\\\"'\"", "sh -c 'git status &>/dev/null ls'",
    "sh -c \"echo \\$'a\\\\'; ls #'\"", "sh -c 'git status |& ls'",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_UNDERSTOOD)
def test_computed_and_disguised_commands_are_not_understood(text: str) -> None:
    assert parse_command(text) is None


def test_a_text_longer_than_any_sensible_command_is_not_understood() -> None:
    assert parse_command("echo " + "x" * 30_000) is not None
    assert parse_command("echo " + "x" * 40_000) is None


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        ("ls > x", True),
        ("ls >x", True),
        ("ls >> x", True),
        ("ls >| x", True),
        ("ls <> x", True),
        ("ls 2> x", True),
        ("> x ls", True),
        ("ls > /dev/null > x", True),
        ("ls > x > /dev/null", True),
        ("ls > /dev/nullx", True),
        ("ls > /dev/../x", True),
        ("ls > ''", True),
        ("bash -lc 'ls &> x'", True),
        ("bash -lc 'ls &>> x'", True),
        ("ls > /dev/null", False),
        ("ls 2>&1", False),
        ("ls < x", False),
        ("ls '>' x", False),
        ("ls \\> x", False),
    ],
)
def test_output_into_a_file_is_a_write(text: str, writes: bool) -> None:
    commands = parse_command(text)
    assert commands is not None
    assert [command.writes for command in commands] == [writes]


def test_only_the_redirected_command_writes() -> None:
    commands = parse_command("ls > x; git status | cat")
    assert commands is not None
    assert [command.writes for command in commands] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "env", "command"),
    [
        ("A=1 git status", ("A",), ["git", "status"]),
        ("A=1 B='x y' git status", ("A", "B"), ["git", "status"]),
        ("A= git status", ("A",), ["git", "status"]),
        ("A+=1 git status", ("A",), ["git", "status"]),
        ("LD_PRELOAD=/x.so git status", ("LD_PRELOAD",), ["git", "status"]),
        ("A=1 2>/dev/null git status", ("A",), ["git", "status"]),
        ("A\\\nB=1 git status", ("AB",), ["git", "status"]),
        ("bash -lc 'A=1 git status'", ("A",), ["git", "status"]),
        ("git A=1 status", (), ["git", "A=1", "status"]),
        ("make A=1", (), ["make", "A=1"]),
    ],
)
def test_variables_set_for_a_command_are_named(text: str, env: tuple[str, ...], command: list[str]) -> None:
    assert parse_command(text) == (SimpleCommand(tuple(command), env=env),)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("git status", "git status"),
        ("/bin/bash -lc 'rm $X'", "rm $X"),
        ("/bin/bash -lc \"sh -c 'rm \\$X'\"", "rm $X"),
        ("bash -lc 'a' && b", "bash -lc 'a' && b"),
        ("bash -lc 'unfinished", "bash -lc 'unfinished"),
        ("/tmp/bash -lc 'rm x'", "/tmp/bash -lc 'rm x'"),
    ],
)
def test_shells_are_taken_off_a_script_that_is_not_understood(text: str, script: str) -> None:
    assert innermost_script(text) == script


@given(st.text())
def test_no_text_whatever_raises(text: str) -> None:
    parse_command(text)
    innermost_script(text)


# --- against real shells ---------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *(
            "git",
            "ls",
            "aa",
            "bb",
            "status",
            "-x",
            "--y=z",
            "cd",
            "echo",
            "printf",
            "true",
            "A=1",
            "B=",
            "PATH=x",
            "2",
            "1",
        ),
        *(
            " ",
            " ",
            " ",
            " ",
            "\n",
            "\t",
            ";",
            "&",
            "&&",
            "|",
            "||",
            "|&",
            "&>",
            ">&",
            ">",
            ">>",
            "<",
            "<<",
            "<<<",
            "<>",
        ),
        *(" >x ", " 2>&1 ", " >/dev/null ", " &>/dev/null ", " <x ", ">|x", "2>x", "<&-"),
        *(
            "'",
            "'",
            '"',
            '"',
            "\\",
            "\\\n",
            "$",
            "$'",
            '$"',
            "`",
            "$(",
            "${",
            "(",
            ")",
            "{",
            "}",
            "[",
            "]",
            "*",
            "?",
            "~",
        ),
        *(
            "#",
            "!",
            "=",
            "+=",
            ":",
            ",",
            "%",
            "@",
            "^",
            "if",
            "then",
            "fi",
            "eval",
            "exec",
            "command",
            "time",
            "!!",
            "\r",
        ),
        *("bash -c ", "sh -c ", "bash -c 'git status'", "\\'", '\\"', "''", '""', "\\n", "\\t", "\\\\", "x", "y", "é"),
        *("; ls", "&& ls", "$(ls)", "`ls`", "\nls", "| ls", "& ls", "' ls '", '" ls "', "<(ls)", "\u00a0", " ~", "*x"),
    ]
)
RANDOM_SCRIPTS = st.lists(PIECES, min_size=1, max_size=10).map("".join)
GOOD_SCRIPTS = st.sampled_from(
    [
        "git status -x",
        "git status && ls -x | aa 'b c'",
        "aa \"b c\" 'd e' f\\ g; bb",
        "aa >/dev/null 2>&1 b || bb <x",
        "A=1 aa b & bb",
        "cd . && git show y~1 y^ 'é'",
        "bash -c 'git status' && sh -c \"aa 'b c'\"",
        "aa $'b\\'c' \\\n d",
        "git status &>/dev/null; bb |& aa",
        "echo a\ngit status\n\nls",
    ]
)


@st.composite
def damaged_scripts(draw: st.DrawFn) -> str:
    """Return a good script with an insertion."""
    script = draw(GOOD_SCRIPTS)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(script)))
        script = script[:at] + draw(PIECES) + script[at:]
    return script


SCRIPTS = damaged_scripts() | RANDOM_SCRIPTS


class Laboratory:
    """Place with programs that only record their calls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs = folder / "programs"
        self._programs.mkdir()
        for name in ("git", "ls", "aa", "bb", "status", "x", "y"):
            self._program(name, 'for word in "${0##*/}" "$@"; do printf "%s\\0" "$word"; done > "$CALLS/$$"')
        self._handler = folder / "handler"
        self._handler.write_text(
            'command_not_found_handle() { printf "%s\\0" "$@" > "$CALLS/$BASHPID.$RANDOM"; }', encoding="utf-8"
        )
        for shell in ("bash", "sh"):
            if found := shutil.which(shell):
                (self._programs / shell).symlink_to(found)

    def _program(self, name: str, script: str) -> None:
        program = self._programs / name
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)

    def calls(self, shell: str, script: str) -> list[list[str]]:
        """Return what a real shell runs for this script, including background commands."""
        work = Path(tempfile.mkdtemp(dir=self._folder))
        (work / "x").write_text("", encoding="utf-8")
        calls = work / "calls"
        calls.mkdir()
        env = {"PATH": str(self._programs), "CALLS": str(calls), "BASH_ENV": str(self._handler), "LC_ALL": "C.UTF-8"}
        read_end, write_end = os.pipe()  # closed by the system when the last process that was started has ended
        quiet = subprocess.DEVNULL
        with os.fdopen(read_end, "rb") as ended:
            with os.fdopen(write_end, "wb"):
                subprocess.run(
                    [shell, "-c", script],
                    cwd=work,
                    env=env,
                    stdin=quiet,
                    stdout=quiet,
                    stderr=quiet,
                    pass_fds=[write_end],
                    timeout=20,
                    check=False,
                )
            ended.read()
        found = [file.read_text(encoding="utf-8").removesuffix("\0").split("\0") for file in calls.iterdir()]
        shutil.rmtree(work)
        return found


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    return Laboratory(tmp_path_factory.mktemp("laboratory"))


def real_shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"There is no {name} here.")
    return found


def check_nothing_else_runs(laboratory: Laboratory, name: str, script: str) -> None:
    understood = words(f"{name} -c {shlex.quote(script)}")
    if understood is not None:
        for call in laboratory.calls(real_shell(name), script):
            assert call in understood


@settings(max_examples=300, deadline=None)
@given(script=SCRIPTS)
def test_bash_runs_nothing_that_was_not_found_in_an_understood_command(laboratory: Laboratory, script: str) -> None:
    check_nothing_else_runs(laboratory, "bash", script)


@settings(max_examples=200, deadline=None)
@given(script=SCRIPTS)
def test_a_plain_sh_runs_nothing_that_was_not_found_in_an_understood_command(
    laboratory: Laboratory, script: str
) -> None:
    check_nothing_else_runs(laboratory, "dash", script)


@pytest.mark.parametrize(("text", "expected"), UNDERSTOOD)
def test_bash_agrees_on_the_words_of_the_table(laboratory: Laboratory, text: str, expected: list[list[str]]) -> None:
    script = innermost_script(text)
    for call in laboratory.calls(real_shell("bash"), script):
        assert call in expected


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    arguments=st.lists(
        st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"])), min_size=1, max_size=4
    )
)
def test_quoted_words_come_out_as_bash_takes_them(laboratory: Laboratory, arguments: list[str]) -> None:
    script = quoted(["aa", *arguments])
    understood = words(script)
    if all(char.isprintable() for word in arguments for char in word):
        assert understood == [["aa", *arguments]]
        assert laboratory.calls(real_shell("bash"), script) == understood
    else:
        assert understood is None
