"""Tests of computing a session's permissions from its options and Codex's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from helmsman.agents.codex.access import Access, plan_access
from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.configuration import Configuration
from helmsman.agents.codex.features import Version
from helmsman.errors import InvalidInput
from helmsman.model.options import SessionOptions

pytestmark = pytest.mark.anyio


class Configured:
    """Answers `config/read`."""

    def __init__(self, **config: Any) -> None:
        self.config = config

    async def effective(self, cwd: Path | None = None) -> dict[str, Any]:
        return self.config


def codex(version: str, path: Path) -> CodexBinary:
    return CodexBinary(path=path, version=Version.parse(version))


async def plan(
    tmp_path: Path,
    *,
    config: Configured | None = None,
    overrides: dict[str, Any] | None = None,
    version: str = "0.166.0",
    resuming: bool = False,
    **options: Any,
) -> Access:
    api = cast("Configuration", config or Configured())
    chosen = SessionOptions(cwd=tmp_path, config=overrides or {}, **options)
    return await plan_access(api, codex(version, tmp_path), tmp_path, chosen, resuming=resuming)


async def test_a_writable_sandbox_comes_with_the_turn_and_not_with_the_thread(tmp_path: Path) -> None:
    access = await plan(tmp_path, writes="workspace")
    assert access.thread_sandbox == "read-only"
    assert access.turn_sandbox is not None
    assert access.turn_sandbox["type"] == "workspaceWrite"


async def test_a_writable_sandbox_in_the_configuration_or_in_config_is_guarded_alike(tmp_path: Path) -> None:
    for access in (
        await plan(tmp_path, config=Configured(sandbox_mode="danger-full-access")),
        await plan(tmp_path, config=Configured(default_permissions=":danger-full-access")),
        await plan(tmp_path, overrides={"sandbox_mode": "danger-full-access"}),
    ):
        assert (access.thread_sandbox, access.sandbox) == ("read-only", "danger-full-access")
        assert access.turn_sandbox == {"type": "dangerFullAccess"}
        assert "sandbox_mode" not in access.config


async def test_a_permission_profile_of_ones_own_is_kept_and_the_repository_called_untrusted(tmp_path: Path) -> None:
    access = await plan(tmp_path, config=Configured(default_permissions="careful"))
    assert (access.thread_sandbox, access.turn_sandbox) == (None, None)
    assert access.config["default_permissions"] == "careful"
    assert access.config["projects"][str(tmp_path)] == {"trust_level": "untrusted"}
    assert access.approval_policy == "on-request"


async def test_nothing_asked_for_and_nothing_configured_sends_nothing(tmp_path: Path) -> None:
    access = await plan(tmp_path)
    assert access == Access(sandbox=None, thread_sandbox=None, turn_sandbox=None, approval_policy=None, config={})


async def test_an_old_codex_gets_the_sandbox_at_the_start(tmp_path: Path) -> None:
    config = Configured(sandbox_mode="danger-full-access")
    access = await plan(tmp_path, config=config, version="0.93.0", writes="workspace")
    assert access.thread_sandbox == "workspace-write"
    assert (await plan(tmp_path, config=config, version="0.93.0")).thread_sandbox is None


async def test_a_resumed_session_gets_what_is_configured_now(tmp_path: Path) -> None:
    plain = await plan(tmp_path, resuming=True)
    assert (plain.thread_sandbox, plain.approval_policy) == ("read-only", "on-request")
    configured = await plan(
        tmp_path, config=Configured(sandbox_mode="workspace-write", approval_policy="untrusted"), resuming=True
    )
    assert (configured.thread_sandbox, configured.approval_policy) == ("workspace-write", "untrusted")


async def test_a_resumed_session_in_a_repository_the_user_trusts_may_write(tmp_path: Path) -> None:
    trusted = Configured(projects={str(tmp_path): {"trust_level": "trusted"}})
    assert (await plan(tmp_path, config=trusted, resuming=True)).thread_sandbox == "workspace-write"


async def test_trust_is_for_the_session(tmp_path: Path) -> None:
    access = await plan(tmp_path, trust_repository=True)
    assert access.config["projects"] == {str(tmp_path): {"trust_level": "trusted"}}


@pytest.mark.parametrize("version", ["0.93.0", "0.166.0"])
async def test_a_workspace_keeps_what_is_configured_for_it(tmp_path: Path, version: str) -> None:
    table = {"network_access": True, "writable_roots": ["/shared"], "exclude_slash_tmp": True}
    access = await plan(
        tmp_path,
        config=Configured(sandbox_workspace_write=table),
        version=version,
        writes="workspace",
        writable_roots=(tmp_path,),
    )
    assert access.turn_sandbox == {
        "type": "workspaceWrite",
        "writableRoots": ["/shared", str(tmp_path)],
        "networkAccess": True,
        "excludeTmpdirEnvVar": False,
        "excludeSlashTmp": True,
    }


async def test_writable_roots_need_their_sandbox(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="workspace-write"):
        await plan(tmp_path, writable_roots=(tmp_path,))


async def test_a_policy_this_codex_lost_is_mapped_and_said(tmp_path: Path) -> None:
    access = await plan(tmp_path, asks="after_failure")
    assert access.approval_policy == "on-request"
    assert "on-failure" in access.notes[0]
    assert (await plan(tmp_path, version="0.93.0", asks="after_failure")).approval_policy == "on-failure"
