"""What tokens cost, so that a task can be stopped when it passes what somebody was willing to pay.

    [prices."gpt-5.3-codex"]      # in your own helmsman.toml; USD per million tokens
    input = 1.75
    cached_input = 0.175          # the same as input when left out
    output = 14.0

The table below has the standard prices of OpenAI's API. A model that is in neither has no price, and nobody guesses one:
`Prices.cost` says None, and its caller has to say so. Prices are per model name exactly; a dated name counts where it is
listed. What is left out of account: other tiers (fast, flex, batch), the surcharge on very long prompts, and what a
subscription covers.

Only the user's own file counts. One that came with a repository could otherwise make tokens look free, and a limit that
is never reached is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from helmsman.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from helmsman.model.events import Usage
    from helmsman.settings import ConfigFile

_KEYS: Final = ("input", "cached_input", "output")
_MOST: Final = 100_000.0
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    input: float
    cached_input: float
    output: float

    def of(self, usage: Usage) -> float:
        """What this usage costs, in USD. Cached tokens are part of the input, reasoning tokens part of the output."""
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        fresh = usage.input_tokens - cached
        return (fresh * self.input + cached * self.cached_input + usage.output_tokens * self.output) / _MILLION


# Taken on 2026-11-15 from OpenAI's pages on its models and its rate card for Codex, or who repeats them.
PUBLISHED: Final[Mapping[str, Price]] = {
    "codex-mini-latest": Price(1.50, 0.375, 6.00),
    "gpt-5": Price(1.25, 0.125, 10.00),
    "gpt-5-codex": Price(1.25, 0.125, 10.00),
    "gpt-5.1": Price(1.25, 0.125, 10.00),
    "gpt-5.1-codex": Price(1.25, 0.125, 10.00),
    "gpt-5.1-codex-max": Price(1.25, 0.125, 10.00),
    "gpt-5.1-codex-mini": Price(0.25, 0.025, 2.00),
    "gpt-5.2": Price(1.75, 0.175, 14.00),
    "gpt-5.2-codex": Price(1.75, 0.175, 14.00),
    "gpt-5.3-codex": Price(1.75, 0.175, 14.00),
    "gpt-5.4": Price(2.50, 0.25, 15.00),
    "gpt-5.4-mini": Price(0.75, 0.075, 4.50),
    "gpt-5.5": Price(5.00, 0.50, 30.00),
    # Sol's list price: a lower one is on offer for a time, and a limit had better be reached too early than too late.
    "gpt-5.6": Price(5.00, 0.50, 30.00),
    "gpt-5.6-sol": Price(5.00, 0.50, 30.00),
    "gpt-5.6-terra": Price(2.00, 0.20, 12.00),
    "gpt-5.6-luna": Price(0.20, 0.02, 1.20),
    "gpt-6-sol": Price(2.00, 0.20, 10.00),
    "gpt-6.1-sol": Price(2.00, 0.10, 10.00),
    "gpt-6.1-sol-2026-09-29": Price(2.00, 0.10, 10.00),
}


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices that hold here: the published ones, and above them the user's own."""

    by_model: Mapping[str, Price] = field(default_factory=lambda: PUBLISHED)

    @classmethod
    def load(cls, files: Sequence[ConfigFile]) -> Self:
        """Read `[prices]` of the configuration files, the one that wins first; only trusted ones count.

        Raises:
            InvalidSetting: A table is not a price; the message names the file, the key and what is allowed.
        """
        own: dict[str, Price] = {}
        for file in reversed(files):
            if file.trusted:
                own |= _read(file.content.get("prices", {}), file.path)
        return cls({**PUBLISHED, **own})

    def cost(self, model: str | None, usage: Usage) -> float | None:
        """What the usage costs in USD; None when nobody knows what this model costs."""
        price = None if model is None else self.by_model.get(model)
        return None if price is None else price.of(usage)


def _read(table: Any, path: Path) -> dict[str, Price]:
    if not isinstance(table, dict):
        raise InvalidSetting(f'prices in {path} is {table!r}. Begin each price with [prices."name of the model"].')
    return {model: _price(entry, f'prices."{model}"', path) for model, entry in table.items()}


def _price(entry: Any, name: str, path: Path) -> Price:
    if not isinstance(entry, dict):
        raise InvalidSetting(f"{name} in {path} is {entry!r}. Make it a table with {', '.join(_KEYS)}.")
    if unknown := sorted(set(entry) - set(_KEYS)):
        raise InvalidSetting(f"{name} in {path} has an unknown key {unknown[0]!r}. Use {', '.join(_KEYS)}.")
    if missing := [key for key in ("input", "output") if key not in entry]:
        raise InvalidSetting(f"{name} in {path} has no {missing[0]}. Set it to USD per million tokens.")
    amounts = {key: _amount(value, f"{name}.{key}", path) for key, value in entry.items()}
    return Price(amounts["input"], amounts.get("cached_input", amounts["input"]), amounts["output"])


def _amount(value: Any, name: str, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise InvalidSetting(
            f"{name} in {path} is {value!r}, which makes no sense. Set it to USD per million tokens, from 0 to {_MOST:.0f}."
        )
    return float(value)
