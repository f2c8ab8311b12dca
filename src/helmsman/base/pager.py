"""A long text shown by the pager that a person has chosen for git, as git would start it."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

_NOT_FOUND = 127
_NOT_RUN = 126


def show(command: str, text: bytes) -> bool:
    """Show a text by a pager, which is a shell's command line; whether there was one. Ctrl-C is the pager's."""
    env = {"LESS": "FRX", "LV": "-c", **os.environ}
    before = None
    with suppress(ValueError):  # not the main thread, which has no signals
        before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        done = subprocess.run(command, shell=True, input=text, env=env, check=False)  # noqa: S602 - the person's own words
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    return done.returncode not in (_NOT_FOUND, _NOT_RUN)
