"""Whether Codex's sandbox works on this machine: found out by running a harmless command in it.

Codex has a subcommand for that. It runs here with a scratch directory as its home, so that nothing of the user's is
read or changed, and read-only: the command must run, and must not be able to write.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from helmsman.agents.child_process import open_child
from helmsman.agents.codex.starting import codex_environment
from helmsman.base.concurrency import background_tasks
from helmsman.errors import EngineStartFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.agents.codex.binary import CodexBinary

_SECONDS: Final = 20.0
_RAN, _WROTE = "ran", "wrote"
_SCRIPT: Final = f"echo {_RAN}; (echo x > probe) 2>/dev/null && echo {_WROTE}; :"
_PLATFORMS: Final = {"linux": "linux", "darwin": "macos"}

_ADVICE: Final = {
    "linux": "Install bubblewrap and allow unprivileged user namespaces (in a container: run it with them allowed).",
    "darwin": "Check that /usr/bin/sandbox-exec can be run.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCheck:
    """`works` is None where it could not be found out. `fix` says what to do when it does not."""

    works: bool | None
    detail: str
    fix: str = ""


async def check_sandbox(binary: CodexBinary, env: Mapping[str, str] | None = None) -> SandboxCheck:
    """Try the sandbox."""
    platform = _PLATFORMS.get(sys.platform)
    if platform is None:
        return SandboxCheck(works=None, detail=f"not checked on {sys.platform}")
    with tempfile.TemporaryDirectory(prefix="helmsman-sandbox-", ignore_cleanup_errors=True) as scratch:
        # Codex's sandbox leaves small directories wherever temporary files go.
        child_env = codex_environment(binary, Path(scratch), env) | {"TMPDIR": scratch}
        try:
            # Up to 0.130 the platform is a subcommand, afterwards only the command follows.
            _, about, _ = await _output([binary.path, "sandbox", "--help"], child_env, Path(scratch))
            named = [platform] if f"\n  {platform} " in about else []
            argv: list[str | Path] = [
                binary.path,
                "sandbox",
                *named,
                "-c",
                'sandbox_mode="read-only"',
                "--",
                "/bin/sh",
                "-c",
                _SCRIPT,
            ]
            exit_code, output, stderr = await _output(argv, child_env, Path(scratch))
        except EngineStartFailed as error:
            return SandboxCheck(works=False, detail=error.message)
    if exit_code is None:
        return SandboxCheck(works=None, detail=f"no answer within {_SECONDS:g} s")
    said = output.split()
    if _RAN not in said:
        last = next(reversed(stderr.splitlines()), "") or f"exit code {exit_code}"
        return SandboxCheck(works=False, detail=f"a command could not be run in it: {last}", fix=_ADVICE[sys.platform])
    if _WROTE in said:
        return SandboxCheck(
            works=False, detail="a command could write although it was read-only", fix=_ADVICE[sys.platform]
        )
    return SandboxCheck(works=True, detail="a command ran in it and could not write")


async def _output(argv: list[str | Path], env: Mapping[str, str], cwd: Path) -> tuple[int | None, str, str]:
    """The exit code (None when the time was up) and what was printed."""
    output = bytearray()
    async with background_tasks() as tasks, open_child(tasks, argv, env=env, cwd=cwd) as child:
        await child.stdin.aclose()
        with anyio.move_on_after(_SECONDS):
            async for chunk in child.stdout:
                output += chunk
            await child.wait()
        return child.exit_code, output.decode("utf-8", "replace"), child.stderr_tail
