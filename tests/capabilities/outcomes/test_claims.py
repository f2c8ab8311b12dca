"""Tests of checking agents' claims: cited lines, planned files, scopes, findings, interfaces, found checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.agents.protocol import Finding
from helmsman.base.structs import pack, unpack
from helmsman.capabilities.outcomes.check_files import ChangedFiles, as_before, own_files_in, own_kind
from helmsman.capabilities.outcomes.checks import find_check
from helmsman.capabilities.outcomes.claims import (
    CitedLines,
    PlannedFile,
    Reviewed,
    ShownDiff,
    joined,
    merge_findings,
    places_exist,
    planned_files_exist,
    verdict,
    within_scope,
)
from helmsman.capabilities.outcomes.differential import compare_interfaces
from tests.capabilities.outcomes.conftest import write

DIFF = """diff --git a/app.py b/app.py
index 1111111..2222222 100644
--- a/app.py
+++ b/app.py
@@ -10,3 +10,4 @@ def run():
 same
-old
+new
+more
 same
diff --git a/gone.py b/gone.py
deleted file mode 100644
index 1111111..0000000
--- a/gone.py
+++ /dev/null
@@ -1,2 +0,0 @@
-one
-two
"""


@pytest.mark.parametrize(
    ("place", "ok"),
    [
        (CitedLines(file="app.py", start_line=11, end_line=12), True),
        (CitedLines(file="./app.py"), True),
        (CitedLines(file="gone.py", start_line=2), True),
        (CitedLines(file="app.py", start_line=40, end_line=41), False),
        (CitedLines(file="app.py", start_line=0), False),
        (CitedLines(file="app.py", start_line=12, end_line=11), False),
        (CitedLines(file="app.py", start_line=50, end_line=10**18), False),
        (CitedLines(file="gone.py", start_line=1, end_line=10**18), False),
        (CitedLines(file="app.py", start_line=-(10**18), end_line=10**18), False),
        (CitedLines(file="other.py", start_line=1), False),
        (CitedLines(file="../app.py", start_line=11), False),
        (CitedLines(file="/etc/passwd", start_line=1), False),
    ],
)
def test_findings_must_be_about_lines_of_the_diff(tmp_path: Path, place: CitedLines, ok: bool) -> None:
    assert ShownDiff.of_text(tmp_path, DIFF).shows(place).ok is ok


def test_a_root_cause_names_lines_that_exist(tmp_path: Path) -> None:
    write(tmp_path, {"src/app.py": "one\ntwo\nthree\n"})
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert places_exist([CitedLines(file="src/app.py", start_line=3)], tmp_path).verified
    assert places_exist(
        [CitedLines(file=str(tmp_path / "src" / "app.py"), start_line=1, end_line=3)], tmp_path
    ).verified
    for lie in (
        CitedLines(file="src/app.py", start_line=4),
        CitedLines(file="src/none.py"),
        CitedLines(file="link", start_line=1),
        CitedLines(file="src", start_line=1),
        CitedLines(file="a\0b"),
    ):
        assert not places_exist([CitedLines(file="src/app.py"), lie], tmp_path).verified
    assert not places_exist([], tmp_path).verified, "nothing was cited"


def test_a_plan_names_files_that_exist_or_says_that_they_are_new(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "a\n"})
    there, new = PlannedFile(file="a.py"), PlannedFile(file="b/c.py", new=True)
    assert planned_files_exist([there, new], tmp_path).verified
    assert not planned_files_exist([there, PlannedFile(file="b.py")], tmp_path).verified
    assert not planned_files_exist([PlannedFile(file="a.py", new=True)], tmp_path).verified
    assert not planned_files_exist([PlannedFile(file="../x.py", new=True)], tmp_path).verified


@pytest.mark.parametrize(
    ("scope", "outside"),
    [
        (["src"], ["README.md", "srcs/x.py"]),
        (["src/", "*.md"], ["srcs/x.py"]),
        (["src/**/deep.py"], ["README.md", "src/a.py", "srcs/x.py"]),
        (["**/*.py", "README.md"], []),
        (["."], []),
        ([], []),
    ],
)
def test_nothing_outside_of_the_scope_is_touched(scope: list[str], outside: list[str]) -> None:
    changed = ["src/a.py", "src/b/deep.py", "README.md", "srcs/x.py"]
    found = within_scope(changed, scope)
    assert found.verified is (not outside)
    assert [one.file for one in found.against] == sorted(outside)


def test_findings_of_several_are_reported_once(tmp_path: Path) -> None:
    mine = Finding(
        title="Division by zero", body="n may be 0", priority=1, confidence=0.6, file="app.py", start_line=11
    )
    same = Finding(
        title="Possible division by zero", body="When the list is empty, n may be 0.", priority=0, confidence=0.9,
        file=str(tmp_path / "app.py"), start_line=12, end_line=13,
    )  # fmt: skip
    other = Finding(title="Unused import", body="os is not used", priority=3, file="app.py", start_line=11)
    far = Finding(title="Division by 2", body="should be 3", priority=2, file="app.py", start_line=90)
    loose = Finding(title="No file at all", priority=1)
    reviewed = Reviewed(root=str(tmp_path), shown=ShownDiff.of_text(tmp_path, DIFF), before=None)
    assert unpack(pack(reviewed), Reviewed) == reviewed
    merged = merge_findings({"codex": [mine, other], "claude": [same, far, loose]}, reviewed)
    told = [(one.finding.title, one.finding.priority, one.by) for one in merged]
    assert told == [
        ("Possible division by zero", 0, ("codex", "claude")),
        ("No file at all", 1, ("claude",)),
        ("Division by 2", 2, ("claude",)),
        ("Unused import", 3, ("codex",)),
    ]
    assert merged[0].finding.confidence == 0.9
    assert [one.verified for one in merged] == [True, False, False, True]
    assert merged[0].to_json()["evidence"]["ok"] is True


def test_no_urgent_finding_is_lost_in_another(tmp_path: Path) -> None:
    reviewed = Reviewed(root=str(tmp_path), shown=ShownDiff.of_text(tmp_path, DIFF), before=None)
    urgent = Finding(title="SQL injection in the login query", priority=0, file="app.py", start_line=11)
    talk = "the login query, at length " * 20
    naming = Finding(title="Login query naming", body=talk, priority=3, file="app.py", start_line=12)
    elsewhere = Finding(title=urgent.title, body=talk, priority=2, file="app.py", start_line=900)
    merged = merge_findings({"codex": [urgent], "claude": [naming, elsewhere]}, reviewed)
    first, *others = merged
    assert (first.finding.title, first.finding.priority, first.verified) == (urgent.title, 0, True)
    assert [(one.finding.start_line, one.verified) for one in others] == [(900, False)]
    twice = merge_findings({"codex": [urgent, Finding(title=urgent.title, file="app.py", start_line=12)]}, reviewed)
    assert len(twice) == 2


def test_public_interfaces_before_and_after_are_compared() -> None:
    head = b"class A(Base):\n    size: int = 1\n\n"
    before = b"LIMIT = 3\n" + head + b"    def go(self, to: str) -> None: ...\n\n    def _own(self): ...\n"
    after = b"LIMIT = 4\n" + head + b"    async def go(self, to: str, *, by=1) -> None: ...\n\n\ndef new(): ...\n"
    files = {"src/pkg/a.py": (before, after), "pkg/_b.py": (None, b"def hidden(): ...\n"), "x.go": (b"a", b"b")}
    files["pkg/c.py"] = (b"__all__ = ['x']\ndef x(): ...\ndef y(): ...\n", b"__all__ = ['x']\ndef x(): ...\n")
    files["broken.py"] = (b"def", b"x = 1")
    files["tests/test_a.py"] = (None, b"def test_a(): ...\n")
    told = compare_interfaces(files, {path: both for path, both in files.items() if path.endswith(".py")})
    assert dict(told.added) == {"pkg.a.new": "def new()"}
    assert dict(told.changed) == {
        "pkg.a.A.go": {
            "before": "def go(self, to: str) -> None",
            "after": "async def go(self, to: str, *, by=1) -> None",
        }
    }
    assert dict(told.removed) == {}
    assert told.unknown == ("x.go", "broken.py")
    assert not told.same


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"Makefile": "test: deps\n\tpytest\n", "tests/test_a.py": ""}, "make test"),
        ({"Makefile": "test := no\nall:\n\ttrue\n", "tests/test_a.py": ""}, "python -m pytest"),
        ({"GNUmakefile": "all:\n", "Makefile": "test:\n"}, None),
        ({"pyproject.toml": "[tool.pytest.ini_options]\n"}, "python -m pytest"),
        ({"tox.ini": "[tox]\n", "pyproject.toml": "[tool.pyt"}, "tox"),
        ({"setup.cfg": "[tool:pytest]\n"}, "python -m pytest"),
        ({"conftest.py": ""}, "python -m pytest"),
        ({"gradlew": "", "pom.xml": ""}, "./gradlew test"),
        ({"mvnw": "", "pom.xml": ""}, "./mvnw test"),
        ({"pom.xml": ""}, "mvn test"),
        ({"package.json": '{"scripts": {"test": "node --test"}}'}, "npm test"),
        ({"package.json": '{"scripts": {"test": "vitest"}}', "pnpm-lock.yaml": ""}, "pnpm test"),
        ({"package.json": '{"scripts": {"test": "jest"}}', "yarn.lock": ""}, "yarn test"),
        ({"package.json": '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}'}, None),
        ({"package.json": "[" * 100_000}, None),
        ({"Cargo.toml": "[package]\n"}, "cargo test"),
        ({"go.mod": "module x\n"}, "go test ./..."),
        ({"README.md": "run make test\n"}, None),
    ],
)
def test_the_check_of_a_repository_is_found_where_it_is_plain(
    tmp_path: Path, files: dict[str, str], command: str | None
) -> None:
    write(tmp_path, files)
    found = find_check(tmp_path)
    assert (None if found is None else found.command) == command
    assert found is None or found.why.endswith(".")


def test_which_files_are_a_checks_own() -> None:
    own = {"tests/a.py": "test", "src/a.test.ts": "test", "x_test.go": "test", "Makefile": "how", "conftest.py": "how",
           "calc_test.c": "test", "src/test-sum.R": "test", "CMakeLists.txt": "how", ".gitattributes": "how",
           "t/sum.t": "test", "lib/sum_test.exs": "test", "SumSpec.hs": "test",
           "scripts/run.py": "how", "ci/x": "how", "check.sh": "how", "tests/conftest.py": "how"}  # fmt: skip
    assert {path: own_kind(path) for path in own} == own
    assert [
        path
        for path in ("app.py", "src/latest.py", "attest.c", "testimony.c", "contest.py", "protest.ts", "docs/a.md")
        if own_kind(path)
    ] == []
    changed = {
        "a.py": "M",
        "tests/test_a.py": "M",
        "tests/test_new.py": "A",
        "tests/conftest.py": "A",
        "b_test.go": "D",
    }
    change = ChangedFiles(
        changed=changed,
        before={path: "100644" for path, status in changed.items() if status != "A"},
        after={path: "100644" for path, status in changed.items() if status != "D"},
        links_before={},
        links_after={},
        content_before=lambda _path: b"",
        content_after=lambda _path: b"",
        naming=lambda _word: (),
    )
    assert as_before(own_files_in(change), "BASE") == {
        "tests/test_a.py": "BASE",
        "tests/test_new.py": None,
        "tests/conftest.py": None,
        "b_test.go": "BASE",
    }


def test_nothing_is_verified_without_evidence() -> None:
    assert not verdict([]).verified
    assert not joined().verified
