"""Every bug that is planted is found: the proof holds for our code and fails for the mutant."""

import pytest

import planted_bugs
import planted_rollout_bugs

MUTANTS = (*planted_bugs.MUTANTS, *planted_rollout_bugs.MUTANTS)
BY_NAME = {**planted_bugs.BY_NAME, **planted_rollout_bugs.BY_NAME}


@pytest.mark.parametrize("name", BY_NAME)
def test_the_proofs_catch(name, monkeypatch):
    mutant = BY_NAME[name]
    mutant.check()
    mutant.plant(monkeypatch)
    with pytest.raises(AssertionError):
        mutant.check()


def test_no_two_mutants_share_a_name():
    assert len(BY_NAME) == len(MUTANTS) >= 12
