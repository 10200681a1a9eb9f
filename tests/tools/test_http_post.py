"""The one client: what is an address, what may pass, what is quoted."""

import pytest

from turnwise.tools.http import Reply, read_address


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:y", "http://x:0", "http://[x"])
def test_what_is_no_address(url):
    assert read_address(url) is None


def test_an_address_in_parts():
    parts = read_address("https://api.example.com:8443/v1/x?a=b")
    assert parts is not None
    assert (parts.hostname, parts.port, parts.path, parts.query) == ("api.example.com", 8443, "/v1/x", "a=b")


def test_what_may_pass():
    passing = [
        status
        for status in (200, 400, 401, 404, 408, 422, 425, 429, 500, 503)
        if Reply(status=status, body=b"").may_pass
    ]
    assert passing == [408, 425, 429, 500, 503]


def test_a_body_is_quoted_in_one_short_line():
    assert Reply(status=500, body=b" oh\n\n no ").quote() == ": oh no"
    assert Reply(status=500, body=b" \n").quote() == ""
    assert len(Reply(status=500, body="ø\n".encode() * 1000).quote()) == 122
