"""What every test has: asyncio under anyio, the fixtures of the test kit, and a check for processes left behind."""

from __future__ import annotations

import functools
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from jsonschema.protocols import Validator
from mcp.client.session import ClientSession

from helmsman.agents.codex import binary
from helmsman.agents.codex.binary import private_copy
from helmsman.testing import codex_versions
from helmsman.testing.binaries import versions_around
from helmsman.testing.hubs import end_hub
from tests import warm
from tests.shared_engine import codex_home, helm, model, own_engine, settings, shared_engine  # noqa: F401

# A busy machine, or one that has yet to make hypothesis' tables of characters, is slow: that is no fault of an example.
# `make fuzz` goes on for longer where there is time for it.
hypothesis_settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25
)
hypothesis_settings.load_profile("unhurried")

_QUICK_PROGRAMS = Path(__file__).parent / "quick_programs"
_QUICK_CERTIFICATES = Path(__file__).parent / "quick_certificates"
_WARM = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Every Codex asks `lsb_release` some times when it starts; on Debian each answer takes two dozen processes.

    One that says nothing makes it read /etc/os-release instead, and saves a sixth of the time of all tests. It reads all the
    system's certificates for every session, a sixth of what a session costs it; nobody here speaks TLS, so one is enough.
    """
    given: dict[str, str] | None = getattr(config, "workerinput", None)
    if given is None:
        os.environ["PATH"] = f"{_QUICK_PROGRAMS}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if os.environ.get("HELMSMAN_E2E") != "1":  # a user may: on an account
        os.environ["SSL_CERT_FILE"] = str(_QUICK_CERTIFICATES / "nobody.pem")
        os.environ["SSL_CERT_DIR"] = str(_QUICK_CERTIFICATES)
    os.environ["HELMSMAN_SNAPSHOTS"] = "0"  # a seventh of all work here, for what few tests take back: see `snapshots`
    if sys.platform != "win32":
        _hear_signals()
        warm.use(Path(given["warm"]) if given is not None else _start_warm(config))
    ClientSession._output_schema_validator = _validator_made_once  # type: ignore[method-assign]


def _hear_signals() -> None:
    """Under `nohup`, or behind a `&` in a script, they are ignored, and so they would be by all that tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _start_warm(config: pytest.Config) -> Path:
    """One server runs the `helmsman` commands of all workers, so that everything is imported once."""
    folder = Path(tempfile.mkdtemp(prefix="helmsman-warm-"))
    server = warm.start(folder / "socket")

    def end() -> None:
        with server:
            server.kill()
        shutil.rmtree(folder)

    config.add_cleanup(end)
    config.stash[_WARM] = folder / "socket"
    return folder / "socket"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker is about to be started."""
    if _WARM in node.config.stash:
        node.workerinput["warm"] = str(node.config.stash[_WARM])


_validator = ClientSession._output_schema_validator
_validators: dict[str, Validator] = {}


def _validator_made_once(self: ClientSession, name: str, output_schema: dict[str, Any]) -> Validator:
    """Every client of every test would check the same schema of the same tool, and that takes longer than its call."""
    text = json.dumps(output_schema)
    if text not in _validators:
        _validators[text] = _validator(self, name, output_schema)
    return _validators[text]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Some hundred thousand objects live as long as the run: the collector need not look at them again and again."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


pytest_plugins = ["helmsman.testing.plugin", "pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--few-versions",
        action="store_true",
        help="but for the stories of tests/matrix, run what is for all Codex versions on two: the newest and an older one",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--few-versions"):
        left_out = [item for item in items if _is_for_the_matrix_alone(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    items.sort(key=_longest_first)
    if shutil.which("git") is None:
        for item in items:
            if item.get_closest_marker("needs_git"):
                item.add_marker(pytest.mark.skip(reason="There is no git here."))


def _is_for_the_matrix_alone(item: pytest.Item) -> bool:
    """Whether it is one of the older versions that this test is spared: others for each test, so that all are tried."""
    mark, call = item.get_closest_marker("matrix"), getattr(item, "callspec", None)
    if mark is None or call is None or "codex_binary" not in call.params:
        return False
    if "matrix" in item.path.parts and not item.path.name.startswith("test_extras"):
        return False
    versions = _all_versions()
    if "changed_in" in mark.kwargs:
        versions = versions_around(mark.kwargs["changed_in"], versions)
    older = list(versions.values())[:-1]
    if call.params["codex_binary"] not in older:
        return False
    first = zlib.crc32(getattr(item, "originalname", item.name).encode())
    return bool(call.params["codex_binary"] != older[first % len(older)])


_all_versions = functools.cache(codex_versions)


def _longest_first(item: pytest.Item) -> float:
    """Those that may take long say so. Begun first, they are not what all wait for in the end."""
    mark = item.get_closest_marker("timeout")
    return -max(mark.args[0], 120) if mark is not None and mark.args else -120


@pytest.fixture(scope="session", autouse=True)
def _one_copy_of_codex(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The wheel's Codex lies in this repository, so Helmsman copies it into each state directory: 300 MB for every test.

    Tests in this process share one copy.
    """
    shared = tmp_path_factory.getbasetemp().parent / "programs-of-tests"

    def copy_once(program: Path, _state_dir: Path, reason: str) -> Path:
        return private_copy(program, shared, reason)

    setattr(binary, "private_copy", copy_once)  # noqa: B010 - it is imported there, for no other module


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are kept before each turn, as they are for people."""
    monkeypatch.setenv("HELMSMAN_SNAPSHOTS", "1")


@pytest.fixture(autouse=True)
def _nothing_left_behind(no_leaks: None) -> None:
    """Every test is checked for leaks."""


@pytest.fixture(autouse=True)
def _nothing_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients give the servers they start a small environment: nothing is in it that `no_leaks` says, but HOME is."""
    home = tmp_path_factory.getbasetemp() / "home-of-nobody"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    yield
    if (state := home / ".local" / "state" / "helmsman").exists():
        end_hub(state)
        shutil.rmtree(home)
        pytest.fail("The test used the person's own state directory, so name another.", pytrace=False)


@pytest.fixture(autouse=True)
def _processes_measured_in_some_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured, a command takes twice as long, so only in a third of the tests it is: always the same, by their names."""
    if zlib.crc32(request.node.nodeid.encode()) % 3:
        for name in [name for name in os.environ if name.startswith("COV")]:
            monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plain directory to work in. In a repository every turn runs a dozen git commands, a fifth of its work."""
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder
