"""Commands for `test_effects.py`: allowed ones after a twist, and the many ways to write what a rule denies.

Whatever is made here may really run, so it is put together of pieces whose paths all lie in the laboratory.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from helmsman.base.structs import replace
from tests.fuzz.effects_laboratory import EffectsLaboratory

# --- allowed commands after a twist ----------------------------------------------------------------------------------

ALLOWED = [
    ("git", "status"),
    ("./run.sh",),
    ("make", "test"),
    ("sed", "-n", "p", "notes.txt"),
    ("tar", "-cf", "data.tar", "tree"),
    ("find", ".", "-name", "notes.txt"),
    ("git", "clone", "-q", "../remote.git", "copy"),
    ("git", "archive", "HEAD"),
    ("rm", "-r", "tree"),
]
OUT = "../outside/written"


def _more_words(canary: str) -> dict[str, list[list[str]]]:
    """Additional options that make a program run or write something else."""
    return {
        "git": [
            ["-u", f"{canary};git-upload-pack"],
            [f"--upload-pack={canary};git-upload-pack"],
            ["-o", OUT],
            [f"--output={OUT}"],
        ],
        "sed": [["-e", f"1e {canary}"], ["-e", f"1w {OUT}"], ["-i", "-e", "d", "../outside/keep.txt"]],
        "make": [[f"--eval=$(shell {canary})"], ["-C", "sub"], ["-f", "other.mk"], [f"SHELL={canary}"]],
        "tar": [["--checkpoint=1", f"--checkpoint-action=exec={canary}"], ["-f", OUT], [f"-I{canary}"]],
        "find": [["-exec", canary, ";"], ["-fprint", OUT], ["-o", "-path", "./sub/run.sh", "-exec", "{}", ";"]],
        "rm": [["../outside/dir"], ["--", "../outside/keep.txt"]],
        "./run.sh": [["x"]],
    }


def _twist(draw: st.DrawFn, command: str, program: str, canary: str) -> str:
    code = f"$(shell {canary})"
    match draw(st.sampled_from(["words", "words", "options", "env", "redirect", "join", "cd", "wrap", "quote"])):
        case "words":
            return f"{command} {shlex.join(draw(st.sampled_from(_more_words(canary)[program])))}"
        case "options" if program == "git":
            options = draw(
                st.sampled_from(["-C sub", f"-c core.fsmonitor={canary}", "--git-dir=sub/.git", "--no-pager"])
            )
            return command.replace("git ", f"git {options} ", 1)
        case "env":
            setting = f"GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.fsmonitor GIT_CONFIG_VALUE_0={canary}"
            tar_options = f"TAR_OPTIONS='--checkpoint=1 --checkpoint-action=exec={canary}'"
            settings = [setting, "PATH=sub", f"MAKEFLAGS='--eval={code}'", tar_options, "X=1", f"BASH_ENV={canary}"]
            return f"{draw(st.sampled_from(settings))} {command}"
        case "redirect":
            targets = [
                f">{OUT}",
                f"2>{OUT}",
                ">>../outside/keep.txt",
                f"&>{OUT}",
                f">|{OUT}",
                ">/dev/null",
                "2>&1",
                "</dev/null",
            ]
            return f"{command} {draw(st.sampled_from(targets))}"
        case "join":
            joined = [
                "; {}",
                " && {}",
                " || {}",
                " | {}",
                " & {}",
                "\n{}",
                " $({})",
                " `{}`",
                " <({})",
                " &",
                "; ./run.sh",
            ]
            return command + draw(st.sampled_from(joined)).format(canary)
        case "cd":
            return (
                draw(st.sampled_from(["cd sub && ", "cd sub; ", "cd tree/../sub && ", "cd . && ", "cd sub/.. && "]))
                + command
            )
        case "wrap":
            shells = [
                "bash -c {}",
                "sh -c {}",
                "/bin/bash -lc {}",
                "./bash -c {}",
                "sub/bash -c {}",
                "BASH_ENV=./startup bash -c {}",
            ]
            shells += ["bash -c {} x", "bash --rcfile startup -ic {}", "env {}", "PATH=sub bash -c {}", "sh -ec {}"]
            return draw(st.sampled_from(shells)).format(shlex.quote(command))
        case _:
            return command.replace(program, draw(st.sampled_from([f"'{program}'", f'"{program}"', f"''{program}"])), 1)


@st.composite
def twisted_commands(draw: st.DrawFn, laboratory: EffectsLaboratory) -> tuple[str, Path]:
    """A command that a rule allows after a few twists, and the directory it is to run in."""
    words = draw(st.sampled_from(ALLOWED))
    command = shlex.join(words)
    for _ in range(draw(st.integers(0, 3))):
        command = _twist(draw, command, words[0], str(laboratory.canary))
    return command, draw(st.sampled_from([laboratory.work, laboratory.work, laboratory.work / "sub"]))


# --- denied commands -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Denied:
    """A deny rule, the ways to write what it means, and how to see that it has happened.

    `options` are several ways, each a list of options that are all needed, each of these in several spellings.
    """

    rule: str
    options: tuple[tuple[tuple[str, ...], ...], ...]
    operands: tuple[str, ...]
    happened: Callable[[EffectsLaboratory, int], bool]
    harmless: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.rule


def _amended(laboratory: EffectsLaboratory, _: int) -> bool:
    return laboratory.git("rev-list", "--count", "HEAD") == "2" and laboratory.git(
        "log", "-1", "--format=%s%N", "HEAD@{1}"
    ) == ("mine")


def _remote_main(laboratory: EffectsLaboratory, place: str) -> str:
    ref = laboratory.folder / place / "remote.git" / "refs" / "heads" / "main"
    return ref.read_text(encoding="utf-8") if ref.exists() else ""


DENIED = [
    Denied(
        "git push --force",
        ((("-f", "--force", "--force-with-lease"),), (("--mirror",),), (), ()),
        ("origin", "main|HEAD:main|+main|+HEAD:main|+HEAD:refs/heads/main|main:main"),
        lambda laboratory, _: _remote_main(laboratory, "live") != _remote_main(laboratory, "template"),
        ("-v", "-q", "-u", "--progress", "--no-verify", "--porcelain", "--atomic", "--follow-tags", "--verbose"),
        (
            "git -c remote.origin.push=+HEAD:main push origin",
            "git -c remote.origin.mirror=true push origin",
            "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=remote.origin.push GIT_CONFIG_VALUE_0=+HEAD:main git push origin",
            "git send-pack -f ../remote.git main",
        ),
    ),
    Denied(
        "rm -rf",
        ((("-r", "-R", "--recursive"), ("-f", "--force")),),
        ("missing", "tree"),
        lambda laboratory, status: status == 0 and not (laboratory.work / "tree").exists(),
        ("-v", "--verbose", "--one-file-system", "-d"),
    ),
    Denied(
        "git branch -D",
        ((("-D",),), (("-d", "--delete"), ("-f", "--force"))),
        ("apart",),
        lambda laboratory, _: not (laboratory.work / ".git" / "refs" / "heads" / "apart").exists(),
        ("-q", "--quiet"),
    ),
    Denied(
        "git reset --hard",
        ((("--hard",),),),
        ("HEAD|main|@",),
        lambda laboratory, _: (laboratory.work / "notes.txt").read_text(encoding="utf-8") == "one\n",
        ("-q", "--quiet", "--no-recurse-submodules"),
    ),
    Denied(
        "git clean -f",
        ((("-f", "--force"),),),
        ("untracked.txt",),
        lambda laboratory, _: not (laboratory.work / "untracked.txt").exists(),
        ("-q", "-d", "-x", "--exclude=x"),
        ("git -c clean.requireForce=false clean untracked.txt",),
    ),
    Denied(
        "git commit --amend",
        ((("--amend",),),),
        (),
        _amended,
        ("-q", "-a", "--no-edit", "--allow-empty", "--no-verify", "--reset-author"),
    ),
    Denied(
        "sed -i",
        ((("-i", "--in-place", "-i.bak", "--in-place=.bak"),),),
        ("s/one/two/", "notes.txt"),
        lambda laboratory, _: "two" in (laboratory.work / "notes.txt").read_text(encoding="utf-8"),
        ("-E", "-s", "-u", "--posix"),
    ),
    Denied(
        "find -delete",
        (),
        (),
        lambda laboratory, _: not (laboratory.work / "tree" / "deep" / "file").exists(),
        (),
        (
            "find tree -delete",
            "find tree -type f -delete",
            "find -L tree -name '*' -print -delete",
            "find tree -type f -exec rm '{}' +",
            "find tree -type f -execdir rm '{}' ';'",
        ),
    ),
    Denied(
        "tar -x",
        ((("-x", "--extract", "--get"), ("-fpacked.tar", "--file=packed.tar", "-f packed.tar")),),
        (),
        lambda laboratory, _: (laboratory.work / "unpacked.txt").exists(),
        ("-v", "-p", "--no-same-owner"),
        ("tar xf packed.tar", "tar xvf packed.tar", "tar fx packed.tar", "tar -xvf packed.tar"),
    ),
    Denied(
        "chmod -R",
        ((("-R", "--recursive"),),),
        ("0700", "tree"),
        lambda laboratory, _: (laboratory.work / "tree" / "deep" / "file").stat().st_mode & 0o777 == 0o700,
        ("-v", "-c", "-f", "--silent"),
    ),
    Denied(
        "make fresh",
        ((),),
        ("fresh",),
        lambda laboratory, _: (laboratory.work / "made").exists(),
        ("-s", "-C .", "-f Makefile", "X=1", "-k", "--jobs=2"),
        ("make --eval='test: fresh'", "make '--eval=$(shell make fresh)' test", "make -E 'all: fresh' all"),
    ),
]


DENIED.append(replace(DENIED[1], rule="rm --recursive --force"))


def _spelled(draw: st.DrawFn, option: str) -> str:
    """The option, a long one perhaps abbreviated."""
    name, equals, value = option.partition("=")
    if not name.startswith("--"):
        return option
    return name[: draw(st.integers(3, len(name)))] + equals + value if draw(st.booleans()) else option


def _bundled(draw: st.DrawFn, options: list[str]) -> list[str]:
    """Some of the letters in one word."""
    letters = [option[1] for option in options if len(option) == 2]
    if len(letters) < 2 or draw(st.booleans()):
        return options
    return [option for option in options if len(option) != 2] + ["-" + "".join(letters)]


def _arguments(draw: st.DrawFn, denied: Denied) -> list[str]:
    way = draw(st.sampled_from(denied.options))
    harmless = draw(st.lists(st.sampled_from(denied.harmless), max_size=2)) if denied.harmless else []
    options = [_spelled(draw, draw(st.sampled_from(spellings))) for spellings in way]
    options = draw(st.permutations(_bundled(draw, [*options, *harmless])))
    operands = [draw(st.sampled_from(operand.split("|"))) for operand in denied.operands]
    if any(option.startswith("--m") for option in options) and denied.rule.startswith("git push"):
        operands = operands[:1]  # --mirror pushes everything
    at = draw(st.integers(0, len(options)))
    return [*options[:at], *operands, *options[at:]]


@cache
def _git_core() -> str:
    return subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()


def _in_git(draw: st.DrawFn, subcommand: str, arguments: str) -> str:
    setting = "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.zz"
    return draw(
        st.sampled_from(
            [
                f"git {subcommand} {arguments}",
                f"git {subcommand} {arguments}",
                f"git -C . {subcommand} {arguments}",
                f"git --no-pager -c color.ui=never {subcommand} {arguments}",
                f"git --git-dir=.git --work-tree . {subcommand} {arguments}",
                f"git -c alias.zz={subcommand} zz {arguments}",
                f"git -c alias.zz={shlex.quote(f'{subcommand} {arguments}')} zz",
                f"git -c alias.zz={shlex.quote(f'!git {subcommand} {arguments}')} zz",
                f"git -c alias.yy={subcommand} -c alias.zz=yy zz {arguments}",
                f"git -c alias.{subcommand}=status {subcommand} {arguments}",
                f"{setting} GIT_CONFIG_VALUE_0={subcommand} git zz {arguments}",
                f"{_git_core()}/git-{subcommand} {arguments}",
                f'"$(git --exec-path)/git-{subcommand}" {arguments}',
            ]
        )
    )


def _disguised(draw: st.DrawFn, command: str) -> str:
    """The same command through something else."""
    program, _, arguments = command.partition(" ")
    quoted = shlex.quote(command)
    plain = "=" not in program and program[0] != '"'  # variables may stand before it
    ways = [
        "{command}",
        "{command}",
        "bash -c {quoted}",
        "sh -c {quoted}",
        "if true; then {command}; fi",
        "({command})",
    ]
    ways += [
        "{{ {command}; }}",
        "eval {quoted}",
        "true && {command}",
        "cd . && {command}",
        "X=1; {command} $Y",
        "env {command}",
    ]
    ways += [
        "echo {quoted} | sh",
        "bash <<< {quoted}",
        ". <(echo {quoted})",
        "xargs -I% sh -c % <<< {quoted}",
        "X=1 {command}",
    ]
    ways += [
        "sed {evaluated} notes.txt",
        "make --eval={target} zz",
        "for x in 1; do {command}; done",
        "{command} > log.txt",
    ]
    ways += [
        "trap {quoted} EXIT",
        "X={quoted}; eval $X",
        'X={quoted}; eval "$X"',
        "f() {{ {command}; }}; f",
        "! ! {command}",
    ]
    if plain:
        ways += [
            "command {command}",
            "nice {command}",
            "{path} {arguments}",
            "X={program}; $X {arguments}",
            "\\{command}",
        ]
        ways += [
            "{program} $(echo {spread})",
            "{program} `echo {spread}`",
            "echo {spread} | xargs {program}",
            "{hidden} {arguments}",
        ]
        ways += [
            'f() {{ {program} "$@"; }}; f {arguments}',
            "X={spread}; {program} $X",
            'set -- {arguments}; {program} "$@"',
        ]
        ways += [
            "shopt -s expand_aliases\nalias zz={program}\nzz {arguments}",
            "find . -maxdepth 0 -exec {command} ';'",
        ]
        ways += [
            "${{X:-{command}}}",
            "{program} ${{X:-{arguments}}}",
            "{program} \\\n {arguments} $X",
            "{program}${{IFS}}{arguments}",
        ]
    return draw(st.sampled_from(ways)).format(
        command=command,
        program=program,
        arguments=arguments,
        quoted=quoted,
        spread=shlex.quote(arguments.replace("'", "")),
        path=shutil.which(program) or program,
        hidden=f"$'\\x{ord(program[0]):02x}{program[1:]}'",
        evaluated=shlex.quote(f"1e {command}"),
        target=shlex.quote(f"zz:;{command}"),
    )


@st.composite
def denied_commands(draw: st.DrawFn, denied: Denied) -> str:
    """One of the ways to have what the rule denies; whether it works is for the laboratory to see."""
    if denied.whole and (not denied.options or draw(st.integers(0, 4)) == 0):
        command = draw(st.sampled_from(denied.whole))
    else:
        arguments = " ".join(_arguments(draw, denied))
        words = denied.rule.split()
        command = _in_git(draw, words[1], arguments) if words[0] == "git" else f"{words[0]} {arguments}"
    return _disguised(draw, command) if draw(st.booleans()) else command
