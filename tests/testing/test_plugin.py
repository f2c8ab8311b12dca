"""The fixtures, seen from outside: small test files run by a pytest of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helmsman.testing import FakeAppServer
from helmsman.testing.binaries import BINARY_VARIABLE, CACHE_VARIABLE

pytestmark = pytest.mark.rare

OPTIONS = ("-p", "helmsman.testing.plugin", "-p", "no:cacheprovider", "-p", "no:xdist")


def outcome(pytester: pytest.Pytester, test: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess(*OPTIONS, *options, timeout=60)


def test_leaks_and_script_problems_fail_a_test(pytester: pytest.Pytester) -> None:
    result = outcome(
        pytester,
        """
        import subprocess, sys

        import pytest
        from helmsman.settings import ensure_state_dir, load_settings

        def test_leaves_a_process(no_leaks):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)

        def test_waits_for_its_process(no_leaks):
            subprocess.run([sys.executable, "-c", ""], check=True)

        def test_uses_the_state_of_the_person_who_runs_it(no_leaks):
            (ensure_state_dir(load_settings({}).state_dir) / "registry").touch()

        def test_uses_a_state_of_its_own(no_leaks, tmp_path):
            (ensure_state_dir(load_settings({"state_dir": str(tmp_path)}, {}).state_dir) / "registry").touch()

        @pytest.mark.anyio
        async def test_has_a_problem_in_its_script(model):
            model.problems.append("it went wrong")

        @pytest.mark.anyio
        async def test_has_none(model):
            assert model.base_url.startswith("http://127.0.0.1:")

        @pytest.fixture(scope="session")
        def anyio_backend():
            return "asyncio"
        """,
    )

    result.assert_outcomes(passed=6, errors=3)
    said = [
        *("*ERROR at teardown of test_leaves_a_process*", "*The test left processes behind:*", "*time.sleep(600)*"),
        "*ERROR at teardown of test_uses_the_state_of_the_person_who_runs_it*",
        "*The test wrote into the usual state directory*registry*",
        *("*ERROR at teardown of test_has_a_problem_in_its_script*", "*it went wrong*"),
    ]
    result.stdout.fnmatch_lines(said)


def test_a_matrix_test_runs_on_every_version(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = ("0.93.0", "0.115.0", "0.130.0", "99.0.0")  # the wheel's is somewhere between
    for version in fetched:
        FakeAppServer(tmp_path / version / "vendor" / "some-platform" / "bin", version=version)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv(BINARY_VARIABLE, str(tmp_path / "0.93.0" / "vendor" / "some-platform" / "bin" / "codex"))

    result = outcome(
        pytester,
        """
        import pytest

        @pytest.mark.matrix
        def test_every(codex_version): pass

        @pytest.mark.matrix(changed_in=["0.110.0"])
        def test_around(codex_version): pass

        @pytest.mark.matrix(changed_in=[])
        def test_ends(codex_version): pass

        def test_one(codex_version):
            assert codex_version == (0, 93, 0)
        """,
        "--verbose",
        "--strict-markers",
    )

    ran = set(re.findall(r"::test_(\w+)\[([\d.]+)\] PASSED", result.stdout.str()))
    expected = {"every": fetched, "around": ("0.93.0", "0.115.0", "99.0.0"), "ends": ("0.93.0", "99.0.0")}
    for name, versions in expected.items():
        assert {version for test, version in ran if test == name} & {*fetched} == {*versions}
    assert len([version for test, version in ran if test == "ends"]) == 2
    result.stdout.fnmatch_lines(["*test_one PASSED*"])


def test_without_a_codex_tests_are_skipped(pytester: pytest.Pytester) -> None:
    result = outcome(
        pytester,
        """
        import pytest
        from helmsman.testing import plugin

        @pytest.fixture(autouse=True, scope="session")
        def nothing_installed():
            plugin.installed_codex = lambda: None

        def test_codex(codex_binary):
            raise AssertionError("there is none")
        """,
        "-rs",
    )

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*set HELMSMAN_TEST_CODEX*"])
