"""Makes the pictures of the terminal in the documentation, as SVGs without outside fonts.

    python -m scripts.make_images

`demo.svg` is what `helmsman demo` shows; `running.svg` is a command of a real Codex that runs while somebody types, on a
scripted model, in tmux. Needs a Codex and tmux.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
from rich.console import Console
from rich.text import Text
from tests.tmux import Tmux

from helmsman.testing import CodexHome, ScriptedModel, codex_version, installed_codex, make_repository, run, say

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
COLUMNS, LINES = 96, 20

TESTS = """\
n=0
while [ $n -lt 400 ]; do
  n=$((n + 1))
  [ $n -lt 88 ] && echo "tests/test_parser.py::test_case_$n PASSED  [$n/132]"
  sleep 0.02
done
"""


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    shown = subprocess.run(
        [sys.executable, "-m", "helmsman", "demo", "--auto"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    text = re.sub(r"/\S*/(helmsman-demo-)\w+", r"/tmp/\1x", shown.stdout)
    _draw("demo", "$ helmsman demo --auto\n" + text.rstrip())
    with tempfile.TemporaryDirectory() as folder:
        _draw("running", anyio.run(_running, Path(folder)))


async def _running(folder: Path) -> str:
    """Return the screen of a terminal while a command runs and a message is typed."""
    binary = installed_codex()
    assert binary is not None, "There is no Codex here."
    home, repository = CodexHome(folder / "home"), make_repository(folder / "tidewater")
    (repository / "check.sh").write_text(TESTS, encoding="utf-8")
    env = home.env | {"CODEX_CLI_PATH": str(binary), "TERM": "tmux-256color", "HELMSMAN_DETACH": "0"}
    async with ScriptedModel() as model:
        home.use_model(model.base_url, codex_version(binary))
        model.on("Fix", [say("I run the tests first.", phase="commentary"), run("sh check.sh")], say("Fixed."))
        command = [sys.executable, "-m", "helmsman", "run", "--full-auto", "Fix the failing test of the parser"]
        with Tmux(columns=COLUMNS, lines=LINES) as terminal:
            terminal.start(command, env=env, directory=repository)
            await terminal.shows("[87/132]")
            terminal.type("Leave the public names as they are")
            await terminal.shows("› Leave the public names")
            shown = terminal.coloured
    return re.sub(r"/\S*/tidewater", "/home/you/tidewater", shown).rstrip()


def _draw(name: str, shown: str) -> None:
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown))
    svg = console.export_svg(title="helmsman demo" if name == "demo" else "helmsman run")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    (IMAGES / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
