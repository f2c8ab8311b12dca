"""Format the figures of a fleet for docs/appendix/fleet.md, and extrapolate them to a hundred machines."""

from __future__ import annotations

import math
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from helmsman import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

MACHINES, TALKING, CLIENTS = 100, 400, 100
_ROOM = 1.5
"""Safety factor on requirements."""
_PAGE = Template(Path(__file__).with_name("page.md").read_text(encoding="utf-8"))
_ROWS = (
    ("enqueue to start, four machines", "start", "< 500 ms", 500),
    ("event to client", "event", "< 300 ms", 300),
    ("answer to worker", "answer", "< 100 ms", 100),
    ("cancel begins", "cancel begins", "< 1 s", 1000),
    ("50 of 10,000 queued, listed", "list 50 of 10,000 queued", "< 50 ms", 50),
)


def as_page(found: Mapping[str, Any], load: float) -> str:
    took, rate = found["takeover in leases"], found["enqueue per second, three clients"]
    growth = found["tasks of 0.5 s a second, by machines"]
    costs = {
        "idle_statements": found["idle statements a second per worker"],
        "talk_statements": found["statements a second per talking task"],
        "idle_cpu": found["idle processor ms a second per worker"],
        "talk_cpu": found["processor ms a second per talking task"],
        "talk_kb": found["kB written a second per talking task"],
        "idle_connections": found["connections per idle worker"],
        "busy_connections": found["connections per busy worker"],
        "client_connections": found["connections per client"],
    }
    return _PAGE.substitute(
        costs,
        latencies="\n".join(
            f"| {name} | {one['p50']:.0f} ms | {one['p99']:.0f} ms | {wanted} | {_met(one['p99'] < most)} |"
            for name, one, wanted, most in ((name, found[key], wanted, most) for name, key, wanted, most in _ROWS)
        ),
        lease=f"{took['lease']:g}",
        median=took["median"],
        most=took["most"],
        in_time=_met(took["most"] * took["lease"] <= 1.6 * took["lease"] + 1),
        rate=rate,
        fast=_met(rate >= 300),
        counts=" | ".join(map(str, growth)),
        lines=" | ".join("---" for _ in growth),
        rates=" | ".join(map(str, growth.values())),
        day=f"{datetime.now(UTC):%Y-%m-%d}",
        version=__version__,
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        processors=os.cpu_count(),
        load=f"{load:.1f}",
        **_hundred(costs),
    )


def _met(is_so: bool) -> str:
    return "yes" if is_so else "**no**"


def _hundred(costs: Mapping[str, float]) -> dict[str, Any]:
    """Extrapolate the costs to a large fleet."""
    connections = MACHINES * costs["busy_connections"] + CLIENTS * costs["client_connections"]
    processors = (MACHINES * costs["idle_cpu"] + TALKING * costs["talk_cpu"]) / 1000
    megabytes = TALKING * costs["talk_kb"] / 1024
    return {
        "machines": MACHINES,
        "talking": TALKING,
        "clients": CLIENTS,
        "all_idle": f"{MACHINES * costs['idle_statements']:.0f}",
        "all_talk": f"{TALKING * costs['talk_statements']:.0f}",
        "all_cpu": f"{processors:.1f}",
        "all_mb": f"{megabytes:.1f}",
        "all_connections": f"{connections:.0f}",
        "need_processors": math.ceil(_ROOM * processors),
        "need_connections": math.ceil(_ROOM * connections / 100) * 100,
        "need_mb": math.ceil(_ROOM * megabytes),
    }
