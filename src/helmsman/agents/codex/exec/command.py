"""The command line of one turn of `codex exec`, from what the caller asked for.

Everything a caller can choose is checked here, before a process exists. Values go in as `--option=value`, so that none
can be taken for an option, and all options stand before `resume`: its own are fewer, and differ from version to version.
Texts without a natural limit (instructions, a schema) go in files; the prompt goes over standard input.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.codex.access import (
    NO_ROOTS,
    WORKSPACE_KEYS,
    Confinement,
    asked_sandbox,
    confined_sandbox,
    refuse_rules_nobody_trusts,
    refuse_writing_everything,
)
from helmsman.agents.codex.binary import exec_capabilities
from helmsman.agents.codex.configuration import check_config, merge_config, profile_config
from helmsman.agents.codex.features import Feature
from helmsman.agents.protocol import Capability
from helmsman.base.config_values import as_toml
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.git.view import repository_root
from helmsman.model.options import WRITES, SessionOptions, TurnInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.agents.codex.binary import CodexBinary

_MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""Linux takes no longer argument."""

_WRITABLE_BY_CONFIG: Final = ("sandbox_mode", "default_permissions")
_POLICY_KEYS: Final = frozenset({*_WRITABLE_BY_CONFIG, "sandbox_workspace_write"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecCommand:
    """What to run after the name of the program, and what to tell the caller about it."""

    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()


def exec_command(
    binary: CodexBinary,
    codex_home: Path,
    options: SessionOptions,
    turn: TurnInput,
    *,
    directory: Path,
    scratch: Path,
    session_id: str | None = None,
    confinement: Confinement = NO_ROOTS,
) -> ExecCommand:
    """The command for a turn in a new session, or in the one with `session_id`. Writes files into `scratch`.

    Raises:
        InvalidInput: The options make no sense.
        Unsupported: They ask for what `codex exec` cannot do.
    """
    _check(options, turn, directory)
    refuse_rules_nobody_trusts(binary, options, directory)
    profile = profile_config(binary, codex_home, options.profile)
    config = check_config(options.config)
    if confinement:
        options, config = _confined(confinement, codex_home, options, profile, config, directory)
    if config.get("approval_policy") not in (None, "never"):
        raise exec_capabilities().refusal(Capability.ASK)
    if options.writes == "workspace":
        refuse_writing_everything(binary, (directory, *options.writable_roots))
    trust, notes = _trust(binary, codex_home, options, profile | config, directory, resuming=session_id is not None)
    if trust:
        projects = config.get("projects")
        config["projects"] = trust | (projects if isinstance(projects, dict) else {})
    if turn.effort is not None:
        config["model_reasoning_effort"] = turn.effort
    if options.developer_instructions is not None:
        config["developer_instructions"] = options.developer_instructions
    if options.base_instructions is not None:
        config["model_instructions_file"] = _file(scratch / "instructions.md", options.base_instructions)

    arguments = [f"--image={_image(path, scratch / str(number))}" for number, path in enumerate(turn.images)]
    arguments += ["--json", f"--cd={directory}"]
    if options.writes is not None:
        arguments.append(f"--sandbox={asked_sandbox(options)}")
    if options.model is not None:
        arguments.append(f"--model={options.model}")
    if options.profile is not None:
        arguments.append(f"--profile={options.profile}")
    arguments += [f"--add-dir={root}" for root in options.writable_roots]
    arguments += [f"--config={key}={as_toml(value)}" for key, value in config.items()]
    if options.skip_git_repo_check:
        arguments.append("--skip-git-repo-check")
    if turn.output_schema is not None:
        arguments.append(f"--output-schema={_file(scratch / 'schema.json', _schema(turn.output_schema))}")
    _check_arguments(arguments)
    if session_id is not None and session_id.startswith("-"):
        raise InvalidInput(f"{session_id!r} is not the id of a session. List the sessions to see which there are.")
    resume = () if session_id is None else ("resume", session_id)
    return ExecCommand(arguments=("exec", *arguments, *resume, "-"), notes=notes)


# --- checks ----------------------------------------------------------------------------------------------------------


def _check(options: SessionOptions, turn: TurnInput, directory: Path) -> None:
    if not turn.text.strip():
        raise InvalidInput("The prompt is empty. Say what is to be done.")
    if not directory.is_dir():
        raise InvalidInput(f"The working directory {directory} is not a directory. Name one that exists.")
    for image in turn.images:
        if not image.is_file():
            raise InvalidInput(f"There is no image {image}. Name a file that exists.")
    if options.writable_roots and options.writes not in (None, "workspace"):
        raise InvalidInput(
            "Writable roots belong to the sandbox workspace-write. Ask for that sandbox, or leave the roots out."
        )


def _check_arguments(arguments: list[str]) -> None:
    for argument in arguments:
        option = argument.partition("=")[0]
        if "\0" in argument:
            raise InvalidInput(f"The value for {option} contains a NUL character. Remove it.")
        if len(argument.encode("utf-8", "surrogateescape")) > _MAX_ARGUMENT_BYTES:
            raise InvalidInput(f"The value for {option} is too long for a command line. Use the engine app-server.")


# --- allowed roots ---------------------------------------------------------------------------------------------------


def _confined(
    confinement: Confinement,
    codex_home: Path,
    options: SessionOptions,
    profile: Mapping[str, Any],
    config: Mapping[str, Any],
    directory: Path,
) -> tuple[SessionOptions, dict[str, Any]]:
    """Options and configuration that leave nothing to Codex's own: exec reports no policy, so all of it is said."""
    given = merge_config(profile, config)
    mode, said = confined_sandbox(confinement, codex_home, options, given, _configuration(codex_home), directory)
    rest = {key: value for key, value in config.items() if key.partition(".")[0] not in _POLICY_KEYS}
    for wire, key in ({"writableRoots": "writable_roots"} | WORKSPACE_KEYS).items():
        if wire in said:
            rest[f"sandbox_workspace_write.{key}"] = said[wire]
    return replace(options, writes=WRITES[mode], writable_roots=()), rest


# --- trust -----------------------------------------------------------------------------------------------------------


def _trust(
    binary: CodexBinary,
    codex_home: Path,
    options: SessionOptions,
    given: Mapping[str, Any],
    directory: Path,
    *,
    resuming: bool,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What to say about the repository's trust, so that Codex neither marks it as trusted for good nor loads its files.

    exec has no sandbox of its own for a turn, as the app-server has, so the repository has to be called untrusted while
    Codex may write to it. An answer that the user gave for this repository stands.
    """
    directory = directory.resolve()
    root = repository_root(directory) or directory
    places = (str(directory), str(root))  # Codex looks at both
    if options.trust_repository:
        return {place: {"trust_level": "trusted"} for place in places}, ()
    if resuming or options.writes == "nothing" or not binary.can(Feature.TRUST_ON_START):
        return {}, ()
    configured = _configuration(codex_home)
    may_write = options.writes is not None or any(key in given or key in configured for key in _WRITABLE_BY_CONFIG)
    projects = configured.get("projects")
    if not may_write or (isinstance(projects, dict) and not projects.keys().isdisjoint(places)):
        return {}, ()
    notes: tuple[str, ...] = ()
    if not binary.can(Feature.EXEC_UNTRUSTED_INSTRUCTIONS) and (root / "AGENTS.md").exists():
        notes = (
            f"{root} is not trusted, so this Codex does not read its AGENTS.md in `codex exec`. Trust the repository, "
            "or use the engine app-server.",
        )
    return {place: {"trust_level": "untrusted"} for place in places}, notes


def _configuration(codex_home: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads((codex_home / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # Codex itself will report the error


# --- values ----------------------------------------------------------------------------------------------------------


def _schema(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"The output schema cannot be written as JSON: {error}. Give a JSON schema.") from error


def _file(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def _image(path: Path, copy: Path) -> Path:
    """Codex splits the value of --image at commas, so a file with one in its name is given a plain one."""
    if "," not in str(path):
        return path.absolute()
    return shutil.copyfile(path, copy.with_suffix(path.suffix))
