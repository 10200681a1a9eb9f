"""Every planted fault is named, by that name and no other, within the probe's steps; and nothing without one."""

from pathlib import Path

import pytest

from doctor_faults import FAULTS, examine, examine_recipe_text
from turnwise.doctor.catalogue import CHECKS


@pytest.mark.parametrize("patient", ["signals", "shop"])
def test_nothing_is_found_where_nothing_is_wrong(patients, patient):
    assert examine(patients[patient], None) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_named_and_nothing_else_is(patients, fault):
    assert examine(patients[fault.patient], fault) == [fault.kind]


def test_there_are_faults_enough_and_each_has_its_own_name():
    assert len(FAULTS) >= 16
    assert len({fault.kind for fault in FAULTS}) == len(FAULTS)
    assert {fault.kind for fault in FAULTS} <= {kind for check in CHECKS for kind in check.kinds}


def test_every_kind_of_finding_has_a_test_that_makes_it():
    planted = {fault.kind for fault in FAULTS}
    written = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    kinds = {kind for check in CHECKS for kind in check.kinds}
    assert {kind for kind in kinds if kind not in planted and f'"{kind}"' not in written} == set()


def test_a_setting_that_nothing_reads_is_a_finding_and_not_a_traceback():
    text = "env: bandit\ncredit: {estimator: grpo}\nloss: {value_clip: 0.3}\n"
    examination = examine_recipe_text(text)
    (diagnosis,) = examination.diagnoses
    assert diagnosis.kind == "setting_without_effect"
    assert diagnosis.cause.startswith("loss.value_clip has no effect: never read while credit.estimator is grpo")
    assert not examination.sound
    assert [check for check in examination.checks if examination.status(check) == "ok"] == []
