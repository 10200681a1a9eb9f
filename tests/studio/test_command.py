"""`turnwise studio` on the command line: its mistakes are one line each."""

import socket

import pytest

from turnwise.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no-such-folder"], "no such folder"),
        (["--host", "0.0.0.0", "--no-token"], "--no-token"),
        (["--host", "203.0.113.9", "--port", "0"], "cannot listen at 203.0.113.9:0"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(["studio", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_port_in_use_is_named(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["studio", str(tmp_path), "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another by --host and --port" in capsys.readouterr().err
