"""Rules and schedules that a model makes do nothing until a person confirms them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, run, say
from mcp import Client
from tests.mcp.caller import Caller
from tests.mcp.test_elicitation import Person
from tests.shared_engine import on_shared_engine

pytestmark = [pytest.mark.anyio, on_shared_engine]


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_an_always_of_a_model_holds_once_and_proposes_a_rule(
    helm: HelmsmanService, asks: dict[str, Any], model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="please"), say("done"))
    async with Client(build_server(helm)) as client:
        codex = Caller(client)
        for number in (1, 2):
            session_id = (await codex("codex_start", prompt="touch", **asks))["sessionId"]
            asked = (await codex.until_settled(session_id))["pendingQuestion"]  # also the second time
            answer = ["approve_always"] if number == 1 else ["deny"]
            await codex("codex_respond", sessionId=session_id, id=asked["id"], answers=answer)
            await codex.until_settled(session_id)
    assert (folder / "made.txt").exists()
    (proposed,) = [one for one in helm.rules.listed(folder) if one.rule.proposed_by is not None]
    assert "until you confirm it" in str(proposed.ignored)
    ruling = helm.rules.explain("touch made.txt", folder)
    assert ruling.effect == "ask"
    confirmed = helm.rules.confirm(proposed.id)
    assert helm.rules.explain("touch made.txt", folder).effect == "allow"
    assert [one.id for one in helm.rules.listed(folder)] == [confirmed.id]


@pytest.mark.parametrize(
    ("person", "status"),
    [
        (Person(decision="confirm"), "active"),
        (Person(decision="leave"), "proposed"),
        (Person("accept"), "proposed"),
        (Person("decline"), "proposed"),
        (Person("cancel"), "proposed"),
    ],
    ids=["confirms", "leaves", "accepts without a decision", "declines", "dismisses"],
)
async def test_a_person_confirms_a_schedule_in_a_form(
    helm: HelmsmanService, folder: Path, mode: Any, person: Person, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(_schedule: Any) -> Any: ...

    monkeypatch.setattr(helm.schedules, "begin_now", begin)
    monkeypatch.setattr(helm, "settings", replace(helm.settings, tools=("sessions", "extras")))
    person.forms.clear()
    async with Client(build_server(helm), mode=mode, elicitation_callback=person) as client:
        codex = Caller(client)
        prompt = "look\nSandbox: read-only"
        work = {"sandbox": "danger-full-access", "workingDirectory": str(folder), "every": "1m", "prompt": prompt}
        added = await codex("codex_schedule", action="add", **work)
        (schedule,) = added["schedules"]
        with anyio.fail_after(20):
            while not person.forms:
                await anyio.sleep(0.01)
            while (await codex("codex_schedule", action="list"))["schedules"][0]["status"] != status:
                await anyio.sleep(0.01)
        (form,) = person.forms
        assert "Sandbox: danger-full-access" in form.message
        assert "\nSandbox: read-only" not in form.message
        removed = await codex("codex_schedule", action="list")
        assert len(removed["schedules"]) == 1
        assert schedule["scheduleId"] == removed["schedules"][0]["scheduleId"]
    await helm.extras.schedules.remove(schedule["scheduleId"])
