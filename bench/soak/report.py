"""Report of a soak, for the terminal and for docs/appendix/reliability.md."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

import helmsman
from bench.fleet.pages import kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bench.soak.duties import DutiesOutcome
    from bench.soak.run import Outcome

_SHOWN: Final = 20
_PAGE: Final = Template(Path(__file__).with_name("page.md").read_text(encoding="utf-8"))


def is_good(outcome: Outcome | DutiesOutcome) -> bool:
    return not any(found for _, found in outcome.must_be_none())


def in_words(outcome: Outcome | DutiesOutcome) -> str:
    """Everything, with the details of what went wrong."""
    lines = [f"{name}: {value}" for name, value in _figures(outcome)]
    for name, found in outcome.must_be_none():
        lines.append(f"{name}: {len(found)}")
        lines += [f"  {text}" for text in found[:_SHOWN]]
    lines += [f"{name}: {value}" for name, value in sorted(outcome.books.counts.items())]
    lines += [
        f"{name}: {value}, such as: {outcome.books.examples[name]}"
        for name, value in sorted(outcome.books.errors.items())
    ]
    return "\n".join(lines)


def write(outcomes: Sequence[Outcome | DutiesOutcome], page: Path) -> None:
    """Write the page."""
    figures = [
        [*_figures(one), *((name, f"**{len(found)}**") for name, found in one.must_be_none())] for one in outcomes
    ]
    page.write_text(
        _PAGE.substitute(
            figures=_table(outcomes, figures),
            happened=_table(outcomes, [sorted(one.books.counts.items()) for one in outcomes]),
            errors=_table(outcomes, [sorted(one.books.errors.items()) for one in outcomes]),
            fleet=kept(page.read_text(encoding="utf-8") if page.exists() else ""),
        ),
        encoding="utf-8",
    )


def _figures(outcome: Outcome | DutiesOutcome) -> Iterator[tuple[str, str]]:
    yield "when", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield "how long", f"{outcome.how_long}, seed {outcome.seed}"
    yield "versions", f"Helmsman {helmsman.__version__}, Codex {outcome.codex}, Python {platform.python_version()}"
    yield "machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield from outcome.figures()


def _table(outcomes: Sequence[Outcome | DutiesOutcome], columns: Sequence[Iterable[tuple[str, object]]]) -> str:
    """Return a table with a column per run, and a row for everything that occurred."""
    known = [dict(column) for column in columns]
    names = list(dict.fromkeys(name for column in known for name in column))
    heads = ["what", *(one.how_long for one in outcomes)]
    rows = [[name, *(str(column.get(name, "")) for column in known)] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])
