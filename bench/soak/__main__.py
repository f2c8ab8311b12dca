"""`python -m bench.soak`: real servers, library processes and Codex on a scripted model, with faults at random.

Prints its seed first: the same seed makes the same choices (though not the same timing). Ends with 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from pathlib import Path

import anyio

from bench.soak.duties import DutiesOutcome, soak_duties
from bench.soak.report import in_words, is_good, write
from bench.soak.run import Outcome, soak, soak_hubs

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults happen (default: %(default)g)")
    parser.add_argument("--kills", type=int, default=0, help="kill so many hubs, and nothing else, before that")
    parser.add_argument("--due", type=int, default=0, help="kill so many hubs around what they do by themselves, too")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="to make the same choices again")
    parser.add_argument("--report", type=Path, help="write the report there, in Markdown")
    parser.add_argument("--folder", type=Path, help="an empty folder to work in and to leave with all logs")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    logging.getLogger("asyncio").setLevel(
        logging.ERROR
    )  # it warns of every Codex that is killed while the model speaks
    with tempfile.TemporaryDirectory(prefix="helmsman-soak-", ignore_cleanup_errors=True) as temporary:
        folder = options.folder or Path(temporary)
        outcomes: list[Outcome | DutiesOutcome] = []
        if options.kills:
            outcomes.append(anyio.run(soak_hubs, options.kills, options.seed, folder.resolve() / "hubs"))
            print(in_words(outcomes[-1]), flush=True)
        if options.due:
            outcomes.append(anyio.run(soak_duties, options.due, options.seed, folder.resolve() / "duties"))
            print(in_words(outcomes[-1]), flush=True)
        if options.minutes:
            outcomes.append(anyio.run(soak, options.minutes * 60, options.seed, folder.resolve() / "all"))
            print(in_words(outcomes[-1]), flush=True)
    if options.report is not None:
        write(outcomes, options.report)
    sys.exit(0 if all(map(is_good, outcomes)) else 1)
