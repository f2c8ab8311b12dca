"""Page of the documentation that is generated from the code: written, or only compared with the existing one."""

from __future__ import annotations

import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent.parent / "docs"


def write_or_check(name: str, text: str) -> int:
    """Write the page, or with `--check` on the command line only compare it. Return the exit code."""
    page = _DOCS / name
    if "--check" not in sys.argv[1:]:
        page.write_text(text, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        print(f"{name} is not what the code says. Run `make reference`.", file=sys.stderr)
        return 1
    return 0
