"""What a run found out about itself: a line each, and none twice."""

import pytest

from turnwise.errors import RunError
from turnwise.runs.findings import FindingsLog, read_findings


def test_a_resumed_run_writes_again_what_it_finds_again(tmp_path):
    file = tmp_path / "findings.jsonl"
    log = FindingsLog(file)
    assert read_findings(file) == []
    for step in (3, 5, 5, 8):
        log.write({"step": step, "kind": "repetition", "value": float("nan")})
    file.write_text(file.read_text() + '{"step": 9, "ki')
    assert [line["step"] for line in read_findings(file)] == [3, 5, 5, 8], "a torn line is none"
    log.truncate_after(5)
    assert read_findings(file) == [{"step": step, "kind": "repetition", "value": None} for step in (3, 5, 5)]
    log.truncate_after(2)
    assert not file.exists()
    log.truncate_after(2)


def test_a_broken_file_is_one_line(tmp_path):
    (tmp_path / "findings.jsonl").write_text("nonsense\n")
    with pytest.raises(RunError, match="invalid findings") as error:
        read_findings(tmp_path / "findings.jsonl")
    assert "\n" not in str(error.value)
