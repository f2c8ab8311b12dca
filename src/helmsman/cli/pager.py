"""Show a long text by the pager that the user of this terminal has chosen.

The pager is a command line of the user's own, for a shell, as git and `man` take it: the one place where Helmsman runs a
shell on purpose. Its programs are found on the PATH that `helmsman.base.programs` allows.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Final

from helmsman.base.programs import check_program_words, environment_for
from helmsman.errors import ProgramRefused

_SHELL: Final = "/bin/sh"
_NOT_FOUND: Final = 127
_NOT_RUN: Final = 126


def page(text: str) -> bool:
    """Show a text by `$PAGER`, or `less`. False if it was not shown: there is no terminal or no pager to show it on."""
    return _show(os.environ.get("PAGER") or "less", text)


def page_as_git(text: str) -> bool:
    """Show a text by the user's pager for git. False if it was not shown."""
    from helmsman.git.command import pager

    chosen = pager()
    return chosen is not None and _show(chosen, text)


def _show(command: str, text: str) -> bool:
    """Run the pager. Ctrl-C is for the pager."""
    if not sys.stdout.isatty() or command.strip() in ("", "cat"):
        return False
    try:
        check_program_words(command)
    except ProgramRefused as error:
        sys.stderr.write(f"helmsman: {error}\n")
        return False
    env = {"LESS": "FRX", "LV": "-c", **environment_for(os.environ)}
    before = None
    with suppress(ValueError):  # not the main thread, which has no signals
        before = signal.signal(signal.SIGINT, lambda *_: None)
    words = [_SHELL, "-c", command] if os.name == "posix" else shlex.split(command, posix=False)
    try:
        done = subprocess.run(words, input=text.encode("utf-8", "backslashreplace"), env=env, check=False)
    except OSError:
        return False
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    return done.returncode not in (_NOT_FOUND, _NOT_RUN)
