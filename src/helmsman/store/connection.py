"""Connection to the store, on each database, and the SQL that runs on all of them.

Statements are written once: with `?` or `:name` for values, `ON CONFLICT` instead of `OR IGNORE`, `CAST` instead of
`::`, no JSON functions, and at least one value in each `IN (…)` (`is_in`). `SqlDialect` has the expressions that
differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


class Cursor(Protocol):
    """Rows of a statement, whose values have names and positions."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class SqlDialect(Protocol):
    """SQL expressions and errors that differ between databases."""

    @property
    def now(self) -> str:
        """SQL for the time of the database's clock, in microseconds."""

    @property
    def row_lock(self) -> str:
        """End of a SELECT whose rows no other writer may change until the transaction ends."""

    def byte_count(self, column: str) -> str:
        """Return an expression for the bytes of a text."""

    def is_damage(self, error: Exception) -> bool:
        """Return whether an error says that stored data is damaged."""


class StoreConnection(Protocol):
    """Connection to the store. `sqlite3.Connection` has the same methods."""

    @property
    def dialect(self) -> SqlDialect: ...
    @property
    def total_changes(self) -> int: ...
    def execute(self, sql: str, parameters: Any = ..., /) -> Cursor: ...
    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Cursor: ...
    def interrupt(self) -> None: ...


def is_in(column: str, values: Collection[object], *, negated: bool = False) -> str:
    """Return a condition with a `?` for each value. Postgres refuses an empty list."""
    if not values:
        return "1 = 1" if negated else "1 = 0"
    return f"{column} {'NOT IN' if negated else 'IN'} ({', '.join('?' * len(values))})"
