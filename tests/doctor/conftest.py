"""Recipes' parts and a model, each made once for many tests."""

import pytest

from doctor_faults import Patient, make_patients
from tiny_runs import cold_model


@pytest.fixture(scope="session")
def patients() -> dict[str, Patient]:
    return make_patients()


@pytest.fixture(scope="session")
def cold(tmp_path_factory):
    return cold_model(tmp_path_factory)
