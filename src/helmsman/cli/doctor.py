"""`helmsman doctor`: is everything there that Helmsman needs, and if not, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from helmsman.cli.check_report import Check, Report

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


@click.command(
    "doctor",
    short_help="Check Codex and what it needs, with the fix for what is wrong.",
    epilog="""\b
Example:
  CODEX_CLI_PATH=~/codex/bin/codex helmsman doctor
""",
)
@json_option
@reports_errors
def command(as_json: bool) -> int:
    """Check the Codex on this machine and what it needs: a real handshake, account, sandbox, directories.

    Says what this Codex can do. Each line that fails says how to fix it, and the exit code is then 1.
    """
    import anyio

    from helmsman.cli.checks import examine
    from helmsman.cli.consoles import configure_logs, result_console
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    report = anyio.run(examine, settings)
    if as_json:
        from helmsman.shapes.rendering import json_line

        click.echo(json_line(_as_dict(report)))
    else:
        _print(result_console(), report)
    return ExitCode.OK if report.ok else ExitCode.FAILED


def _as_dict(report: Report) -> dict[str, Any]:
    checks = [{"name": check.name, "status": check.status, "detail": check.detail} for check in report.checks]
    for shown, check in zip(checks, report.checks, strict=True):
        if check.fix:
            shown["fix"] = check.fix
    binary = report.binary
    return {
        "ok": report.ok,
        "codex": None if binary is None else {"path": str(binary.path), "version": str(binary.version)},
        "checks": checks,
        "features": {feature.name.lower(): able for feature, able in report.features.items()},
    }


def _print(console: Console, report: Report) -> None:
    from rich.text import Text

    from helmsman.terminal.layout import fold

    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        for line in _lines(console, check, width):
            console.print(line)
    for able, title in ((True, "This Codex can"), (False, "It cannot")):
        features = [feature for feature, has in report.features.items() if has is able]
        if features:
            console.print(f"\n{title}")
            for feature in features:
                versions = "" if able else f" ({feature.versions})"
                mark = Text("  ✓ " if able else "  - ", "green" if able else "dim")
                text = Text(feature.text, "" if able else "dim").append(versions, "dim")
                for line in fold(console, text, lead=mark):
                    console.print(line)
    failed = sum(check.status == "failed" for check in report.checks)
    verdict = "All is well." if report.ok else f"{failed} of {len(report.checks)} checks failed; see the lines with ✗."
    console.print(f"\n{verdict}", style="bold green" if report.ok else "bold red")


def _lines(console: Console, check: Check, width: int) -> list[Text]:
    from rich.text import Text

    from helmsman.base.shown_text import visible
    from helmsman.terminal.layout import fold

    mark, style = _MARKS[check.status]
    lead = Text.assemble((f"{mark} ", style), (f"{check.name:<{width}}  ", "bold"))
    text = Text(visible(check.detail), "" if check.status == "ok" else style)
    if check.fix:
        text.append(f" {check.fix}")
    return fold(console, text, lead=lead)
