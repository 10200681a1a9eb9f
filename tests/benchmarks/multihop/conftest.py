"""What the tests of this benchmark start from."""

import dataclasses

import pytest

from benchmarks.multihop import variant as multihop_variant
from benchmarks.multihop.variant import QUICK
from tiny_multihop import write_project


@pytest.fixture
def small_project(tmp_path, monkeypatch, jobs_in_this_process):
    """A folder with the page and recipes of a second; jobs are done in this process, for speed."""
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    monkeypatch.setattr(multihop_variant, "QUICK", dataclasses.replace(QUICK, questions=3))
    return tmp_path
