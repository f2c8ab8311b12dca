"""Spending limits that ask the user when reached: the table `[budget]` of `helmsman.toml`.

    [budget]
    task_usd = 5                  # one task, however many turns it takes
    project_day_usd = 10          # one project in a day
    day_usd = 25                  # everything in a day
    day_tokens = 50_000_000       # any limit can be in tokens: input and output together

A project's file comes with the repository, so it may only lower the user's limits, or add one.
`helmsman.capabilities.budgets` measures spending and asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from helmsman.base.config_table import number, read_table
from helmsman.base.structs import Value
from helmsman.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LEAST_USD: Final = 0.01
_MOST_USD: Final = 1_000_000.0
_USD: Final = number(_LEAST_USD, _MOST_USD, f"USD, from {_LEAST_USD} to {_MOST_USD:.0f}, or leave it out")
_MOST_TOKENS: Final = 10**15


def _tokens(value: Any) -> int:
    # `true` is an integer in Python.
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_TOKENS:
        raise ValueError(f"a whole number of tokens, from 1 to {_MOST_TOKENS}, or leave it out")
    return value


class Budget(Value, frozen=True, kw_only=True):
    """Limits per task, project and day; None means unlimited. Days are local days."""

    task_usd: Annotated[float | None, _USD] = None
    task_tokens: Annotated[float | None, _tokens] = None
    project_day_usd: Annotated[float | None, _USD] = None
    project_day_tokens: Annotated[float | None, _tokens] = None
    day_usd: Annotated[float | None, _USD] = None
    day_tokens: Annotated[float | None, _tokens] = None

    @classmethod
    def read(cls, table: Any, path: Path) -> Self:
        """Read the table of a file.

        Raises:
            InvalidSetting: The value is not a budget; the message names the file, the key and the allowed values.
        """
        # Unknown keys are refused: a misspelt limit would otherwise mean no limit.
        return read_table(cls, table, "budget", path)

    def narrowed(self, asked: Budget) -> Self:
        """Return this budget, reduced wherever `asked` allows less."""
        return type(self)(**{key: _smaller(getattr(self, key), getattr(asked, key)) for key in KEYS})

    def ignored(self, table: Any, path: Path) -> Iterator[str]:
        """Yield a sentence for each limit of a project's file that has no effect."""
        try:
            # A bad project file must not stop the user's work; its limits simply do not count.
            asked = self.read(table, path)
        except InvalidSetting as error:
            yield f"[budget] of the project is ignored: {error.message}"
            return
        held = self.narrowed(asked).amounts()
        for key, amount in asked.amounts().items():
            if held[key] < amount:
                yield (
                    f"budget.{key} in {path} is {amount:g}, which is more than you have ({held[key]:g}), and is ignored: a "
                    "project's file may only narrow. Set it in your own file if you want it."
                )

    def amounts(self) -> dict[str, float]:
        """Return those that are set."""
        return {key: amount for key in KEYS if (amount := getattr(self, key)) is not None}


KEYS: Final = Budget.__struct_fields__


def _smaller(own: float | None, asked: float | None) -> float | None:
    return asked if own is None else own if asked is None else min(own, asked)
