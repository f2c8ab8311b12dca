"""Prices of tokens, so that a task can be stopped at its cost limit.

    [prices."gpt-5.3-codex"]      # in your own helmsman.toml; USD per million tokens
    input = 1.75
    cached_input = 0.175          # the same as input when left out
    output = 14.0

The table below has the standard API prices of the models that agents use. A cost that an agent reports takes precedence. A
model without either has no price: `Prices.cost` returns None, and its caller must say so. Names must match exactly; a dated
name has its own entry. Other tiers (fast, flex, batch), the surcharges on very long prompts and on writing to a cache, and
the parts that a subscription covers are not considered.

Only the user's own file counts: a repository's file could make tokens look free, and so disable cost limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from helmsman.base.config_table import number, read_table
from helmsman.base.structs import Value
from helmsman.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from helmsman.model.events import ModelUsage, Usage
    from helmsman.settings import ConfigFile

_MOST: Final = 100_000
_USD: Final = number(0, _MOST, f"USD per million tokens, from 0 to {_MOST}")
_MILLION: Final = 1_000_000


class Price(Value, frozen=True):
    """USD per million tokens."""

    input: Annotated[float, _USD]
    cached_input: Annotated[float, _USD]
    output: Annotated[float, _USD]

    def of(self, usage: Usage) -> float:
        """Return the cost of this usage in USD. Cached tokens are part of the input, reasoning tokens part of the output."""
        # An agent may report more cached tokens than input, and that must be no refund.
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        fresh = usage.input_tokens - cached
        return (fresh * self.input + cached * self.cached_input + usage.output_tokens * self.output) / _MILLION


# Taken on 2026-11-15 from OpenAI's pages on its models and its rate card for Codex, or from pages that repeat them.
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
    # Further OpenAI models that Copilot and OpenCode use.
    "gpt-5-mini": Price(0.25, 0.025, 2.00),
    "gpt-5.4-nano": Price(0.20, 0.02, 1.25),
    "gpt-6-astra": Price(10.00, 1.00, 50.00),
    "gpt-6-luna": Price(0.10, 0.01, 0.50),
    # Anthropic, taken on 2026-11-16 from its page on prices, or from pages that repeat it.
    "claude-fable-5": Price(10.00, 1.00, 50.00),
    "claude-fable-5-1": Price(10.00, 0.25, 50.00),
    "claude-haiku-4-5": Price(1.00, 0.10, 5.00),
    "claude-haiku-4-5-20251001": Price(1.00, 0.10, 5.00),
    "claude-haiku-5-5": Price(0.10, 0.01, 0.50),
    "claude-opus-4-1": Price(15.00, 1.50, 75.00),
    "claude-opus-4-5": Price(5.00, 0.50, 25.00),
    "claude-opus-4-5-20251101": Price(5.00, 0.50, 25.00),
    "claude-opus-4-6": Price(5.00, 0.50, 25.00),
    "claude-opus-4-7": Price(5.00, 0.50, 25.00),
    "claude-opus-4-8": Price(5.00, 0.50, 25.00),
    "claude-opus-5": Price(5.00, 0.50, 25.00),
    "claude-opus-5-5": Price(4.00, 0.20, 20.00),
    "claude-sonnet-4-5": Price(3.00, 0.30, 15.00),
    "claude-sonnet-4-5-20250929": Price(3.00, 0.30, 15.00),
    "claude-sonnet-4-6": Price(3.00, 0.30, 15.00),
    "claude-sonnet-5": Price(2.00, 0.20, 10.00),
    "claude-sonnet-5-5": Price(2.00, 0.10, 10.00),
    # The same, as Copilot writes them.
    "claude-fable-5.1": Price(10.00, 0.25, 50.00),
    "claude-haiku-4.5": Price(1.00, 0.10, 5.00),
    "claude-opus-4.7": Price(5.00, 0.50, 25.00),
    "claude-opus-4.8": Price(5.00, 0.50, 25.00),
    "claude-opus-5.5": Price(4.00, 0.20, 20.00),
    "claude-sonnet-4.6": Price(3.00, 0.30, 15.00),
    # Google, taken on 2026-11-16 from the list that OpenCode 1.18.33 has of Google's own prices.
    "gemini-2.5-flash": Price(0.30, 0.03, 2.50),
    "gemini-2.5-flash-lite": Price(0.10, 0.01, 0.40),
    "gemini-2.5-pro": Price(1.25, 0.125, 10.00),
    "gemini-3-flash-preview": Price(0.50, 0.05, 3.00),
    "gemini-3.1-flash-lite": Price(0.25, 0.025, 1.50),
    "gemini-3.1-flash-lite-preview": Price(0.25, 0.025, 1.50),
    "gemini-3.1-pro-preview": Price(2.00, 0.20, 12.00),
    "gemini-3.1-pro-preview-customtools": Price(2.00, 0.20, 12.00),
    "gemini-3.5-flash": Price(1.50, 0.15, 9.00),
    "gemini-3.5-flash-lite": Price(0.30, 0.03, 2.50),
    "gemini-3.6-flash": Price(0.75, 0.075, 3.75),
    "gemini-3.7-flash": Price(0.75, 0.075, 3.75),
    "gemini-3.8-flash": Price(0.75, 0.075, 3.75),
    # Qwen, taken on 2026-11-16 from the list that OpenCode 1.18.33 has of Alibaba's own prices.
    "qwen3-coder-flash": Price(0.30, 0.30, 1.50),
    "qwen3-coder-plus": Price(1.00, 1.00, 5.00),
    "qwen3-max": Price(1.20, 1.20, 6.00),
    "qwen3.5-plus": Price(0.40, 0.40, 2.40),
    "qwen3.6-plus": Price(0.50, 0.05, 3.00),
    "qwen3.7-max": Price(2.50, 0.50, 7.50),
    "qwen3.7-plus": Price(0.50, 0.05, 3.00),
    "qwen3.8-flash": Price(0.15, 0.016, 0.47),
    "qwen3.8-max": Price(2.00, 0.25, 6.00),
    # Others that Copilot offers, from the same list.
    "grok-4.5": Price(2.00, 0.50, 6.00),
    "grok-4.6": Price(2.00, 0.50, 6.00),
    "grok-4.7": Price(2.00, 0.50, 6.00),
    "kimi-k2.7-code": Price(0.95, 0.19, 4.00),
    "kimi-k3": Price(3.00, 0.30, 15.00),
    "mai-code-1.1-flash": Price(0.20, 0.02, 1.20),
}


@dataclass(frozen=True, slots=True)
class Prices:
    """Effective prices: the published ones, overridden by the user's own."""

    by_model: Mapping[str, Price] = field(default_factory=lambda: PUBLISHED)

    @classmethod
    def load(cls, files: Sequence[ConfigFile]) -> Self:
        """Read `[prices]` of the configuration files, highest precedence first; only trusted ones count.

        Raises:
            InvalidSetting: A table is not a price; the message names the file, the key and the allowed values.
        """
        own: dict[str, Price] = {}
        for file in reversed(files):
            # Others are not even parsed, so that a repository cannot stop Helmsman with a broken table.
            if file.trusted:
                own |= _read(file.content.get("prices", {}), file.path)
        return cls({**PUBLISHED, **own})

    def cost(self, model: str | None, usage: Usage) -> float | None:
        """Return the cost of the usage in USD, as reported by the agent or by its price; None if unknown."""
        if usage.cost_usd is not None:
            return usage.cost_usd
        price = None if model is None else self.by_model.get(model)
        return None if price is None else price.of(usage)

    def cost_of(self, parts: Iterable[ModelUsage]) -> float | None:
        """Return what all of this costs in USD, as far as it has a price; None when nothing of it has one."""
        costs = [self.cost(part.model, part.usage) for part in parts]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known else None


def _read(prices: Any, path: Path) -> dict[str, Price]:
    if not isinstance(prices, dict):
        raise InvalidSetting(f'prices in {path} is {prices!r}. Begin each price with [prices."name of the model"].')
    return {model: read_table(Price, _priced(entry), f'prices."{model}"', path) for model, entry in prices.items()}


def _priced(entry: Any) -> Any:
    """Return a price in which cached tokens cost the same as others, unless it says otherwise."""
    return {"cached_input": entry["input"], **entry} if isinstance(entry, dict) and "input" in entry else entry
