"""What a crossing is worth."""

from crossing.env import LIGHTS
from turnwise import Episode, Reward, reward


@reward
def safe(episode: Episode) -> float:
    """1 for the word that the light asks for."""
    colour = str(episode.task.data["question"]).removeprefix("The light is ").removesuffix(".")
    return float(episode.answer == LIGHTS[colour])


def brief(*, most: int = 1) -> Reward:
    """A reward with a setting of its own: 1 for an answer of at most so many words."""

    def score(episode: Episode) -> float:
        return float(episode.answer is not None and len(episode.answer.split()) <= most)

    return Reward(name="brief", function=score)
