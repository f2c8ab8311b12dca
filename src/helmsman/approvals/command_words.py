"""What Helmsman knows of single programs: which are the shell's own, which can run anything.

Lists of names cannot be complete. They are used only to be more careful: to refuse to understand a command, to match a
`deny` rule more broadly, to leave a prefix out of those that are offered. What is not listed here is not thereby safe:
a rule for the first words of a command covers whatever the program does with further arguments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


def program_name(word: str) -> str:
    """A program as one would call it: without its directory, and as a file system that ignores case sees it."""
    return word.replace("\\", "/").rpartition("/")[2].casefold().removesuffix(".exe")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS: Final = _names("bash sh zsh dash ksh mksh ash fish csh tcsh pwsh")

NEVER_UNDERSTOOD: Final = _names(
    # The shell language itself.
    """
    if then else elif fi for while until do done case esac in select function time coproc foreach end repeat nocorrect
    noglob always
    """
    # Builtins that run their arguments, or that change what the words after them mean.
    """
    . source eval exec command builtin trap alias unalias enable disable hash unhash rehash functions set shopt setopt
    unsetopt emulate export declare typeset local readonly unset integer float private let read readarray mapfile getopts
    test pushd popd chdir dirs fc history bind bindkey zle complete compgen compopt compadd compctl autoload zmodload
    zstyle zparseopts zcompile zformat zregexparse vared sched print getln pushln jobs fg bg wait disown suspend logout
    exit bye return break continue shift times ulimit limit unlimit umask caller ttyctl r zsystem ztcp zpty
    """
)
"""First words with which a whole command is not understood."""

_RUNNERS: Final = SHELLS | _names(
    """
    env sudo doas su runuser pkexec xargs parallel find fd nohup nice ionice timeout gtimeout stdbuf unbuffer setsid
    script watch entr flock chroot unshare nsenter setpriv taskset chrt strace ltrace gdb lldb perf valgrind caffeinate
    arch rlwrap ssh busybox toybox systemd-run at batch crontab screen tmux expect npx uvx pipx bunx nix-shell direnv
    mise asdf cmd powershell wsl eval exec command builtin time coproc trap source .
    python python2 python3 pypy pypy3 node nodejs deno bun ruby perl php lua rscript julia java osascript awk gawk mawk
    nawk tclsh wish ghci erl iex vim vi nvim emacs ed ex write_stdin
    """
)


_RUNNING_SUBCOMMANDS: Final = _names(
    """
    npm/exec npm/x pnpm/exec pnpm/dlx yarn/exec yarn/dlx uv/run uv/tool uv/pip poetry/run pdm/run hatch/run pipenv/run
    bundle/exec conda/run docker/run docker/exec podman/run podman/exec docker/compose docker/container kubectl/exec
    git/submodule git/bisect git/rebase git/filter-branch git/difftool
    """
)

_CODE_IN_WORDS: Final = _names("xargs parallel source . eval sed gsed make gmake tar gtar bsdtar rsync alias trap")
_CODE_IN_OPTIONS_OF_GIT: Final = ("-c", "--c", "-u", "--u", "--rec", "--exe", "-x", "--ext")


def runs_words(words: Sequence[str]) -> bool:
    """Whether a program runs what its arguments say: a denied command may stand anywhere behind it."""
    if _is_listed(words[0], _RUNNERS):
        return True
    program = program_name(words[0])
    return any(f"{program}/{word}" in _RUNNING_SUBCOMMANDS for word in words[1:])


def may_run_text(words: Sequence[str]) -> bool:
    """Whether a program may run what stands somewhere in its words, or what another program tells it."""
    program = program_name(words[0])
    if program == "git":
        return any(word.startswith(_CODE_IN_OPTIONS_OF_GIT) for word in words[1:])
    is_told = program in SHELLS and all(word[:1] == "-" for word in words[1:])
    return program in _CODE_IN_WORDS or is_told


def _is_listed(word: str, names: frozenset[str]) -> bool:
    name = program_name(word)
    return name in names or name.rstrip("0123456789.") in names  # python3.12


_ONLY_WHOLE: Final = _RUNNERS | _names(
    """
    rm rmdir unlink shred mv cp ln dd install truncate tee chmod chown chgrp chattr setfacl mkfs mount umount fdisk
    parted kill pkill killall reboot halt shutdown poweroff systemctl service launchctl sysctl iptables useradd usermod
    passwd curl wget nc ncat socat telnet ftp sftp scp rsync rclone tar zip unzip sed patch sort split less more man
    psql mysql mongosh redis-cli sqlite3 docker podman kubectl helm terraform ansible vault aws gcloud az gsutil gpg
    openssl security op pass echo printf
    """
)
"""Programs that do too much for a prefix to be offered."""

_READ_ONLY: Final = _names(
    """
    ls cat head tail wc grep egrep fgrep rg pwd stat du df which diff cmp cut jq nl basename dirname realpath readlink
    md5sum sha256sum pytest
    """
)
"""Programs that may be offered with any arguments."""

_RUNS_BY_NAME: Final = _names(
    """
    npm/run pnpm/run yarn/run uv/run poetry/run pdm/run hatch/run bundle/exec composer/run
    """
)
"""Two words that only together with a third say what will run."""

_ANYTHING_GOES: Final = _names(
    """
    npm/exec npm/install npm/i pnpm/exec pnpm/dlx pnpm/add pnpm/install yarn/exec yarn/dlx yarn/add uv/tool uv/pip uv/add
    poetry/add pip/install pip3/install cargo/run cargo/install go/run go/generate go/install go/get brew/install
    gem/install dotnet/run rustup/run conda/run git/config git/submodule git/bisect git/remote git/filter-branch gh/api
    gh/alias gh/extension
    """
)
"""Two words after which everything depends on the rest."""

_SUBCOMMAND: Final = re.compile(r"[a-z][a-z0-9:_-]*")
_PYTHON: Final = re.compile(r"python[0-9.]*")
_PYTHON_CHECKERS: Final = _names("pytest unittest mypy ruff flake8 pylint")


def sensible_prefix(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The beginning of a command that one might allow for good, or None when only the whole command will do."""
    program = words[0]
    if "/" in program:
        return None
    if _PYTHON.fullmatch(program) and words[1:2] == ("-m",) and words[2:3] and words[2] in _PYTHON_CHECKERS:
        return words[:3]
    if program in _READ_ONLY:
        return (program,)
    if _is_listed(program, _ONLY_WHOLE):
        return None
    if not words[1:] or not _SUBCOMMAND.fullmatch(words[1]) or "/".join(words[:2]) in _ANYTHING_GOES:
        return None
    if "/".join(words[:2]) not in _RUNS_BY_NAME:
        return words[:2]
    named = words[2:] and _SUBCOMMAND.fullmatch(words[2]) and not _is_listed(words[2], _ONLY_WHOLE)
    return words[:3] if named else None
