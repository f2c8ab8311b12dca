"""The table of what agents see in their sandboxes is what they do see."""

from __future__ import annotations

import sys

import pytest

from helmsman.agents.sandbox_launcher import can_scope
from tests.sandbox_table import PAGE, columns, draw, page_with_drawing


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform != "linux" or not can_scope(), reason="the table is of Linux 6.12 and newer")
async def test_the_table_of_what_agents_see_is_true() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_drawing(page, draw(await columns())), "Draw it anew: make sandbox-table"
