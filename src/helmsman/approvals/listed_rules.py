"""Rules with their location and status, for the command line, the doctor and the dashboard.

`helmsman.approvals.rule_book` lists them.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.approvals.rules_file import rule_as_toml

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.model.rules import Rule

_HEADER: Final = re.compile(r"^[ \t]*\[\[[ \t]*rules[ \t]*\]\]", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRule:
    """Rule number `number` of the file `path`, beginning at `line` if known.

    `permanent` rules were created by an answer and can be removed by command; users edit all others in their files.
    `ignored` says why a rule has no effect.
    """

    rule: Rule
    path: Path
    number: int
    line: int | None
    permanent: bool = False
    ignored: str | None = None

    @property
    def id(self) -> str:
        """Content hash: after a change of the file, an id never refers to another rule."""
        return hashlib.sha256(f"{self.path}\0{self.toml}".encode(errors="surrogatepass")).hexdigest()[:8]

    @property
    def toml(self) -> str:
        """Rule as a TOML table."""
        return rule_as_toml(self.rule)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the rule."""
        return {
            "id": self.id,
            "effect": self.rule.effect,
            "description": self.rule.describe(),
            "toml": self.toml,
            "outside": self.rule.outside,
            "file": str(self.path),
            "number": self.number,
            "line": self.line,
            "removable": self.permanent,
            "ignored": self.ignored,
            "proposedBy": self.rule.proposed_by,
        }


def lines_of_rules(text: str, count: int) -> list[int | None]:
    """Return the line in which each rule of a file begins; None where that is unclear."""
    lines = [text.count("\n", 0, header.start()) + 1 for header in _HEADER.finditer(text)]
    return [*lines] if len(lines) == count else [None] * count


def without_rule(text: str, number: int) -> str | None:
    """Remove one rule from a file's text; None if that would change anything else."""
    starts = [header.start() for header in _HEADER.finditer(text)]
    before = tomllib.loads(text)
    rules = before.get("rules", [])
    if len(starts) != len(rules) or not 1 <= number <= len(rules):
        return None
    ends = [*starts[1:], len(text)]
    shorter = text[: starts[number - 1]] + text[ends[number - 1] :]
    try:
        after = tomllib.loads(shorter)
    except tomllib.TOMLDecodeError:
        return None
    rest = [rule for at, rule in enumerate(rules, start=1) if at != number]
    return shorter if {**before, "rules": rest} == {"rules": [], **after} else None
