"""`python -m bench`: every measurement, one after the other. `python -m bench.NAME` runs one."""

from __future__ import annotations

import sys

import anyio

from bench import compat_turn, run_request

MEASUREMENTS = (compat_turn, run_request)

if __name__ == "__main__":
    failed = False
    for measurement in MEASUREMENTS:
        print(f"== {measurement.__name__.partition('.')[2]}: {(measurement.__doc__ or '').partition('.')[0]}.")
        failed |= not anyio.run(measurement.measure)
    sys.exit(int(failed))
