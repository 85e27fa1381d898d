"""What contract tests share."""

import pytest

pytest.register_assert_rewrite("crewlet.testing.contracts")
