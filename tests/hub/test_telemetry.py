"""Telemetry of a real hub, to a receiver of OTLP: spans, metrics, and nothing of what was said."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helmsman.errors import InvalidSetting
from helmsman.hub.telemetry import CONTENT, Telemetry
from helmsman.testing import run, say
from tests.notices.receivers import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from helmsman.testing import ScriptedModel
    from tests.hub.conftest import Place

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there is no hub")]

SECONDS = 60
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def bodies(receiver: Receiver, path: str) -> list[bytes]:
    found = [one for one in receiver.received if one.path == path]
    return [gzip.decompress(one.body) if one.headers.get("content-encoding") == "gzip" else one.body for one in found]


def spans(receiver: Receiver) -> list[Span]:
    requests = [ExportTraceServiceRequest.FromString(body) for body in bodies(receiver, "/v1/traces")]
    return [
        span
        for one in requests
        for resource in one.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def metrics(receiver: Receiver) -> set[str]:
    requests = [ExportMetricsServiceRequest.FromString(body) for body in bodies(receiver, "/v1/metrics")]
    return {
        metric.name
        for one in requests
        for resource in one.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def test_a_call_with_a_traceparent_and_its_turn_are_one_trace(
    place: Place, receiver: Receiver, model: ScriptedModel
) -> None:
    model.on("touch", run("echo top-secret-output"), say("It is done, secretly."))
    env = {
        "HELMSMAN_OTEL": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
    }
    async with Client(replace(place, env={**place.env, **env}).on_stdio()) as client:
        meta: Any = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        started = await client.call_tool(
            "codex_start", {"prompt": "touch nothing, top secret", "workingDirectory": str(place.directory)}, meta=meta
        )
        assert started.structured_content is not None
        with pytest.raises(MCPError, match="top-secret"):
            await client.read_resource("ui://top-secret")
        session_id = started.structured_content["sessionId"]
        with anyio.fail_after(SECONDS):
            while (await client.call_tool("codex_wait", {"sessionId": session_id})).structured_content[
                "status"
            ] == "active":
                pass
            while not {"gen_ai.client.token.usage", "helmsman.turns.running", "helmsman.turns.queued"} <= metrics(
                receiver
            ):
                await anyio.sleep(0.05)
            while not {"invoke_agent codex", "resources/read"} <= {one.name for one in spans(receiver)}:
                await anyio.sleep(0.05)
    made = {one.name: one for one in spans(receiver)}
    turn, tool, call = made["invoke_agent codex"], made["execute_tool shell"], made["tools/call codex_start"]
    told = {one.key: one.value for one in turn.attributes}
    assert turn.trace_id.hex() == tool.trace_id.hex() == call.trace_id.hex() == TRACE
    assert (tool.parent_span_id, turn.parent_span_id) == (turn.span_id, call.span_id)
    assert told["gen_ai.conversation.id"].string_value == session_id
    assert told["gen_ai.provider.name"].string_value == "openai"
    assert told["gen_ai.usage.input_tokens"].int_value > 0
    assert not any(
        b"secret" in body for path in ("/v1/traces", "/v1/metrics", "/v1/logs") for body in bodies(receiver, path)
    )


def test_an_invalid_variable_is_reported_as_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "0")
    with pytest.raises(InvalidSetting, match="OTEL_"):
        Telemetry.by_environment()


_LINES = """
import logging, sys
from helmsman.hub.telemetry import Telemetry

telemetry = Telemetry.by_environment()
try:
    raise ValueError("secret")
except ValueError:
    logging.getLogger("helmsman.hub").exception("session %s cannot be read", "secret-name")
telemetry.close()
"""


def test_lines_of_the_log_are_sent_without_the_values_in_them_unless_they_are_asked_for(receiver: Receiver) -> None:
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    for more, wanted in (({}, "session %s cannot be read"), ({CONTENT: "true"}, "session secret-name cannot be read")):
        receiver.received.clear()
        subprocess.run([sys.executable, "-c", _LINES], env=env | more, check=True, timeout=SECONDS)
        (body,) = bodies(receiver, "/v1/logs")
        (line,) = ExportLogsServiceRequest.FromString(body).resource_logs[0].scope_logs[0].log_records
        assert (line.body.string_value, line.severity_text) == (wanted, "ERROR")
        told = {one.key: one.value.string_value for one in line.attributes}
        assert told == {"code.namespace": "helmsman.hub", "exception.type": "ValueError"}


_CLOSE = """
import os
from time import monotonic
from helmsman.hub.telemetry import Telemetry

telemetry = Telemetry.by_environment()
telemetry._tracer.start_span("turn").end()
began = monotonic()
telemetry.close()
print(monotonic() - began, flush=True)
os._exit(0)
"""


def test_a_receiver_that_does_not_answer_hardly_delays_the_end_of_a_hub() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        done = subprocess.run([sys.executable, "-c", _CLOSE], env=env, capture_output=True, check=True)
    assert float(done.stdout) < 9, "the SDK waits for 10 seconds, once for traces and once for metrics"
