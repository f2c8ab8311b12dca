"""Count the tokens that `tools/list` takes of a model's context, compared with the earlier listing.

No process runs and no clock: `tests/listings.py` has the counting.
"""

from __future__ import annotations

from tests.listings import AT_MOST, counts

from bench.figures import Row


async def measure() -> list[Row]:
    return [
        Row(
            what=f"tokens of `tools/list`, toolset {toolset}",
            goal=f"at most {AT_MOST:g} × before",
            helmsman=f"{new:,}",
            beside=f"before {old:,}",
            ratio=new / old,
            met=new / old <= AT_MOST,
        )
        for toolset, (new, old) in counts().items()
    ]


async def quick_ratio() -> float:
    """Return the worst ratio of the toolsets."""
    return max(new / old for new, old in counts().values())
