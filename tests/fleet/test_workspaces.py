"""A task of a fleet brings its tree along, and what became of that is applied where it came from."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from helmsman.fleet.workspaces import fetch_result, packed_for_fleet
from helmsman.testing import add, patch, run, say
from helmsman.worktrees.packing import MB, Limits
from helmsman.worktrees.returning import Away, apply_result, diff_of_result

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.testing import ScriptedModel
    from tests.fleet.conftest import Fleet

pytestmark = [pytest.mark.anyio, pytest.mark.rare]


async def test_a_task_works_on_the_tree_that_it_brought(fleet: Fleet, model: ScriptedModel, tmp_path: Path) -> None:
    model.on("work", run("cat unfinished"), patch(add("made", "by the agent\n")), say("done"))
    here = tmp_path / "own"
    shutil.copytree(fleet.directory, here)
    (here / "unfinished").write_text("not committed\n", encoding="utf-8")
    options = {"approval_policy": "never", "sandbox": "workspace-write"}
    with packed_for_fleet(here, tmp_path / "door", Limits(total=16 * MB, file=MB)) as (packer, tree, bundles):
        task = await fleet.start("work", options=options, bundles=bundles)
    away = Away(
        id=tree.id,
        host="fleet",
        repository=packer.work_tree,
        git_dir=packer.git_dir,
        base=tree.commit,
        state_dir=tmp_path / "door",
        sent_at=datetime.now(UTC),
        task_id=task.id,
    )
    database = fleet.client.database
    assert await fetch_result(database, task.id, away) is None
    shutil.rmtree(fleet.directory)  # nobody needs it where the task runs
    fleet.directory.mkdir()
    await fleet.worker("one")
    ended = await fleet.ended(task)
    assert (ended.status, ended.result) == ("completed", "done"), f"{ended} {fleet.logs()}"
    back = await fetch_result(database, task.id, away)
    assert back is not None
    assert [file.path for file in diff_of_result(back).files] == ["made"]
    assert apply_result(back).how == "clean"
    assert (here / "made").read_text(encoding="utf-8") == "by the agent\n"
    assert any("not committed" in str(request.input) for request in model.requests)
