"""Audits the installed dependencies of Helmsman: `make audit`, part of CI.

Three questions, each with a line of its own: do the packages fit together (`pip check`), is each one the version that
constraints.txt names, and is a vulnerability known in one of them (`pip-audit`, which asks the package index). A yes to the
last, or a no to the others, fails. An index that cannot be asked, or that knows nothing about vulnerabilities, does not
fail it, and is told.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
TOOL = ROOT / ".cache" / "audit"
"""Separate environment of pip-audit, so that it does not audit its own dependencies."""

NOT_PINNED = frozenset({"codex-helmsman", "pip", "setuptools", "wheel"})
INSTALL_SECONDS = 90
ANSWER_SECONDS = 5
AUDIT_SECONDS = 60


def main() -> int:
    problems = [*misfits(), *unpinned()]
    for problem in problems:
        print(f"✗ {problem}")
    if not problems:
        print("✓ The installed packages fit together, and each is the version that constraints.txt names.")
    known, sentence = vulnerabilities()
    print(sentence)
    return 1 if problems or known else 0


def misfits() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"],
        capture_output=True,
        encoding="utf-8",
        timeout=AUDIT_SECONDS,
        check=False,
    )
    return done.stdout.splitlines() if done.returncode else []


def unpinned() -> list[str]:
    pinned = {}
    problems = []
    for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines():
        name, exactly, version = line.partition("==")
        if exactly:
            pinned[_normal(name)] = version.strip()
        elif line.strip() and not line.startswith("#"):
            problems.append(f"constraints.txt says {line.strip()!r}, which is not one version. Run `make constraints`.")
    for installed in distributions():
        name = _normal(installed.metadata["Name"])
        if name not in NOT_PINNED and pinned.get(name) != installed.version:
            wanted = pinned.get(name, "nothing")
            problems.append(
                f"{name} {installed.version} is installed, constraints.txt has {wanted}. Run `make constraints`."
            )
    return sorted(set(problems))


def vulnerabilities() -> tuple[bool, str]:
    """Return whether vulnerabilities are known, and a report."""
    try:
        tool = str(pip_audit())
        command = [tool, "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip", "--progress-spinner=off"]
        done = subprocess.run(
            [*command, "--format=json", f"--timeout={ANSWER_SECONDS}"],
            capture_output=True,
            encoding="utf-8",
            timeout=AUDIT_SECONDS,
            check=False,
        )
        return report(json.loads(done.stdout)["dependencies"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1:]
        return False, f"? Known vulnerabilities were not looked up: pip-audit did not answer ({' '.join(reason)})."


def report(dependencies: list[dict[str, Any]]) -> tuple[bool, str]:
    audited = [dependency for dependency in dependencies if "vulns" in dependency]
    affected = [dependency for dependency in audited if dependency["vulns"]]
    if affected:
        lines = [
            f"✗ {dependency['name']} {dependency['version']}: {vulnerability['id']}, "
            f"fixed in {', '.join(vulnerability.get('fix_versions') or ['no version yet'])}"
            for dependency in affected
            for vulnerability in dependency["vulns"]
        ]
        return True, "\n".join(lines)
    if len(audited) == len(dependencies):
        return False, f"✓ No vulnerability is known in any of {len(audited)} packages."
    return False, (
        f"? Known vulnerabilities were looked up for {len(audited)} of {len(dependencies)} packages, and none was found; "
        "the package index says nothing about the others."
    )


def pip_audit() -> Path:
    """Return the tool; it is installed if missing."""
    tool = TOOL / ("Scripts" if sys.platform == "win32" else "bin") / "pip-audit"
    if not tool.exists():
        # It runs once: neither a pip of its own nor everything compiled is worth the wait.
        install = ("pip", "--python", str(tool.with_name("python")), "install", "--quiet", "--no-compile", "pip-audit")
        for words in (("venv", "--without-pip", str(TOOL)), install):
            command = [sys.executable, "-m", *words]
            subprocess.run(command, capture_output=True, encoding="utf-8", timeout=INSTALL_SECONDS, check=True)
    return tool


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
