"""Run the tests in tests/fuzz repeatedly, each round with new random numbers, until the time is up.

A round that fails is the last: it prints the smallest failing example, which becomes a test. Each round prints its seed, so
that `HELMSMAN_FUZZ_FACTOR=5 pytest tests/fuzz --hypothesis-seed=SEED` finds it again.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FACTOR = 5
"""Factor for the number of examples, compared with an ordinary run: starting pytest costs more than the examples."""
LONGEST_ROUND = 900


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=120, help="how long (default: %(default)g); a round is finished"
    )
    end = time.monotonic() + parser.parse_args().seconds
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        rounds += 1
        seed = random.randrange(1 << 31)
        print(f"round {rounds}, seed {seed}", flush=True)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "tests/fuzz",
                f"--hypothesis-seed={seed}",
                f"--timeout={LONGEST_ROUND}",
            ],
            cwd=ROOT,
            env={**os.environ, "HELMSMAN_FUZZ_FACTOR": str(FACTOR)},
            timeout=LONGEST_ROUND * 4,
            check=False,
        )
        if done.returncode != 0:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
