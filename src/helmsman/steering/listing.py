"""List the sessions of all agents together, newest first. Each agent has its own pages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from helmsman.base.json_values import json_object
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helmsman.agents.protocol import SessionIndex, SessionInfo


def page_of_all(
    indexes: Mapping[str, SessionIndex], cursor: str | None, *, limit: int, **filters: Any
) -> tuple[list[SessionInfo], str | None]:
    """Return one page of the sessions of several agents, and the next cursor, which has one for each agent with more.
    Blocks.
    """
    if len(indexes) == 1:
        page, after = next(iter(indexes.values())).list(limit=limit, cursor=cursor, **filters)
        return list(page), after
    begin = _read(cursor, indexes)
    pages = {name: indexes[name].list(limit=limit, cursor=at, **filters) for name, at in begin.items()}
    every = [(name, info) for name, (page, _) in pages.items() for info in page]
    shown = sorted(every, key=lambda one: one[1].updated_at, reverse=True)[:limit]
    following: dict[str, str | None] = {}
    for name, (page, after) in pages.items():
        used = sum(one == name for one, _ in shown)
        if used == len(page):
            if after is not None:
                following[name] = after
        elif used == 0:
            following[name] = begin[name]
        else:
            # The cursors of the agents are opaque. To continue inside a page, as much as was used is read again.
            _, following[name] = indexes[name].list(limit=used, cursor=begin[name], **filters)
    return [info for _, info in shown], json.dumps(following) if following else None


def first_shown(
    page_at: Callable[[str | None], tuple[list[SessionInfo], str | None]],
    cursor: str | None,
    is_shown: Callable[[SessionInfo], bool],
) -> tuple[list[SessionInfo], str | None]:
    """Return the first page with visible entries, and the cursor of the next. Blocks."""
    while True:
        page, cursor = page_at(cursor)
        shown = [info for info in page if is_shown(info)]
        if shown or cursor is None:
            return shown, cursor


def _read(cursor: str | None, indexes: Mapping[str, SessionIndex]) -> dict[str, str | None]:
    """Return the position for each agent."""
    if cursor is None:
        return dict.fromkeys(indexes)
    if (found := json_object(cursor)) is None:
        raise InvalidInput(
            f"{cursor!r:.100} is not a cursor of this list. Use nextCursor of the page before, or none.",
            parameter="cursor",
        )
    return {name: at for name, at in found.items() if name in indexes and (at is None or isinstance(at, str))}
