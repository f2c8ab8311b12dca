"""`scripts/audit_dependencies.py`: what fails it, and what it only tells."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "audit_dependencies.py"


@pytest.fixture
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit_dependencies", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def clean(name: str) -> dict[str, Any]:
    return {"name": name, "version": "1.0", "vulns": []}


def test_a_known_vulnerability_fails_it(audit: Any) -> None:
    bad = {"name": "b", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
    assert audit.report([clean("a"), bad]) == (True, "✗ b 1.0: PYSEC-1, fixed in 1.1")


def test_the_audit_says_how_many_packages_it_could_look_up(audit: Any) -> None:
    assert audit.report([clean("a")]) == (False, "✓ No vulnerability is known in any of 1 packages.")
    failed, sentence = audit.report([clean("a"), {"name": "b", "skip_reason": "not found"}])
    assert not failed
    assert "looked up for 1 of 2 packages" in sentence


def test_an_index_that_does_not_answer_does_not_fail_it(audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> Path:
        raise OSError("no route to host")

    monkeypatch.setattr(audit, "pip_audit", unreachable)
    assert audit.vulnerabilities() == (
        False,
        "? Known vulnerabilities were not looked up: pip-audit did not answer (no route to host).",
    )


def test_a_version_that_is_not_pinned_fails_it(audit: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("anyio==0.0.1\nmcp>=1\n", encoding="utf-8")
    monkeypatch.setattr(audit, "CONSTRAINTS", constraints)
    problems = audit.unpinned()
    assert any(problem.startswith("anyio ") and "constraints.txt has 0.0.1" in problem for problem in problems)
    assert any("'mcp>=1', which is not one version" in problem for problem in problems)
