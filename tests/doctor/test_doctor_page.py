"""docs/doctor.md shows every check and every fault as the code has them."""

from pathlib import Path

from doctor_faults import FAULTS
from turnwise.doctor.catalogue import CHECKS, to_markdown

PAGE = (Path(__file__).parents[2] / "docs/doctor.md").read_text(encoding="utf-8")


def test_the_page_lists_every_check():
    assert to_markdown() in PAGE


def test_the_page_lists_every_fault():
    table = "\n".join(f"| {fault.name} | `{fault.kind}` |" for fault in FAULTS)
    assert table in PAGE, "print it again: python tests/support/doctor_faults.py"


def test_names_and_sentences_are_each_there_once():
    assert len({check.name for check in CHECKS}) == len({check.sentence for check in CHECKS}) == len(CHECKS)
    assert all(check.kinds and check.places for check in CHECKS)
