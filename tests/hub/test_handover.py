"""A newer client's hub takes over from an older one while work runs, and nobody notices."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import helmsman
from helmsman.hub.launch import LOCK, UP, is_newer
from helmsman.testing import ScriptedModel, run, say
from mcp import Client
from tests.clients.server_process import SECONDS
from tests.hub.conftest import Place
from tests.mcp.caller import Caller

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.long,
]

_NEWER = "99.0.0"


@dataclass(frozen=True)
class NewerPlace(Place):
    """The same place with a newer Helmsman, in a virtual environment of its own."""

    python: Path = Path()
    package: Path = Path()

    def command(self, *arguments: str) -> list[str]:
        return [str(self.python), "-m", "helmsman", "serve", *arguments]


@pytest.fixture
def newer(place: Place, tmp_path: Path) -> NewerPlace:
    root = tmp_path / "newer"
    venv.create(root, with_pip=False, symlinks=True)
    package = root / "source" / "helmsman"
    shutil.copytree(Path(helmsman.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "_version.py").write_text(f'__version__ = "{_NEWER}"\n', encoding="utf-8")
    (site,) = root.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site / "helmsman.pth").write_text(f"{package.parent}\n{ours}\n", encoding="utf-8")
    return NewerPlace(place.env, place.directory, warm=False, python=root / "bin" / "python", package=package)


def version_of(place: Place) -> str | None:
    """Return the version in the lock. A request would have the hub load what it serves by HTTP."""
    words = (place.state_dir / LOCK).read_text(encoding="utf-8").split()
    return words[2] if words[3:] == [UP.decode()] else None


async def until_version(place: Place, version: str) -> None:
    with anyio.fail_after(SECONDS):
        while await anyio.to_thread.run_sync(version_of, place) != version:
            await anyio.sleep(0.05)


async def test_turns_questions_and_calls_continue_in_the_newer_hub(
    place: Place, newer: NewerPlace, model: ScriptedModel
) -> None:
    gate = model.gate()
    model.on("slow", say(gate, "done at last"))
    model.on("ask", run("touch made.txt"), say("done"))
    async with Client(place.on_stdio()) as older:
        codex = Caller(older)
        slow = await codex("codex_start", prompt="slow")
        asking = await codex("codex_start", prompt="ask", approvalPolicy="untrusted")
        question = (await codex("codex_wait", sessionId=asking["sessionId"]))["pendingQuestion"]
        assert version_of(place) == helmsman.__version__
        waited: list[str] = []

        async def wait() -> None:
            waited.append((await codex("codex_wait", sessionId=slow["sessionId"]))["result"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            async with Client(newer.on_stdio()) as client:
                await until_version(place, _NEWER)
                respond = {"sessionId": asking["sessionId"], "id": question["id"], "answers": ["deny"]}
                assert (await Caller(client).error("codex_respond", **respond))["code"] == "not_yours"
                await codex("codex_respond", **respond)
                assert (await codex("codex_wait", sessionId=asking["sessionId"]))["status"] == "done"
            gate.release()
        assert waited == ["done at last"]
        assert version_of(place) == _NEWER, "an older client went back to its own"


async def test_a_newer_command_brings_its_hub_and_an_older_one_uses_it(place: Place, newer: NewerPlace) -> None:
    async def list_with(*python: str) -> None:
        done = await anyio.run_process(
            [*python, "-m", "helmsman", "list", "--json"], env=place.env, cwd=place.directory
        )
        assert json.loads(done.stdout) == {"sessions": []}

    await list_with(sys.executable)
    assert version_of(place) == helmsman.__version__
    await list_with(str(newer.python))
    await until_version(place, _NEWER)
    await list_with(sys.executable)
    assert version_of(place) == _NEWER

    # Another version is installed in place of the newer one: what its hub has not imported by now is not its own.
    first, package = place.hub, newer.package
    module = package / "httpd" / "application.py"
    spoilt = f"import os\nif os.getpid() == {first}: raise ImportError('of another version')\n"
    module.write_text(module.read_text(encoding="utf-8") + spoilt, encoding="utf-8")
    async with newer.over_http():
        assert place.hub != first
        (package / "_version.py").write_text('__version__ = "99.9.9"\n', encoding="utf-8")
        await until_version(place, "99.9.9")


def test_versions_are_compared_by_their_numbers() -> None:
    assert is_newer("0.10.0", "0.9.9")
    assert is_newer("1.0.1", "1.0.dev1")
    assert is_newer("1.0.0", "1.0.0rc2")
    assert is_newer("1.0.0rc2", "1.0.0rc1")
    assert is_newer("1.0.0rc1", "0.9.9")
    assert not is_newer("0.1.0", "0.1.0")
    assert not is_newer("0.1.0", "0.2.0")
