"""The report of a soak, for the terminal and as the page docs/reliability.md."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

import helmsman
from bench.soak.gauges import WARM_UP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bench.soak.run import Outcome

_SHOWN: Final = 20
_PAGE: Final = Template(Path(__file__).with_name("page.md").read_text(encoding="utf-8"))


def is_good(outcome: Outcome) -> bool:
    return not any(found for _, found in _must_be_none(outcome))


def in_words(outcome: Outcome) -> str:
    """Everything, with the details of what went wrong."""
    lines = [f"{name}: {value}" for name, value in _figures(outcome)]
    for name, found in _must_be_none(outcome):
        lines.append(f"{name}: {len(found)}")
        lines += [f"  {text}" for text in found[:_SHOWN]]
    lines += [f"{name}: {value}" for name, value in sorted(outcome.books.counts.items())]
    lines += [
        f"{name}: {value}, such as: {outcome.books.examples[name]}"
        for name, value in sorted(outcome.books.errors.items())
    ]
    return "\n".join(lines)


def write(outcome: Outcome, page: Path) -> None:
    """Write the page."""
    none = [(name, f"**{len(found)}**") for name, found in _must_be_none(outcome)]
    page.write_text(
        _PAGE.substitute(
            figures=_table([*_figures(outcome), *none]),
            happened=_table(sorted(outcome.books.counts.items())),
            errors=_table(sorted(outcome.books.errors.items())),
        ),
        encoding="utf-8",
    )


def _must_be_none(outcome: Outcome) -> list[tuple[str, list[str]]]:
    verdict = outcome.verdict
    return [
        ("sessions lost", verdict.lost),
        ("sessions of which something untrue is said", verdict.untrue),
        ("sessions started twice", verdict.doubled),
        ("commands run without a yes", verdict.ran_without_a_yes),
        ("orphan processes", outcome.orphans),
        ("anything else that should never happen", outcome.books.problems),
    ]


def _figures(outcome: Outcome) -> Iterator[tuple[str, str]]:
    gauges, verdict = outcome.gauges, outcome.verdict
    handles = gauges.late_handles()
    yield "when", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield "how long", f"{outcome.seconds / 60:g} minutes, seed {outcome.seed}"
    yield "versions", f"Helmsman {helmsman.__version__}, Codex {outcome.codex}, Python {platform.python_version()}"
    yield "machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield "sessions started", str(verdict.started)
    yield "sessions finished", ", ".join(f"{count} {end}" for end, count in sorted(verdict.ends.items()))
    yield "starts of the server that was killed", str(outcome.server_starts)
    yield (
        "memory of the server that was not",
        f"{gauges.memory[0]:.0f} MB at first, {gauges.memory[-1]:.0f} MB at last, at most {max(gauges.memory):.0f} MB",
    )
    yield (
        "its growth",
        f"{gauges.memory_per_hour():+.0f} MB an hour, that is {gauges.memory_per_session():+.0f} KB a session "
        f"(after the first {WARM_UP:.0%} of the time)",
    )
    yield "its file handles", f"{handles[0]} then, {handles[-1]} at last, at most {max(handles)}"


def _table(rows: Iterable[tuple[str, object]]) -> str:
    return "\n".join(["| what | last run |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])
