"""Tests that an unknown argument is an error, in every function that passes options on."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import helmsman
from helmsman import load_settings, run_step, run_step_sync
from helmsman.base.unknown_names import nearest
from helmsman.model.inputs import only_known_arguments
from helmsman.model.options import StartOptions
from helmsman.service import HelmsmanService
from helmsman.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"state_dir": str(tmp_path)}, {}, tmp_path)


def calls(helm: HelmsmanService) -> dict[str, Callable[..., Any]]:
    """Every function that takes a session's options, with its other arguments given."""
    return {
        "start": lambda **options: helm.start("x", **options),
        "say": lambda **options: helm.say("id", "x", **options),
        "fork": lambda **options: helm.fork("id", "x", **options),
        "plan": lambda **options: helm.extras.plans.start("x", **options),
        "task": lambda **options: helm.tasks.local.run("x", **options),
        "follow-up": lambda **options: helm.tasks.local.follow_up("id", "x", **options),
        "step": lambda **options: run_step("x", helm=helm, **options),
        "step without a loop": lambda **options: run_step_sync("x", helm=helm, **options),
    }


@pytest.mark.parametrize("name", ["start", "say", "fork", "plan", "task", "follow-up", "step", "step without a loop"])
def test_a_misspelt_sandbox_is_a_type_error_and_nothing_runs(settings: Settings, name: str) -> None:
    # Nothing is awaited: as with any function, the call itself is wrong.
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'sanbox'\. Did you mean 'sandbox'\?"):
        calls(HelmsmanService(settings))[name](sanbox="read-only")


DECORATORS = {
    "SafetyOptions": "takes_safety_options",
    "StartOptions": "takes_start_options",
    "WorkOptions": "takes_work_options",
    "TurnOptions": "takes_turn_options",
}


def test_every_public_function_that_passes_options_on_is_among_them() -> None:
    """A new one has to be checked, too."""
    taking: set[str] = set()
    checked: set[str] = set()
    for file in Path(helmsman.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) or node.args.kwarg is None:
                continue
            kind = ast.unparse(node.args.kwarg.annotation or ast.Constant("")).removeprefix("Unpack[").rstrip("]")
            if kind in DECORATORS:
                taking.add(f"{file.name}:{node.name}")
                if DECORATORS[kind] in map(ast.unparse, node.decorator_list):
                    checked.add(f"{file.name}:{node.name}")
    assert taking
    assert taking == checked


def test_an_unrecognizable_argument_lists_the_known_ones(settings: Settings) -> None:
    with pytest.raises(TypeError, match=r"'zzz'\. It takes: agent, approval_policy, .*sandbox"):
        calls(HelmsmanService(settings))["start"](zzz=1)


def test_an_argument_of_the_function_itself_is_suggested_too(settings: Settings) -> None:
    with pytest.raises(TypeError, match=r"start\(\).*Did you mean 'output_schema'\?"):
        calls(HelmsmanService(settings))["start"](outputschema={})


def test_known_names_are_passed_on() -> None:
    @only_known_arguments(StartOptions)
    def function(first: int, *, second: int = 2, **options: object) -> tuple[int, int, dict[str, object]]:
        return first, second, options

    assert function(1, second=3, sandbox="read-only") == (1, 3, {"sandbox": "read-only"})
    assert function.__name__ == "function"


def test_the_nearest_name_is_found() -> None:
    assert nearest("sanbox", ["model", "sandbox"]) == "sandbox"
    assert nearest("zzz", ["model", "sandbox"]) is None
