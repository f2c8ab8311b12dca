"""Commands that are only a noun: `session`, `job` and `config`. Their subcommands are in the modules named here."""

from __future__ import annotations

from helmsman.cli.command import cli_noun
from helmsman.cli.command_names import SESSION_VERBS

session_command = cli_noun(
    "session",
    "Commit, publish, find, export, rewind and archive sessions.",
    "Manage sessions. `helmsman list` lists them.",
    "helmsman session search flaky parser test",
    "helmsman session rewind 3b2d5c8e",
    modules={
        "attach": "attach:command",
        "commit": "publish:commit_command",
        "open": "open_directory:command",
        "pr": "publish:pr_command",
        "watch-pr": "publish:watch_pr_command",
        "discard": "changes:discard_command",
        "export": "exporting:export_command",
        "import": "exporting:import_command",
        "rewind": "rewind:command",
        "search": "search:command",
        "worktrees": "worktrees:command",
        **{name: f"session_commands:{name}_command" for name in SESSION_VERBS},
    },
)

job_command = cli_noun(
    "job",
    "Fix a bug, refactor or write tests, with a verified outcome.",
    "Ask for an outcome. Helmsman chooses the agent, runs the checks itself and applies only what they verify.",
    'helmsman job debug "test_parse fails: KeyError" --check "make test"',
    modules={name: f"outcomes:{name}_command" for name in ("debug", "refactor", "test")},
)

config_command = cli_noun(
    "config",
    "Rules, notifications, other machines, shell completion.",
    "Look at and change what Helmsman keeps in its configuration. `helmsman agents config` is for Codex's own.",
    "helmsman config rules",
    "helmsman config hosts add build ssh://me@build",
    modules={
        "completion": "completion:command",
        "hosts": "hosts:command",
        "notify": "notify:command",
        "rules": "rules:command",
    },
)
