"""What the package offers can be imported."""

from __future__ import annotations

import pytest

import helmsman


@pytest.mark.parametrize("name", helmsman.__all__)
def test_a_public_name_is_there(name: str) -> None:
    assert getattr(helmsman, name) is not None


def test_a_name_that_is_not_there_is_missed_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = helmsman.nothing
