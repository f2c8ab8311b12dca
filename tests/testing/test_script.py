from __future__ import annotations

import anyio
import pytest

from helmsman.testing import Gate, add, cut, delete, fail, hang, move, patch, plan, run, say, update, usage
from helmsman.testing.script import parts_of


def test_a_patch_is_put_together_from_its_sections() -> None:
    made = patch(add("new.txt", "one\ntwo\n"), update("a.txt", "old", "new"), delete("b.txt"), move("c", "d", "x"))

    assert made.text == (
        "*** Begin Patch\n"
        "*** Add File: new.txt\n+one\n+two\n"
        "*** Update File: a.txt\n@@\n-old\n+new\n"
        "*** Delete File: b.txt\n"
        "*** Update File: c\n*** Move to: d\n@@\n x\n"
        "*** End Patch\n"
    )


def test_an_update_can_rename_the_file_as_well() -> None:
    assert update("a", "old", "new", move_to="b") == "*** Update File: a\n*** Move to: b\n@@\n-old\n+new\n"


def test_the_whole_text_of_a_patch_is_taken_as_it_is() -> None:
    text = "*** Begin Patch\n*** Delete File: a\n*** End Patch\n"

    assert patch(text).text == text


def test_a_plan_takes_steps_with_and_without_status() -> None:
    assert [step.status for step in plan(("one", "completed"), "two").steps] == ["completed", "pending"]


def test_a_failure_carries_its_error_and_its_headers() -> None:
    made = fail(429, retry_after=7, error_type="usage_limit_reached", resets_at=12)

    assert made.headers == {"retry-after": "7"}
    assert made.error == {"message": "The script says so.", "type": "usage_limit_reached", "resets_at": 12}


def test_a_step_is_one_part_or_a_list_of_parts() -> None:
    assert parts_of(say("a")) == (say("a"),)
    assert parts_of([say("a"), run("ls"), usage(1)]) == (say("a"), run("ls"), usage(1))


def test_an_invalid_part_is_refused() -> None:
    with pytest.raises(TypeError, match="not part of a script"):
        parts_of(["just text"])  # type: ignore[list-item]


def test_an_http_error_stands_alone() -> None:
    with pytest.raises(ValueError, match="alone"):
        parts_of([say("a"), fail(500)])


def test_a_script_has_nothing_after_its_ending() -> None:
    with pytest.raises(ValueError, match="last"):
        parts_of([cut(), say("a")])
    with pytest.raises(ValueError, match="last"):
        parts_of([hang(), cut()])


@pytest.mark.anyio
async def test_a_gate_holds_streams_until_it_is_released_and_then_lets_everyone_through() -> None:
    gate, passed = Gate(), []

    async def stream(number: int) -> None:
        await gate.pass_through()
        passed.append(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream, 1)
            await gate.reached()
            tasks.start_soon(stream, 2)
            await gate.reached(2)
            assert passed == []
            gate.release()
        await gate.pass_through()
        await gate.reached(3)
    assert sorted(passed) == [1, 2]
