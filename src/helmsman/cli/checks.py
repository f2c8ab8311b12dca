"""All that `helmsman doctor` looks at, in the order it is shown. One that fails does not keep the others from running."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from helmsman.agents.codex.features import Feature
from helmsman.cli import place_checks
from helmsman.cli.check_report import Check, Report
from helmsman.cli.codex_checks import check_codex
from helmsman.errors import HelmsmanError
from helmsman.service import Helmsman

if TYPE_CHECKING:
    from helmsman.agents.codex.binary import CodexBinary
    from helmsman.settings import Settings


async def examine(settings: Settings) -> Report:
    """Look at everything."""
    checks = [
        *place_checks.check_settings(settings),
        place_checks.check_rules(settings, Path.cwd()),
        place_checks.check_codex_home(settings),
    ]
    binary: CodexBinary | None = None
    async with Helmsman(replace(settings, engine="app-server", detach=False)) as helm:
        try:
            binary = await helm.codex()
        except HelmsmanError as error:
            checks.append(Check("Codex", "failed", error.message))
        else:
            checks += await check_codex(helm, binary, settings)
    # Nothing else is going on any more, so these may block.
    checks += place_checks.check_state(settings)
    if (shell := place_checks.check_login_shell(settings, binary, os.environ)) is not None:
        checks.append(shell)
    checks += [place_checks.check_git(), *place_checks.check_clients(settings)]
    features = {} if binary is None else {feature: binary.can(feature) for feature in Feature}
    return Report(binary=binary, checks=tuple(checks), features=features)
