"""Check the input of callers, before anything starts.

Every front end passes its arguments to these functions. They return the typed values that an engine takes, or raise an
`InvalidInput` that names the wrong argument and the allowed values.
"""

from __future__ import annotations

import functools
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

from helmsman.base.caller_context import expand_home, from_here
from helmsman.base.config_values import over, read_value
from helmsman.base.files import refuse_moved, refuse_outside
from helmsman.base.structs import replace
from helmsman.base.unknown_names import nearest
from helmsman.errors import InvalidInput
from helmsman.model.options import (
    ASKS,
    DEFAULT_AGENT,
    WRITES,
    Name,
    PathLike,
    Placement,
    SafetyOptions,
    SessionOptions,
    StartOptions,
    TurnInput,
    TurnKind,
    TurnLimits,
    TurnOptions,
    WorkOptions,
    WorktreeOptions,
    approval_word,
    sandbox_word,
)
from helmsman.model.request import TurnRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from helmsman.settings import OnLimit, Settings

MAX_PROMPT_CHARS: Final = 1_048_576
"""Codex's own limit since 0.115. Older versions fail on longer prompts instead of refusing them."""

_MISSPELT: Final = 0.85
"""Likeness from which a key counts as a misspelt policy: `sanbox_mode` does, `sandbox_private_desktop` does not."""

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def only_known_arguments(options: type[Any]) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Decorate a function with `**options: Unpack[…]` so that an unknown option raises TypeError at the call."""

    def decorate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        named = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD and name != "self"
        ]
        known = frozenset([*named, *options.__annotations__])

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            for name in kwargs:
                if name not in known:
                    meant = nearest(name, sorted(known))
                    hint = f". Did you mean {meant!r}?" if meant else f". It takes: {', '.join(sorted(known))}."
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
            return function(*args, **kwargs)

        return checked

    return decorate


takes_safety_options: Final = only_known_arguments(SafetyOptions)
takes_start_options: Final = only_known_arguments(StartOptions)
takes_work_options: Final = only_known_arguments(WorkOptions)
takes_turn_options: Final = only_known_arguments(TurnOptions)
"""Decorator for functions that pass options on: a misspelt option raises TypeError before anything starts."""

_POLICY_KEYS: Final = ("sandbox_mode", "approval_policy", "default_permissions", "sandbox_workspace_write")
"""Keys of a session's policy in Codex's configuration. Codex ignores unknown keys."""


_CHOSEN: Final = frozenset({"agent", "cwd", "asks", "writes", "writable_roots", "unenforced", "tools", "environment"})
_STAYS: Final = tuple(name for name in SessionOptions.__struct_fields__ if name not in _CHOSEN)
"""Options that stay when others change. The policy stays too (`changed_options`)."""
_AS_GIVEN: Final = frozenset(StartOptions.__annotations__).intersection(SessionOptions.__struct_fields__)
"""Options of callers that a session has under the same name."""
_OF_TURN: Final = tuple(name for name in TurnInput.__struct_fields__ if name != "text")


_KINDS: Final = {
    name: get_args(kind)[0] if type(None) in get_args(kind) else kind
    for name, kind in get_type_hints(TurnOptions, include_extras=True).items()
}
"""Type of each option, without None."""


def _checked(options: WorkOptions) -> dict[str, Any]:
    """Return the options that are given, each checked as its type is declared.

    Raises:
        InvalidInput: A value is not allowed by its type.
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if name in _KINDS and value is not None}
    for name, value in given.items():
        kind = _KINDS[name]
        if kind is bool and not isinstance(
            value, bool
        ):  # a text such as "false" is true in Python, and would grant access
            raise InvalidInput(f"{name} cannot be {value!r}. Use True or False.", parameter=name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise InvalidInput(f"{name} cannot be {value!r}. Use one of: {', '.join(get_args(kind))}.", parameter=name)
        if kind is Name and (not value.strip() or any(not char.isprintable() for char in value)):
            raise InvalidInput(f"{name} cannot be {value!r}. Give a name, or leave it out.", parameter=name)
    return given


def session_options(
    cwd: PathLike | None,
    options: StartOptions,
    allowed_roots: Sequence[Path],
    *,
    default_agent: str = DEFAULT_AGENT,
    defaults: Settings | None = None,
) -> SessionOptions:
    """Check the options of a session. With `allowed_roots`, its directories must be inside those.

    `defaults` applies to new sessions: model, profile and configuration of the settings, unless `options` set them.

    Raises:
        InvalidInput: An option is missing, wrong, or contradicts another one.
    """
    given = _checked(cast("WorkOptions", options))
    approval, sandbox = given.get("approval_policy"), given.get("sandbox")
    if given.get(name := "full_auto"):
        approval, sandbox = _preset(name, approval, "on-request"), _preset(name, sandbox, "workspace-write")
    if given.get(name := "dangerously_bypass_approvals_and_sandbox"):
        approval, sandbox = _preset(name, approval, "never"), _preset(name, sandbox, "danger-full-access")
    place = directory("cwd", cwd) if cwd is not None else None
    roots = tuple(directory("writable_roots", one) for one in _several("writable_roots", given.get("writable_roots")))
    agent = given.get("agent", default_agent)
    config = {key: read_value(key, value) for key, value in given.get("config", {}).items()}
    defaulted: dict[str, Any] = {"agent": agent, "writable_roots": roots, "config": config}
    if defaults is not None and agent == DEFAULT_AGENT:  # the defaults are in Codex's terms
        # A model in the caller's `config` takes precedence over the default.
        model = None if "model" in config else defaults.default_model
        if defaults.default_config:
            defaulted["config"] = over(_default_config(defaults, given.get("profile")), config)
        defaulted |= {"model": given.get("model", model), "profile": given.get("profile", defaults.default_profile)}
    _refuse_misspelt_policy(defaulted["config"])
    for path in (*([place] if place is not None else ()), *roots) if allowed_roots else ():
        refuse_outside(path, allowed_roots, "cwd")
    for name, is_free in (("sandbox", sandbox == "danger-full-access"), ("unenforced", given.get("unenforced"))):
        if allowed_roots and is_free:  # report it now; the engine compares whole policies
            raise InvalidInput(
                "Without a sandbox a session could write outside the allowed roots. Use workspace-write.",
                parameter=name,
            )
    as_given = {name: value for name, value in given.items() if name in _AS_GIVEN}
    policy: Any = {"asks": ASKS.get(approval or ""), "writes": WRITES.get(sandbox or "")}
    return SessionOptions(cwd=place, **policy, **{**as_given, **defaulted})


def _default_config(defaults: Settings, profile: str | None) -> Mapping[str, Any]:
    """Return the default configuration. If the caller named the profile, its policy counts as the caller's choice."""
    config = defaults.default_config
    if profile is None:
        return config
    return {key: value for key, value in config.items() if key.partition(".")[0] not in _POLICY_KEYS}


def changed_options(known: SessionOptions, changes: StartOptions) -> StartOptions:
    """Return options with changes applied. What `changes` does not name stays, including the policy, even with a new
    model.

    Raises:
        InvalidInput: They name another agent, which could not read this agent's session.
    """
    if (agent := changes.get("agent")) not in (None, known.agent):
        raise InvalidInput(
            f"This session belongs to the agent {known.agent}, and a session cannot change its agent. Leave agent out, or "
            f"hand the session over: say something to it with the agent {agent}.",
            parameter="agent",
        )
    kept: StartOptions = {"agent": known.agent, "unenforced": changes.get("unenforced", known.unenforced)}
    unsaid: Any = {name: getattr(known, name) for name in _STAYS if changes.get(name) is None}
    # A preset replaces the whole policy, so nothing of the present one is kept.
    if not changes.get("full_auto") and not changes.get("dangerously_bypass_approvals_and_sandbox"):
        kept["approval_policy"] = changes.get("approval_policy") or approval_word(known.asks)
        if changes.get("sandbox") is None:
            kept["sandbox"] = sandbox_word(known.writes)
            kept["writable_roots"] = changes.get("writable_roots") or known.writable_roots
    return {**changes, **unsaid, **kept}


def worktree_options(worktree: bool | WorktreeOptions, allowed_roots: Sequence[Path]) -> WorktreeOptions | None:
    """Check the worktree that a new session is to have; None if it has none.

    Raises:
        InvalidInput: A directory does not exist or is outside the allowed roots, or the start is no name.
    """
    if isinstance(worktree, bool):
        return WorktreeOptions() if worktree else None
    start = worktree.start
    # git would read a leading dash as an option.
    if start is not None and (not start.strip() or not start.isprintable() or start.startswith("-")):
        raise InvalidInput(
            f"start cannot be {start!r:.200}. Use a branch, tag or commit, pr:NUMBER or dirty.", parameter="start"
        )
    places = tuple(directory("add_dirs", place) for place in _several("add_dirs", worktree.add_dirs))
    for place in places:
        refuse_outside(place, allowed_roots, "add_dirs")
    return replace(worktree, add_dirs=places)


def worktree_words(
    add_dirs: Sequence[str], start: str | None, writable_roots: Sequence[str] = (), *, worktree: bool
) -> dict[str, Any]:
    """Return the options for a worktree, its start and further directories, from the words of a front end.

    Without a worktree, the directories are written in place.
    """
    if not worktree and start is None:
        return {"writable_roots": [*writable_roots, *add_dirs]}
    if start is None and not add_dirs:
        return {"worktree": True}
    return {"worktree": WorktreeOptions(start=start, add_dirs=tuple(map(Path, add_dirs)))}


def session_words(options: StartOptions) -> StartOptions:
    """Return the options that belong to the session, not to a turn."""
    return cast("StartOptions", {name: options[name] for name in StartOptions.__annotations__ if name in options})  # type: ignore[literal-required]


def turn_request(
    text: str,
    session: SessionOptions,
    options: WorkOptions,
    settings: Settings,
    *,
    limits: TurnLimits | None = None,
    image_roots: Sequence[Path] = (),
) -> TurnRequest:
    """Check a request for a turn. `limits` are those of its session.

    Raises:
        InvalidInput: See `turn_input`; or an option is wrong.
    """
    given = _checked(options)
    of_turn = {name: value for name, value in given.items() if name in _OF_TURN}
    return TurnRequest(
        turn=turn_input(text, **of_turn, allowed_roots=image_roots),
        options=session,
        limits=_turn_limits(given.get("limits", limits), given.get("on_limit"), settings),
        max_cost_usd=given.get("max_cost_usd"),
        placement=given.get("placement"),
    )


def _turn_limits(limits: TurnLimits | None, on_limit: OnLimit | None, settings: Settings) -> TurnLimits | None:
    if on_limit is None:
        return limits
    usual = TurnLimits.of(settings)
    return replace(usual if limits is None else limits, on_limit=on_limit)


def turn_input(
    text: str,
    *,
    images: Sequence[PathLike] = (),
    output_schema: Mapping[str, Any] | None = None,
    effort: str | None = None,
    kind: TurnKind | None = None,
    allowed_roots: Sequence[Path] = (),
) -> TurnInput:
    """Check a prompt and its attachments. With `allowed_roots`, images must be inside those directories.

    Raises:
        InvalidInput: The prompt is empty or too long, an image is missing, or the schema is not a JSON schema.
    """
    if not text.strip():
        raise InvalidInput("The prompt is empty. Say what is to be done.", parameter="prompt")
    if len(text) > MAX_PROMPT_CHARS:
        raise InvalidInput(
            f"The prompt has {len(text)} characters; at most {MAX_PROMPT_CHARS} are taken. Shorten it, or put the material "
            "into a file and name the file.",
            parameter="prompt",
        )
    return TurnInput(
        text=_encodable(text),
        images=tuple(_image(image, allowed_roots) for image in images),
        output_schema=_schema(output_schema) if output_schema is not None else None,
        effort=effort,
        kind=kind,
    )


def searched_directory(path: PathLike, parameter: str = "directory") -> str:
    """Return a directory to filter a list by, absolute and with links resolved. It may be gone."""
    if not os.fspath(path):
        raise InvalidInput("The name of a directory is empty. Name one, or leave it out.", parameter=parameter)
    try:
        return os.path.realpath(from_here(path))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{os.fspath(path)!r:.200} is no directory: {error}.", parameter=parameter) from error


def directory(parameter: str, path: PathLike) -> Path:
    """Return an existing directory, absolute and with its symbolic links resolved."""
    if not os.fspath(path):  # `Path` would take it for the current directory
        raise InvalidInput("The name of a directory is empty. Name an existing directory.", parameter=parameter)
    resolved = _existing(path)
    if resolved is None:
        where = "" if expand_home(path).is_absolute() else f" in {from_here('.').absolute()}"
        raise InvalidInput(
            f"{os.fspath(path)!r} does not exist{where}. Name an existing directory.", parameter=parameter
        )
    if not resolved.is_dir():
        raise InvalidInput(f"{os.fspath(path)!r} is not a directory. Name a directory.", parameter=parameter)
    return resolved


def require_place(session_id: str, place: str | None) -> None:
    """Check that a session's directory still exists: Codex would only notice with its first command.

    Raises:
        InvalidInput: It is gone, or its path leads elsewhere now.
    """
    if place is None:
        return
    # First, because a link that leads elsewhere now may lead to an existing directory.
    refuse_moved(f"session {session_id}", (Path(place),))
    if not Path(place).is_dir():
        raise InvalidInput(
            f"The directory of session {session_id}, {place}, no longer exists. Create it again, or start a new "
            "session.",
            parameter="session_id",
        )


def refuse_placement(placement: Placement | None) -> None:
    """Refuse a placement without a fleet.

    Raises:
        InvalidInput: There is a placement.
    """
    if placement not in (None, Placement()):
        raise InvalidInput(
            "Machines, labels, priorities, delays and deadlines are for a fleet. Set HELMSMAN_FLEET_URL, or leave them out.",
            parameter="placement",
        )


def _existing(path: PathLike) -> Path | None:
    try:
        return from_here(path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return None


def _image(path: PathLike, allowed_roots: Sequence[Path]) -> Path:
    image = _existing(path)
    if image is None or not image.is_file():
        raise InvalidInput(f"There is no image at {os.fspath(path)!r}. Give the path of a file.", parameter="images")
    refuse_outside(image, allowed_roots, "images")
    return image


def _several(parameter: str, roots: Sequence[PathLike] | None) -> Sequence[PathLike]:
    """Refuse a single text where several directories belong: it is a sequence of characters, and one may be `/`."""
    if isinstance(roots, str | bytes | os.PathLike):
        raise InvalidInput(f"{parameter} cannot be {roots!r}. Use a list of directories.", parameter=parameter)
    return roots or ()


def _refuse_misspelt_policy(config: Mapping[str, Any]) -> None:
    """Refuse a key that is nearly a policy's: the session would run without the intended policy."""
    for key in config:
        name = key.partition(".")[0]
        meant = nearest(name, _POLICY_KEYS, likeness=_MISSPELT) if name not in _POLICY_KEYS else None
        if meant is not None:
            raise InvalidInput(
                f"config has {key!r}, which is no setting and would be ignored. Did you mean {meant}?",
                parameter="config",
            )


def _preset(name: str, given: Any, value: Any) -> Any:
    if given not in (None, value):
        raise InvalidInput(f"{name} means {value} and contradicts {given}. Leave one of them out.", parameter=name)
    return value


def _encodable(prompt: str) -> str:
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput(
            "The prompt has characters that are no valid text (half of a surrogate pair). Remove them.",
            parameter="prompt",
        ) from None
    return prompt


def _schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    # Takes long to import, and few turns have a schema.
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(dict(schema)).check_schema(dict(schema))
    except SchemaError as error:
        raise InvalidInput(
            f"The output schema is not a valid JSON schema: {error.message}. Correct it.", parameter="output_schema"
        ) from None
    return schema
