import pytest

pytest.register_assert_rewrite("tests.compat.comparison")
