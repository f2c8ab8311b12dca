"""Write docs/appendix/security.md: the tests behind each section of docs/security.md, by their names.

    python scripts/make_evidence.py            write it
    python scripts/make_evidence.py --check    only say whether it is up to date

`tests/security/evidence.toml` names the tests of each section.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from functools import cache
from itertools import groupby
from pathlib import Path

from generated_page import write_or_check

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "tests" / "security" / "evidence.toml"
INTRODUCTION = """\
# Security: the tests

Made by `scripts/make_evidence.py` from the names of the tests (`make reference`). Each line is a test.
[security.md](../security.md) explains the defences.
"""


def evidence() -> str:
    parts = [INTRODUCTION]
    for heading, entries in tomllib.loads(EVIDENCE.read_text(encoding="utf-8")).items():
        parts.append(f"## {heading}\n")
        for file, named in groupby(entries, key=lambda entry: entry.partition("::")[0]):
            tests = [name for entry in named for name in _tests(file, entry.partition("::")[2])]
            parts.append(f"`{file}`\n")
            parts.append("\n".join(f"- {_sentence(name)}" for name in tests) + "\n")
    return "\n".join(parts)


def _tests(file: str, name: str) -> list[str]:
    """Return the names of all tests in a file, or the given one."""
    names = _names(file)
    if not names or (name and name not in names):
        raise SystemExit(f"{EVIDENCE.name} names {file}::{name}, which does not exist.")
    return [name] if name else names


@cache
def _names(file: str) -> list[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.name for node in functions if node.name.startswith("test_")]


def _sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


if __name__ == "__main__":
    sys.exit(write_or_check("appendix/security.md", evidence()))
