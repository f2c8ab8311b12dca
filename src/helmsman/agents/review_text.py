"""A review as a text, whoever reviewed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.agents.protocol import Finding


def review_text(explanation: str, findings: Iterable[Finding]) -> str:
    """The whole as Codex shows it."""
    shown = [explanation] if explanation else []
    for finding in findings:
        tag = "" if finding.priority is None else f"[P{finding.priority}] "
        lines = "" if finding.start_line is None else f":{finding.start_line}-{finding.end_line or finding.start_line}"
        where = f" — {finding.file}{lines}" if finding.file else ""
        body = "".join(f"\n  {line}" for line in finding.body.splitlines())
        shown.append(f"- {tag}{finding.title}{where}{body}")
    return "\n\n".join(shown)
