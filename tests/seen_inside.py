"""What a program finds out about the machine around it, written as JSON. It is run inside sandboxes, by its file.

Each finding is one of a few words, so that a table can be made of them.
"""

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path


def attempt(what: Callable[[], str]) -> str:
    try:
        return what()
    except OSError:
        return "no"


def read(path: str) -> str:
    def look() -> str:
        if Path(path).is_dir():
            return "listed" if [*Path(path).iterdir()] else "empty"
        return "read" if Path(path).read_bytes() else "empty"

    return attempt(look)


def write(path: str) -> str:
    def make() -> str:
        place = Path(path)
        file = place / "seen-inside" if place.is_dir() else place
        file.open("a", encoding="utf-8").close()
        if file != place:
            file.unlink()
        return "written"

    return attempt(make)


def connect(family: int, address: str | tuple[str, int]) -> str:
    def reach() -> str:
        with socket.socket(family) as opened:
            opened.settimeout(5)
            opened.connect(address)
        return "reached"

    return attempt(reach)


def processes(marks: list[str]) -> str:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes()
        except OSError:
            continue
        if any(mark.encode() in variables for mark in marks):
            return "seen"
    return "no"


def look(asked: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    return {
        "read": {path: read(path) for path in asked["read"]},
        "write": {path: write(path) for path in asked["write"]},
        "unix": {path: connect(socket.AF_UNIX, path) for path in asked["unix"]},
        "abstract": {name: connect(socket.AF_UNIX, f"\0{name}") for name in asked["abstract"]},
        "tcp": {port: connect(socket.AF_INET, ("127.0.0.1", int(port))) for port in asked["tcp"]},
        "environment": {name: "set" if name in os.environ else "no" for name in asked["environment"]},
        "processes": {"/proc": processes(asked["processes"])},
    }


if __name__ == "__main__":
    found = look(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")
