"""A filter of one's own, by name or as a function, with settings that are checked like ours."""

import textwrap

import pytest
from test_filters import SPREAD

from tiny_runs import tiny_config
from turnwise.errors import ConfigError
from turnwise.settings import parse_settings
from turnwise.stability import FilterSettings, select

OWN = "my_filters:every_other"


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "my_filters.py").write_text(
        textwrap.dedent("""
        def every_other(groups, *, start: int = 0):
            return list(range(start, len(groups), 2))

        def beyond(groups):
            return [len(groups)]

        def twice(groups):
            return [0, 0]

        def forgets(groups):
            pass
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_it_chooses_the_groups():
    assert select(SPREAD, FilterSettings(rule=OWN)).kept == (0, 2, 4)
    selection = select(SPREAD, FilterSettings(rule=OWN, args={"start": 1}), most=2)
    assert (selection.kept, selection.given, selection.zero_variance) == ((1, 3), 6, 2)
    assert selection.metrics()["filter/dropped"] == 4


def test_it_may_be_the_function_itself():
    def last(groups):
        return [len(groups) - 1]

    assert select(SPREAD, FilterSettings(rule=last)).kept == (5,)


@pytest.mark.parametrize("name", ["beyond", "twice", "forgets"])
def test_what_names_no_groups_is_one_line(name):
    with pytest.raises(ConfigError, match=rf"^stability.filter.rule: my_filters:{name} returned .*expected different"):
        select(SPREAD, FilterSettings(rule=f"my_filters:{name}"))


@pytest.mark.parametrize(
    ("filter", "words"),
    [
        ({"rule": "nonzro"}, "'nonzro' is not a filter (did you mean 'nonzero'?)"),
        ({"rule": "my_filters:every_othr"}, "has no 'every_othr' (did you mean 'every_other'?)"),
        ({"rule": OWN, "args": {"strt": 1}}, "has no argument 'strt' (did you mean 'start'?)"),
        ({"rule": OWN, "args": {"start": "late"}}, 'start: expected an integer, got "late"'),
    ],
    ids=str,
)
def test_a_mistake_is_found_before_the_run(filter, words):
    with pytest.raises(ConfigError) as error:
        tiny_config(stability={"filter": filter})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_one_response_per_task_is_for_it_to_judge():
    lonely = {"rollout": {"group_size": 1}, "credit": {"estimator": "reinforce++"}}
    with pytest.raises(ConfigError, match="one response per task"):
        tiny_config(**lonely, stability={"filter": {"rule": "nonzero"}})
    tiny_config(**lonely, stability={"filter": {"rule": OWN}})


@pytest.mark.parametrize(
    ("settings", "unread"),
    [
        ({"rule": "none"}, {"args", "keep", "mass"}),
        ({"rule": "nonzero"}, {"args", "keep", "mass"}),
        ({"rule": "top_fraction"}, {"args", "mass"}),
        ({"rule": "top_p"}, {"args", "keep"}),
        ({"rule": OWN}, {"keep", "mass"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",  # a set's order differs from process to process
)
def test_what_a_rule_never_reads_is_known(settings, unread):
    assert set(parse_settings(FilterSettings, settings, source="the test").unread()) == unread
