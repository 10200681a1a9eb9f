"""Four worlds, each with something that gradients have been got wrong over.

Invariant: what a world pays and says depends on the state alone, and whatever it rewrites tells the agent all of it;
so a value can be exact for what the agent reads.
"""

from collections.abc import Mapping
from types import MappingProxyType

from turnwise.oracle.world import END, Answer, Move, World


def _over(reward: float, probability: float = 1.0) -> Answer:
    return Answer(probability=probability, reward=reward)


def _search(state: str, move: Move) -> tuple[Answer, ...]:
    neat = 0.1 if move[-1] == END else 0.0
    if state == "found":
        return (_over((1.0 if move[0] == 2 else 0.2) + neat),)
    if state == "lost":
        return (_over((0.6 if move[0] == 1 else 0.0) + neat),)
    if move[0] == END:
        return (_over(0.3),)
    if move[0] == 2:
        return _over(1.0, 0.25), _over(-0.1, 0.75)
    return (
        Answer(probability=0.7, reward=neat, says=(2, 1), state="found"),
        Answer(probability=0.3, reward=neat, says=(1, 1, 0), state="lost"),
    )


def _corridor(state: str, move: Move) -> tuple[Answer, ...]:
    """States are `position:turn`; the third step reaches the goal, and the fourth turn is the world's own last."""
    position, turn = map(int, state.split(":"))
    if move == (END,):
        return (_over(0.15 * position),)
    if turn == 3:
        return (_over(-0.2),)
    if move == (2,):
        return (Answer(reward=-0.05, says=(1,), state=f"{position}:{turn + 1}"),)
    slips = Answer(probability=0.4, says=(1, 0), state=f"{position}:{turn + 1}")
    if position == 2:
        return _over(1.0, 0.6), slips
    return Answer(probability=0.6, reward=0.2, says=(2, 2, 1), state=f"{position + 1}:{turn + 1}"), slips


def _rooms(state: str, move: Move) -> tuple[Answer, ...]:
    """States are `room:turn`, of which agents are told the room; in the third turn the lights go out."""
    room, _, turn = state.partition(":")
    if move == (2,):
        return (_over(1.0, 0.5), _over(0.0, 0.5)) if room == "vault" else (_over(0.1),)
    if turn == "2":
        return (_over(0.0),)
    after = str(int(turn) + 1)
    hall = Answer(says=(0,), state=f"hall:{after}")
    if move == (END,):
        return (hall,)
    vault = Answer(probability=0.8, reward=0.2, says=(2, 0), state=f"vault:{after}")
    return vault, Answer(probability=0.2, says=(0,), state=f"hall:{after}")


def _notebook(state: str, move: Move) -> tuple[Answer, ...]:
    """First a question; then either more text beneath it, or a fresh page that replaces all there was."""
    first, last = move[0], move[-1]
    match state:
        case "question":
            if first == 1:
                return (Answer(reward=0.05 * last, says=(1,), state=":note"),)
            if move == (2, 0):
                rosy = Answer(probability=0.5, reward=0.1, says=(2, 2, 1), state="rosy page", rewrites=True)
                return rosy, Answer(probability=0.5, says=(0, 2, 1), state="dim page", rewrites=True)
            return (_over(0.2 * last),)
        case ":note":
            return (_over(0.8 if first == 2 else 0.3 * last),)
        case "last line":
            return (_over(1.0 if move == (1, 2) else 0.1 * first),)
    if first == 1:
        return (Answer(reward=0.1 * last, says=(2, 1), state="last line", rewrites=True),)
    return (_over(0.9 if state == "rosy page" and first == 2 else 0.0),)


WORLDS: Mapping[str, World] = MappingProxyType(
    {
        world.name: world
        for world in (
            World(
                name="search",
                story="a tool that may find nothing, and an agent that decides whether there is a second turn",
                prompt=(1, 2),
                start="ask",
                answer=_search,
                turn_tokens=2,
            ),
            World(
                name="corridor",
                story="cut off by our limit after two turns while it would have gone on",
                prompt=(2,),
                start="0:0",
                answer=_corridor,
                turn_tokens=1,
                max_turns=2,
            ),
            World(
                name="rooms",
                story="the same room is met again, within an episode and by others of the group",
                prompt=(0, 1),
                start="hall:0",
                answer=_rooms,
                turn_tokens=1,
            ),
            World(
                name="notebook",
                story="rewrites what was said, so that a trajectory fills up to three rows",
                prompt=(1, 2),
                start="question",
                answer=_notebook,
                turn_tokens=2,
            ),
        )
    }
)
"""By name."""
