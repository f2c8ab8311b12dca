"""Routes for rules: list them, find the one that decides a command, and revoke one that an answer added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.to_thread
from pydantic import Field

from helmsman.base.caller_context import expand_home
from helmsman.base.json_values import present
from helmsman.base.sanitize import visible
from helmsman.errors import InvalidInput, InvalidSetting
from helmsman.shapes.contract import Input, NothingInput
from helmsman.web.json_http import body, text

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from helmsman.approvals.listed_rules import ListedRule
    from helmsman.approvals.policy import Ruling
    from helmsman.service import HelmsmanService


class ExplainInput(Input):
    command: str = Field(min_length=1)
    directory: str = Field(min_length=1)
    inside: bool = False


class Rules:
    """Answers requests about rules. Rules can be looked at and taken back here, and be made only by an answer or by hand."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._book = helm.rules

    async def listed(self, request: Request) -> dict[str, Any]:
        return await anyio.to_thread.run_sync(self._listed, _place(text(request, "directory")))

    def _listed(self, directory: Path | None) -> dict[str, Any]:
        problem: str | None = None
        try:
            self._book.check(directory)
        except InvalidSetting as error:
            problem = error.message
        rules = [_shown(rule) for rule in self._book.listed(directory)]
        return present({"rules": rules, "ownFile": str(self._book.permanent_path), "problem": problem})

    async def explain(self, request: Request) -> dict[str, Any]:
        given = await body(request, ExplainInput)
        directory = _place(given.directory)
        assert directory is not None
        return await anyio.to_thread.run_sync(self._explain, given.command, directory, given.inside)

    def _explain(self, command: str, directory: Path, inside: bool) -> dict[str, Any]:
        decision: Ruling = self._book.explain(command, directory, inside=inside)
        rule = next((one for one in self._book.listed(directory) if one.rule == decision.rule), None)
        shown = None if rule is None else _shown(rule)
        return present({"effect": decision.effect, "reason": visible(decision.reason), "rule": shown})

    async def confirm(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        confirmed = await anyio.to_thread.run_sync(self._book.confirm, str(request.path_params["rule_id"]))
        return {"confirmed": _shown(confirmed)}

    async def remove(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        removed = await anyio.to_thread.run_sync(self._book.remove, str(request.path_params["rule_id"]))
        return {"removed": _shown(removed)}


def _place(directory: str | None) -> Path | None:
    if directory is None:
        return None
    path = expand_home(directory)
    if not path.is_absolute():
        raise InvalidInput(
            f"directory cannot be {directory!r:.80}. Write the whole path, from / or ~ on.", parameter="directory"
        )
    return path


def _shown(rule: ListedRule) -> dict[str, Any]:
    shown = {name: visible(value) if isinstance(value, str) else value for name, value in rule.as_dict().items()}
    return present({name: value for name, value in shown.items() if value is not False})
