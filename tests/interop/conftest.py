"""No gateway outlives the tests of a module."""

import pytest

from turnwise.gateway.program import stop_shared_gateway


@pytest.fixture(autouse=True, scope="module")
def _no_gateway_is_left():
    yield
    stop_shared_gateway()
