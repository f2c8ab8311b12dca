"""`helmsman doctor`: check the installation and suggest fixes."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from helmsman.base.sanitize import one_line, visible
from helmsman.cli.command import cli_command, option
from helmsman.cli.consoles import at_work, is_terminal, result_console, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import print_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from helmsman.agents.protocol import Capabilities
    from helmsman.cli.checks import Check, Report

_MARKS = {"ok": ("✓", "green"), "absent": ("-", "dim"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


@cli_command(
    "doctor",
    "Check Codex and what it needs, with the fix for what is wrong.",
    "helmsman doctor --verbose",
    "CODEX_CLI_PATH=~/codex/bin/codex helmsman doctor",
)
@option("-v --verbose", "All details, and what this Codex can and cannot do.")
@option("--releases", "Also ask the package index for a newer Helmsman.")
def command(verbose: bool, releases: bool, as_json: bool) -> int:
    """Check the Codex on this machine and what it needs: a real handshake, account, sandbox, directories.

    Passed checks take one line each. Failed ones come last, with the fix, and the exit code is then 1.
    """
    import anyio

    from helmsman.cli.checks import check_release, examine

    # Trying out agents takes seconds.
    with at_work("Trying out Codex and the other agents", as_json=as_json):
        report = anyio.run(examine, settings_of_command())
        if releases:
            report = replace(report, checks=(*report.checks, check_release()))
    if as_json:
        print_json(_as_dict(report))
    else:
        _print(result_console(), report, verbose=verbose)
    return ExitCode.OK if report.ok else ExitCode.FAILED


def _as_dict(report: Report) -> dict[str, Any]:
    checks = [{key: value for key, value in asdict(check).items() if value or key != "fix"} for check in report.checks]
    binary = report.binary
    return {
        "ok": report.ok,
        "codex": None if binary is None else {"path": str(binary.path), "version": str(binary.version)},
        "checks": checks,
        "capabilities": None if (can := report.capabilities) is None else can.as_dict(),
    }


def _print(console: Console, report: Report, *, verbose: bool) -> None:
    """Print the checks, those that failed last."""
    width = max(len(check.name) for check in report.checks)
    failed = [check for check in report.checks if check.status == "failed"]
    # Failures stand last, because a terminal shows the end of the output.
    for check in sorted(report.checks, key=lambda check: check.status == "warning"):
        if check.status != "failed":
            # A passed check needs one line; its details are for `--verbose`.
            console.print(*_lines(console, check, width, whole=verbose or check.status == "warning"), sep="\n")
    if verbose and report.capabilities is not None:
        for able, title in ((True, "This Codex can"), (False, "It cannot")):
            _print_capabilities(console, report.capabilities, title, able=able)
    if not failed:
        console.print("\nAll is well.", style="bold green")
        return
    console.print(f"\n{len(failed)} of {len(report.checks)} checks failed:", style="bold red")
    for check in failed:
        console.print(*_lines(console, check, width, whole=True), sep="\n")


def _print_capabilities(console: Console, capabilities: Capabilities, title: str, *, able: bool) -> None:
    from rich.text import Text

    from helmsman.agents.protocol import Capability
    from helmsman.terminal.layout import fold

    listed = [capability for capability in Capability if (capability in capabilities) is able]
    if listed:
        console.print(f"\n{title}")
    for capability in listed:
        mark = Text("  ✓ " if able else "  - ", "green" if able else "dim")
        text = ". ".join(filter(None, (capability.text, capabilities.lacking.get(capability))))
        console.print(*fold(console, Text(text, "" if able else "dim"), lead=mark), sep="\n")


def _lines(console: Console, check: Check, width: int, *, whole: bool) -> list[Text]:
    """Return the lines of a check; unless `whole`, one line on a terminal."""
    from rich.text import Text

    from helmsman.terminal.layout import fold

    mark, style = _MARKS[check.status]
    lead = Text.assemble((f"{mark} ", style), (f"{check.name:<{width}}  ", "bold"))
    text = Text(visible(check.detail), "" if check.status == "ok" else style)
    if check.fix and whole:
        text.append(f" {check.fix}")
    # A log has no width, and must not be cut.
    if whole or not is_terminal(console):
        return fold(console, text, lead=lead)
    line = lead.append_text(Text(one_line(check.detail), "" if check.status == "ok" else style))
    line.truncate(console.width, overflow="ellipsis")
    return [line]
