"""A turn that was asked for, with all that is needed to run it: stored with its task until an agent may have heard of it."""

from __future__ import annotations

from typing import Any

from helmsman.base.pinned_directory import DirectoryIdentity
from helmsman.base.structs import Value, pack, replace, unpack_if_valid
from helmsman.model.options import SessionOptions, TurnInput, approval_word, sandbox_word, without_secrets


class TurnRequest(Value, frozen=True, kw_only=True):
    """A turn, the options of its session, and the detached engine that was there for it."""

    turn: TurnInput
    options: SessionOptions
    worktree: bool = False
    engine: str | None = None
    place: DirectoryIdentity | None = None
    """Which directory it was asked for in."""

    def packed(self) -> dict[str, Any] | None:
        """Return the request for the store; None if the next hub could not run all of it.

        Options that hold a secret are not stored, and functions of a program end with the program.
        """
        if self.options.tools or without_secrets(self.options) != self.options:
            return None
        packed: dict[str, Any] = pack(replace(self, place=self.place or DirectoryIdentity.at(self.options.cwd)))
        return packed

    @classmethod
    def unpacked(cls, content: Any) -> TurnRequest | None:
        """Return the request that was stored; None if it makes no sense. Writable directories that are gone are left out."""
        request = unpack_if_valid(content, cls)
        if request is None:
            return None
        there = tuple(directory for directory in request.options.writable_roots if directory.is_dir())
        return replace(request, options=replace(request.options, writable_roots=there))

    def words(self) -> dict[str, Any]:
        """Return the options of its session as callers say them."""
        options = self.options
        words: dict[str, Any] = {
            "agent": options.agent,
            "model": options.model,
            "sandbox": sandbox_word(options.writes),
            "approval_policy": approval_word(options.asks),
            "writable_roots": options.writable_roots,
            "profile": options.profile,
            "config": options.config,
            "base_instructions": options.base_instructions,
            "developer_instructions": options.developer_instructions,
            "skip_git_repo_check": options.skip_git_repo_check,
            "trust_repository": options.trust_repository,
            "unenforced": options.unenforced,
        }
        return {name: value for name, value in words.items() if value}
