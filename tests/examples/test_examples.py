"""What the README shows is what is in the repository, and it works."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.types import Message, Task, ToolCall

ROOT = Path(__file__).parents[2]


README = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


def test_the_environment_in_the_readme_is_the_example():
    assert (ROOT / "examples" / "guess.py").read_text(encoding="utf-8").endswith(f'"""\n\n{README}')
    environment = README[README.index("class Guess") : README.index("if __name__")]
    assert len([line for line in environment.splitlines() if line.strip()]) <= 22


def test_the_example_in_the_readme_runs_as_printed(tmp_path):
    (tmp_path / "mine.py").write_text(README, encoding="utf-8")
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    records = map(json.loads, (tmp_path / "runs/guess/metrics.jsonl").read_text().splitlines())
    assert [record["step"] for record in records if record["stage"] == "train"] == [1, 2]


def test_the_example_keeps_the_contract_and_pays_for_getting_closer():
    env = make_env(EnvSettings(name=f"{ROOT / 'examples' / 'guess.py'}:Guess"))
    assert asyncio.run(check_env(env, episodes=1)) == []

    async def play(guesses: list[int]) -> list[dict[str, float]]:
        player = env.spawn()
        await player.reset(Task(id="x", seed=3, data={"question": "?"}), 0)
        paid = []
        for n in guesses:
            call = ToolCall(id="a", name="guess", arguments=f'{{"n": {n}}}')
            paid.append((await player.step(Message(role="assistant", content="", tool_calls=(call,)))).rewards)
        paid.append((await player.step(Message(role="assistant", content="There."))).rewards)
        return paid

    # Random(3).randint(1, 10) is 4: 9 is five away, 1 is three away, 8 is no closer, 4 is it.
    assert asyncio.run(play([9, 1, 8])) == [{"closer": 0.1}, {"closer": 0.1}, {"closer": 0.0}, {"found": 0.0}]
    assert asyncio.run(play([4])) == [{"closer": 0.1}, {"found": 1.0}]
