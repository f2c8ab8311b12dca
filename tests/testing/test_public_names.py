from __future__ import annotations

import subprocess
import sys

import pytest

import helmsman.testing


@pytest.mark.parametrize("name", helmsman.testing.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(helmsman.testing, name).__doc__


def test_the_kit_can_be_used_without_pytest() -> None:
    program = (
        "import sys, helmsman.testing as kit\n"
        "for name in kit.__all__: getattr(kit, name)\n"
        "sys.exit('pytest' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
