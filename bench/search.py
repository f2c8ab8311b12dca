"""How long it takes to find words in ten thousand transcripts, once they are indexed, and what the index has taken.

The sessions are made up (`bench.usage`). A search that waits for nothing is what somebody gets who types in the dashboard;
it is told in processor time, as the rest of what happens in that process, for a machine may have other work.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench.figures import Row
from bench.usage import write_sessions
from helmsman import Helmsman, load_settings

SESSIONS = 10_000
SEARCH_SECONDS = 0.2
SEARCHES = ("failing test", "pytest", "00000000-0000-0000-0000-000000001000", "nowhere")
INDEX_SECONDS = 600.0


async def measure(sessions: int = SESSIONS) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="helmsman-bench-") as folder:
        home, state = Path(folder) / "codex", Path(folder) / "state"
        write_sessions(home, sessions)
        env = {
            "CODEX_HOME": str(home),
            "HELMSMAN_STATE_DIR": str(state),
            "HOME": folder,
            "PATH": os.environ["PATH"],
        }
        async with Helmsman(load_settings(env=env), env=env, inside=True) as helm:
            began = time.process_time()
            first = await helm.extras.search.find("failing", patience=INDEX_SECONDS)
            indexed = time.process_time() - began
            assert first.unread is None
            taken: list[float] = []
            for words in SEARCHES:
                await helm.extras.search.find(words, patience=INDEX_SECONDS)  # waits for the index
                began = time.process_time()
                await helm.extras.search.find(words, patience=0)
                taken.append(time.process_time() - began)
        size = sum(file.stat().st_size for file in state.glob("search.sqlite3*"))
    return [
        Row(
            what=f"a search of {sessions:,} transcripts once they are indexed, the slowest, processor time",
            goal=f"under {SEARCH_SECONDS * 1000:g} ms",
            helmsman=f"{max(taken) * 1000:.0f} ms",
            beside=f"indexed in {indexed:.1f} s, {size / 1_000_000:.0f} MB",
            met=max(taken) < SEARCH_SECONDS,
        )
    ]
