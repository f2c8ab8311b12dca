"""Tests that the error is quoted, not the last line of a stack trace."""

from __future__ import annotations

import pytest

from helmsman.agents.agent_process import error_line

NODE = """node:internal/modules/cjs/loader:1228
  throw err;
  ^

Error: Cannot find module '/opt/gemini.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1225:15)
    at Module._load (node:internal/modules/cjs/loader:1051:27)

Node.js v20.19.2
"""
PYTHON = """Traceback (most recent call last):
  File "agent.py", line 1, in <module>
    import nothing
ModuleNotFoundError: No module named 'nothing'
"""


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        (NODE, "Error: Cannot find module '/opt/gemini.js'"),
        (PYTHON, "ModuleNotFoundError: No module named 'nothing'"),
        ("warming up\nerror: no API key\nsee --help\n", "error: no API key"),
        ("just a word\n", "just a word"),
        ("", ""),
    ],
)
def test_the_line_that_names_the_error_is_found(stderr: str, line: str) -> None:
    assert error_line(stderr) == line
