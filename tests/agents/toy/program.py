"""Program of the toy agent: one line of JSON per message. It stores the names of its sessions in a directory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def hear() -> dict[str, Any]:
    line = sys.stdin.readline()
    heard: dict[str, Any] = json.loads(line) if line else sys.exit(0)
    return heard


def turn(turn_id: str, text: str) -> str:
    """Run a turn; return how it has ended."""
    if text == "ask":
        say(ask="1", command="touch made.txt")
        while "answer" not in (heard := hear()):
            if "stop" in heard:
                return "interrupted"
        if heard["answer"]:
            Path("made.txt").touch()
    if text == "long":
        while "stop" not in hear():
            pass
        return "interrupted"
    say(text=f"{text} of {turn_id}")
    return "completed"


def main() -> None:
    sessions = Path(sys.argv[1])
    say(id=hear()["id"], hello="toy")
    while True:
        heard = hear()
        if "turn" in heard:
            (sessions / heard["session"]).touch()
            say(began=heard["turn"])
            say(ended=heard["turn"], how=turn(heard["turn"], heard["text"]))


main()
