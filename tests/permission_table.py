"""What becomes of what an agent does, by agent, sandbox and approval policy: the one table that the documentation shows
and that tests try out on the agents. `python -m tests.permission_table` draws it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

Outcome = Literal["runs", "asked", "refused"]
PAGE: Final = Path(__file__).parents[1] / "docs" / "appendix" / "permissions.md"
BEGIN: Final = "<!-- drawn by tests/permission_table.py -->"
END: Final = "<!-- end of the drawing -->"

ATTEMPTS: Final = ("a harmless command", "another command", "an edit inside", "an edit outside")
SANDBOXES: Final = ("read-only", "workspace-write", "danger-full-access")
POLICIES: Final = ("untrusted", "on-request", "on-failure", "never")
AGENTS: Final = ("claude", "gemini", "opencode", "qwen", "copilot")

_REFUSED: Final[tuple[Outcome, ...]] = ("refused",) * 4
_ASKED: Final[tuple[Outcome, ...]] = ("asked",) * 4
_RUNS: Final[tuple[Outcome, ...]] = ("runs",) * 4
_ASKED_BUT_HARMLESS: Final[tuple[Outcome, ...]] = ("runs", "asked", "asked", "asked")
_ONLY_HARMLESS: Final[tuple[Outcome, ...]] = ("runs", "refused", "refused", "refused")
_ASKED_INSIDE: Final[tuple[Outcome, ...]] = ("runs", "asked", "asked", "refused")

# By sandbox: what comes of each attempt where somebody may be asked, and with `never`.
_EXPECTED: Final[dict[str, dict[str, tuple[tuple[Outcome, ...], tuple[Outcome, ...]]]]] = {
    "claude": {
        "read-only": (("runs", "asked", "refused", "refused"), _ONLY_HARMLESS),
        "workspace-write": (_ASKED_BUT_HARMLESS, _ONLY_HARMLESS),
        "danger-full-access": (_ASKED_BUT_HARMLESS, _RUNS),
    },
    "gemini": {
        "read-only": (_REFUSED, _REFUSED),
        "workspace-write": (_ASKED_INSIDE, _ONLY_HARMLESS),
        "danger-full-access": (_ASKED_INSIDE, ("runs", "runs", "runs", "refused")),
    },
    "opencode": {
        "read-only": (_REFUSED, _REFUSED),
        "workspace-write": (_ASKED, _REFUSED),
        "danger-full-access": (_ASKED, _RUNS),
    },
    "qwen": {
        "read-only": (_ONLY_HARMLESS, _ONLY_HARMLESS),
        "workspace-write": (_ASKED_BUT_HARMLESS, _ONLY_HARMLESS),
        "danger-full-access": (_ASKED_BUT_HARMLESS, _RUNS),
    },
    "copilot": {
        "read-only": (_REFUSED, _REFUSED),
        "workspace-write": (_ASKED, _REFUSED),
        "danger-full-access": (_ASKED, _RUNS),
    },
}


def expected(agent: str, sandbox: str, policy: str) -> dict[str, Outcome]:
    """What comes of each attempt."""
    asked, never = _EXPECTED[agent][sandbox]
    return dict(zip(ATTEMPTS, never if policy == "never" else asked, strict=True))


def drawing() -> str:
    lines = [
        f"| sandbox | approval policy | what it does | {' | '.join(f'`{agent}`' for agent in AGENTS)} |",
        f"| --- | --- | --- |{' --- |' * len(AGENTS)}",
    ]
    for sandbox in SANDBOXES:
        for policies in (POLICIES[:-1], POLICIES[-1:]):
            for attempt in ATTEMPTS:
                cells = [expected(agent, sandbox, policies[0])[attempt] for agent in AGENTS]
                named = ", ".join(f"`{policy}`" for policy in policies)
                lines.append(f"| `{sandbox}` | {named} | {attempt} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page_with_drawing(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{drawing()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_drawing(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
