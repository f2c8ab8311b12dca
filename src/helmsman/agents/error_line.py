"""Find the line of a program's error output that says what went wrong."""

from __future__ import annotations

import re
from typing import Final

_ERROR: Final = re.compile(
    r"(?:Uncaught )?(?:[\w.]*(?:Error|Exception)\b[^:]*:|(?:error|fatal|panic)\b)", re.IGNORECASE
)


def error_line(stderr: str) -> str:
    """Return the last line that names an error, else the last line. Lines of a stack trace are indented, or follow it."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if _ERROR.match(line)]
    return (named or lines or [""])[-1].strip()
