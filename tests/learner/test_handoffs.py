"""The learner's schedules and its distance from the reference, by hand; tests/mutants plants the bugs they catch."""

from handoff_proofs import prove_kl_to_reference, prove_schedules


def test_schedules_go_by_updates_from_their_first_rate():
    prove_schedules()


def test_the_distance_from_the_reference_is_that_of_the_policys_own_tokens():
    prove_kl_to_reference()
