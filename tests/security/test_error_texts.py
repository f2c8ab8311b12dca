"""No error text suggests less protection as the way out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "helmsman"
LESS = re.compile(
    r"(?i)\b(or|say|use|set|start|pass|add|with|try)\b[^.]{0,80}"
    r"(unenforced|danger-full-access|without allowed roots|--allow-plain-http|without a sandbox|chmod [0-7]*[2367]\b)"
)
DESCRIBED = {"Field", "_string", "option", "Option", "_Setting", "argument", "command"}
"""What these are given says what an option does, and is no advice."""


def advice() -> list[tuple[str, str]]:
    """All texts of the product that are sentences, but for docstrings and descriptions of options."""
    found: list[tuple[str, str]] = []
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        skipped: set[ast.AST] = set()
        for node in ast.walk(tree):
            name = node.func if isinstance(node, ast.Call) else None
            called = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", None)
            if called in DESCRIBED or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                skipped |= {*ast.walk(node)}
        for node in ast.walk(tree):
            if node in skipped:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append((str(file.relative_to(SOURCE)), "".join(parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((str(file.relative_to(SOURCE)), node.value))
    return [(file, text) for file, text in found if " " in text]


def test_no_text_suggests_less_protection() -> None:
    texts = advice()
    assert len(texts) > 1000  # it does look
    assert LESS.search("Try again, or say `unenforced` to start it without.")
    assert [(file, text) for file, text in texts if LESS.search(text)] == []
