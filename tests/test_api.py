"""Training from Python: one's own tool and environment in a few lines, and the same run as the command line's."""

import pytest
import yaml

import turnwise
from tiny_runs import SIGNALS, SMALLEST, Signals, Silent, records, same_weights, tiny_config, tiny_data, weights
from turnwise import Env, Message, Step, Task, ToolEnv, tool
from turnwise.agents import ExpertAgent
from turnwise.cli.main import main
from turnwise.config import load_config
from turnwise.errors import ConfigError, EnvError
from turnwise.rewards import exact_match_reward
from turnwise.runs import RunDirectory, read_trajectories
from turnwise.types import ToolCall

TINY = {key: value for key, value in tiny_data().items() if key not in ("env", "steps")}
PRICES = {"tea": 3, "jam": 4, "oil": 8}
TASKS = [Task(id=item, data={"question": f"What is {item}?", "answers": [str(PRICES[item])]}) for item in PRICES]


class Shop(ToolEnv):
    """Prices are to be looked up; the shelf is each episode's own."""

    def __init__(self) -> None:
        super().__init__(rewards=[exact_match_reward], process={"asked": 0.1}, max_turns=3)

    def begin(self, task: Task, episode_seed: int) -> None:
        self._item, self._asked = task.id, False

    @tool
    def price(self, item: str) -> turnwise.ToolResult:
        """Looks up what an item costs.

        Args:
            item: Its name.
        """
        self._asked = True
        return turnwise.ToolResult(content=str(PRICES.get(item, "unknown")), rewards={"asked": 1.0})

    def expert(self) -> Message:
        if self._asked:
            return Message(role="assistant", content=f"<answer>{PRICES[self._item]}</answer>")
        call = ToolCall(id="", name="price", arguments=f'{{"item": "{self._item}"}}')
        return Message(role="assistant", content="", tool_calls=(call,))


def test_trains_on_ones_own_environment_and_tasks(tmp_path):
    model = {"small": {**SMALLEST, "positions": 256}}
    run = turnwise.train(
        env=Shop(),
        tasks=TASKS,
        algorithm="rloo",
        steps=2,
        run=tmp_path / "run",
        display=Silent(),
        sft={"demonstrations": 96, "batch": 8, "optimizer": {"lr": 1e-2}},
        **TINY
        | {
            "model": model,
            "rollout": {"groups_per_step": 3, "group_size": 4, "turn_tokens": 24},
            "evaluate": {"tasks": 3},
        },
    )
    demonstrations = read_trajectories(run.trajectory_file("sft", 0))
    assert {group.task.id for group in demonstrations} == set(PRICES)
    assert {tuple(group.trajectories[0].rewards.items()) for group in demonstrations} == {
        (("asked", 0.1), ("exact_match", 1.0))
    }
    sampled = read_trajectories(run.trajectory_file("train", 2))
    assert sorted(group.task.id for group in sampled) == sorted(PRICES)
    assert [len(group.trajectories) for group in sampled] == [4, 4, 4]
    assert [record["step"] for record in records(run, "train")] == [1, 2]


def test_it_is_the_run_that_the_command_line_makes(tmp_path):
    """By the environment's name or with the environment at hand: equal metrics and weights."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tiny_data(credit={"estimator": "gae"}, seed=5)))
    assert main(["train", str(recipe), "--run", str(tmp_path / "cli")]) == 0
    critic = tiny_data(credit={"estimator": "gae"})["learner"]
    options = {"algorithm": "ppo", "steps": 1, "seed": 5, "display": Silent(), **TINY, "learner": critic}
    for run in (
        turnwise.train(env=SIGNALS, run=tmp_path / "name", **options),
        turnwise.train(env=Signals(), run=tmp_path / "object", **options),
    ):
        command_line = RunDirectory.open(tmp_path / "cli")
        assert records(run) == records(command_line)
        assert same_weights(weights(run, 1), weights(command_line, 1))


def test_a_run_of_ones_own_goes_on(tmp_path):
    options = {"env": Signals(), "run": tmp_path / "run", "display": Silent(), **TINY}
    turnwise.train(steps=1, **options)
    run = turnwise.train(steps=2, resume=True, **options)
    assert [record["step"] for record in records(run, "train")] == [1, 2]


class Endless(Env):
    """Leaves it to the rollout's limits to end an episode."""

    async def reset(self, task: Task, episode_seed: int):
        return [Message(role="user", content="And?")]

    async def step(self, message: Message) -> Step:
        return Step(
            messages=(Message(role="user", content="And then?"),), rewards={"words": float(len(message.content))}
        )

    def expert(self) -> Message:
        return Message(role="assistant", content="Then more.")


def test_an_episode_need_not_end_by_itself(tmp_path):
    options = TINY | {"model": {"small": {**SMALLEST, "positions": 256}}, "evaluate": {"tasks": 1}}
    run = turnwise.train(env=Endless(), tasks=TASKS, steps=1, run=tmp_path / "run", display=Silent(), **options)
    assert records(run, "train")[0]["rollout/stop_max_turns"] == 1.0
    assert records(run, "train")[0]["rollout/turns"] == 3.0


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"algorithm": "grop"}, ConfigError, "algorithm: 'grop' is unknown .did you mean 'grpo'.*; there are ppo, "),
        ({"rolout": {"tasks": 2}}, ConfigError, "rolout: unknown key .* did you mean 'rollout'"),
        ({"rollout": {"grop_size": 2}}, ConfigError, "rollout.grop_size: unknown key .* did you mean 'group_size'"),
        ({"env": "encyclopaedia"}, ConfigError, "did you mean 'encyclopedia'"),
        ({"tasks": []}, EnvError, "has no tasks"),
        ({"env": Shop()}, EnvError, "Shop brings no tasks: pass tasks="),
        ({"env": Shop}, ConfigError, "env: .*Shop.* is neither an environment nor"),
        ({"tasks": [{"question": "What is tea?"}]}, EnvError, "tasks: .* is not a Task"),
        (
            {"model": None},
            ConfigError,
            "give a model: model='small' for the built-in one, a folder, or a Hugging Face id",
        ),
        ({"env": None}, ConfigError, "give an environment: env=MyEnv"),
        ({"config": tiny_config()}, ConfigError, "model is part of the config: give one of the two"),
        ({"config": tiny_config(), "model": None, "seed": 3}, ConfigError, "seed is part of the config"),
        (
            {"credit": {"lam": 0.9}},
            ConfigError,
            "credit.lam: never read while credit.estimator is grpo: remove it, or ",
        ),
        (
            {"credit": {"estimator": Shop}},
            ConfigError,
            "credit.estimator: 'Shop' of test_api is not an estimator; write a function of a TokenBatch",
        ),
    ],
)
def test_a_mistake_is_one_line(wrong, error, said, tmp_path):
    with pytest.raises(error, match=said) as raised:
        turnwise.train(**{"env": Signals(), "model": "small", "run": tmp_path / "run", "display": Silent(), **wrong})
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_whole_config_is_the_same_run(tmp_path):
    """And an environment at hand stands in for the one that the config names."""
    config = tiny_config(seed=5)
    runs = [
        turnwise.train(config=config, run=tmp_path / "config", display=Silent()),
        turnwise.train(config=config, env=Signals(), run=tmp_path / "env", display=Silent()),
        turnwise.train(env=SIGNALS, steps=1, seed=5, run=tmp_path / "keywords", display=Silent(), **TINY),
    ]
    assert records(runs[0]) == records(runs[1]) == records(runs[2])


def test_an_algorithm_gives_way_to_a_section(tmp_path):
    """GiGPO's own discount is not the user's mistake when the user takes another estimator."""
    options = {"env": Signals(), "steps": 1, "run": tmp_path / "run", "display": Silent(), **TINY}
    run = turnwise.train(algorithm="gigpo", credit={"estimator": "rloo"}, **options)
    assert load_config(run.config).credit.estimator == "rloo"


def test_evaluates_a_run_a_model_or_a_config(tmp_path):
    options = {"env": Signals(), "display": Silent(), **TINY}
    run = turnwise.train(steps=1, run=tmp_path / "run", **options)
    of_run = turnwise.evaluate(run=run.path, display=Silent())
    last = records(run, "evaluate")[-1]
    assert of_run.metrics()["evaluate/success"] == last["evaluate/success"]
    by_keywords = turnwise.evaluate(**options)
    by_config = turnwise.evaluate(config=tiny_config(), display=Silent())
    assert by_keywords.metrics() == by_config.metrics()
    expert = turnwise.evaluate(agent=ExpertAgent(), env=Shop(), tasks=TASKS, display=Silent())
    assert expert.metrics()["evaluate/success"] == 1.0, "and who plays need not be a model"
    with pytest.raises(ConfigError, match="model is part of the run: give one of the two"):
        turnwise.evaluate(run=run.path, model="small")
    with pytest.raises(ConfigError, match="give a model"):
        turnwise.evaluate(env=Signals())


def test_the_package_names_what_a_user_needs():
    assert {name for name in turnwise.__all__ if not hasattr(turnwise, name)} == set()
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = turnwise.trian
