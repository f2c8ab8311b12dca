"""The scripted model as a web server, without Codex."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from helmsman.testing import (
    ScriptedModel,
    cut,
    fail,
    hang,
    incomplete,
    plan,
    rate_limit,
    response_failed,
    say,
    search,
    think,
    usage,
)

pytestmark = pytest.mark.anyio


async def send(model: ScriptedModel, prompt: str, *, path: str = "/responses", thread: str = "T1") -> ByteStream:
    """A connection on which a request has been sent."""
    host, port = model.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    stream = await anyio.connect_tcp(host, int(port))
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}
    body = json.dumps({"input": [message]})
    head = f"POST /v1{path} HTTP/1.1\r\nhost: x\r\nthread-id: {thread}\r\nconnection: close\r\n"
    await stream.send(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    return stream


async def read_all(stream: ByteStream) -> str:
    text = b""
    async with stream:
        try:
            while True:
                text += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return text.decode()


async def ask(model: ScriptedModel, prompt: str, **options: Any) -> str:
    with anyio.fail_after(10):
        return await read_all(await send(model, prompt, **options))


def events(answer: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line.startswith("data: ")]


async def test_a_message_comes_in_its_chunks(model: ScriptedModel) -> None:
    model.on("Hi", say("Hel", "lo"))

    answer = await ask(model, "Hi")

    assert answer.startswith("HTTP/1.1 200 OK")
    assert [event["type"] for event in events(answer)] == [
        "response.created",
        "response.output_item.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_item.done",
        "response.completed",
    ]
    assert events(answer)[4]["item"]["content"] == [{"type": "output_text", "text": "Hello"}]


async def test_a_response_has_several_items_with_ids_of_their_own(model: ScriptedModel) -> None:
    model.on("Hi", [think("hm", raw="raw"), search("cats"), say("found", phase="final_answer")])

    done = [event for event in events(await ask(model, "Hi")) if event["type"] == "response.output_item.done"]

    assert [event["item"]["type"] for event in done] == ["reasoning", "web_search_call", "message"]
    assert [event["output_index"] for event in done] == [0, 1, 2]
    assert len({event["item"]["id"] for event in done}) == 3
    assert done[2]["item"]["phase"] == "final_answer"


async def test_a_response_tells_its_cost_and_the_rate_limit(model: ScriptedModel) -> None:
    model.on("Hi", [say("a"), usage(7, cached_input_tokens=5, output_tokens=2), rate_limit(42.5, window_minutes=300)])

    answer = await ask(model, "Hi")

    assert events(answer)[-1]["response"]["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 5},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    }
    assert "x-codex-primary-used-percent: 42.5" in answer
    assert "x-codex-primary-window-minutes: 300" in answer
    assert "reset-at" not in answer


async def test_a_gate_holds_the_stream_in_the_middle(model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("Hi", say("Hel", gate, "lo"))

    with anyio.fail_after(10):
        stream = await send(model, "Hi")
        await gate.reached()
        seen = b""
        while b'"delta": "Hel"' not in seen:
            seen += await stream.receive()
        assert b'"delta": "lo"' not in seen
        gate.release()
        assert '"delta": "lo"' in await read_all(stream)


async def test_a_failure_is_an_http_error(model: ScriptedModel) -> None:
    model.on("Hi", fail(429, retry_after=3, error_type="usage_limit_reached"))

    answer = await ask(model, "Hi")

    assert answer.startswith("HTTP/1.1 429 Too Many Requests")
    assert "retry-after: 3" in answer
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["type"] == "usage_limit_reached"


async def test_a_cut_stream_ends_without_an_end(model: ScriptedModel) -> None:
    model.on("Hi", say("part", cut()))

    answer = await ask(model, "Hi")

    assert '"delta": "part"' in answer
    assert "response.output_item.done" not in answer
    assert not answer.endswith("0\r\n\r\n")  # which would be an orderly end


async def test_a_stream_can_end_as_failed_or_incomplete(model: ScriptedModel) -> None:
    model.on("fails", [say("part"), response_failed("context_length_exceeded")])
    model.on("stops", incomplete("max_output_tokens"))

    failed, stopped = events(await ask(model, "fails"))[-1], events(await ask(model, "stops"))[-1]

    assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "context_length_exceeded")
    assert stopped["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_hanging_stream_ends_when_the_other_side_goes(model: ScriptedModel) -> None:
    model.on("Hi", [say("part"), hang()])
    model.on("Next", say("ok"))

    with anyio.fail_after(10):
        stream = await send(model, "Hi")
        await model.wait_for_request()
        await stream.aclose()

    assert '"delta": "ok"' in await ask(model, "Next", thread="T2")


async def test_a_model_closes_at_once_while_two_hundred_streams_are_open() -> None:
    with anyio.fail_after(20):
        async with ScriptedModel() as model:
            gate = model.gate()
            model.on("wait", [say("a", gate, "b")])
            model.on("hang", [hang()])
            streams = [await send(model, "wait", thread=f"W{number}") for number in range(100)]
            streams += [await send(model, "hang", thread=f"H{number}") for number in range(100)]
            await gate.reached(100)
            await model.wait_for_request(200)
        for stream in streams:
            assert "response.completed" not in await read_all(stream)


async def test_many_streams_run_at_once(model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("Hi", say("a", gate, "b"))

    with anyio.fail_after(20):
        streams = [await send(model, "Hi", thread=str(number)) for number in range(200)]
        await gate.reached(200)
        gate.release()
        for stream in streams:
            assert "response.completed" in await read_all(stream)


async def test_requests_are_recorded_and_can_be_waited_for(model: ScriptedModel) -> None:
    model.otherwise(say("ok"))
    found = []

    async def wait() -> None:
        found.append(await model.wait_for_request(lambda request: request.last_user_text == "second"))
        found.append(await model.wait_for_request(1))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await ask(model, "first")
            await ask(model, "second", thread="T2")
    assert [request.thread_id for request in found] == ["T2", "T1"]
    assert [request.last_user_text for request in model.requests] == ["first", "second"]


async def test_a_script_that_is_used_up_is_answered_with_a_clear_error(model: ScriptedModel) -> None:
    model.on("Hi", say("once"))
    await ask(model, "Hi")

    answer = await ask(model, "Hi")

    assert answer.startswith("HTTP/1.1 400 ")
    assert "asked for one more" in answer
    assert len(model.problems) == 1
    model.problems.clear()


async def test_a_tool_that_is_not_on_offer_is_a_problem(model: ScriptedModel) -> None:
    model.on("Hi", plan("one"))

    assert "update_plan" in await ask(model, "Hi")
    assert "update_plan" in model.problems.pop()


async def test_a_predicate_that_fails_is_a_problem(model: ScriptedModel) -> None:
    model.on(lambda request: request.user_texts[7] == "", say("never"))

    assert "cannot be played: IndexError" in await ask(model, "Hi")
    assert "IndexError" in model.problems.pop()


async def test_an_unknown_address_is_a_problem(model: ScriptedModel) -> None:
    assert (await ask(model, "Hi", path="/elsewhere")).startswith("HTTP/1.1 404 ")
    assert model.problems.pop() == "The scripted model has no POST /v1/elsewhere."
