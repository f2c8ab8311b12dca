"""Makes the pictures of the documentation: what `helmsman demo` shows on a terminal, as an SVG without outside fonts."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
COLUMNS = 96


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
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("$ helmsman demo --auto\n" + text.rstrip()))
    svg = console.export_svg(title="helmsman demo")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    (IMAGES / "demo.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
