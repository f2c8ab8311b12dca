"""Child for supervisor tests: it answers its greeting, prints lines on request, and echoes the rest.

With its watcher.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from helmsman.agents.supervisor.relay import Activity

GREETING = '{"id": "helmsman"}'


class StandInWatcher:
    """At work from `work` to `done`; `question 1` waits for `answer 1`. See `helmsman.agents.supervisor.relay.Watcher`."""

    def __init__(self) -> None:
        self._working = False
        self.open: dict[int | str, int] = {}

    def on_output(self, line: bytes, offset: int) -> None:
        self._working = self._working and line != b"done"
        if line.startswith(b"question "):
            self.open.setdefault(line.split()[1].decode(), offset)

    def on_input(self, line: bytes) -> None:
        self._working = self._working or line == b"work"
        if line.startswith(b"answer "):
            self.open.pop(line.split()[1].decode(), None)

    def activity(self) -> Activity:
        return Activity(("it",) if self._working else ())

    def interrupt(self) -> Sequence[bytes]:
        return [b"done"]


def main() -> None:
    said = sys.stdout
    for line in iter(sys.stdin.readline, ""):
        order, _, rest = line.strip().partition(" ")
        if line.strip() == GREETING:
            print('{"id": "helmsman", "result": {}}', file=said, flush=True)
        elif order == "say":
            for number in range(int(rest)):
                print(f"{number} {'x' * 500}", file=said)
            print("said", file=said, flush=True)
        elif order == "long":
            print("y" * int(rest), file=said, flush=True)
        elif order == "run":
            subprocess.run(json.loads(rest), env={}, check=False)
        elif order == "daemon":
            _start_daemon()
        elif order == "hang":
            time.sleep(1000)
        elif order == "stay":
            sys.stdin.read()
            print("no more input", file=said, flush=True)
            time.sleep(1000)
        elif order == "exit":
            sys.exit(int(rest))
        else:
            print(line.strip(), file=said, flush=True)


def _start_daemon() -> None:
    """Start a process that has escaped, and ignores signals."""
    if os.fork():
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork():
        os._exit(0)
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print(f"daemon {os.getpid()}", flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    main()
