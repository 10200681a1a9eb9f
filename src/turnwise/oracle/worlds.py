"""Four worlds, each with something that implementations have got wrong.

Invariant: rewards and observations depend on the state alone, and a rewritten context reveals all of it; so values can
be exact functions of the context.
"""

from collections.abc import Mapping
from types import MappingProxyType

from turnwise.oracle.world import END, Move, Transition, World


def _over(reward: float, probability: float = 1.0) -> Transition:
    return Transition(probability=probability, reward=reward)


def _search(state: str, move: Move) -> tuple[Transition, ...]:
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
        Transition(probability=0.7, reward=neat, observation=(2, 1), state="found"),
        Transition(probability=0.3, reward=neat, observation=(1, 1, 0), state="lost"),
    )


def _corridor(state: str, move: Move) -> tuple[Transition, ...]:
    """States are `position:turn`; the third step reaches the goal, and the fourth turn is the world's own last."""
    position, turn = map(int, state.split(":"))
    if move == (END,):
        return (_over(0.15 * position),)
    if turn == 3:
        return (_over(-0.2),)
    if move == (2,):
        return (Transition(reward=-0.05, observation=(1,), state=f"{position}:{turn + 1}"),)
    slips = Transition(probability=0.4, observation=(1, 0), state=f"{position}:{turn + 1}")
    if position == 2:
        return _over(1.0, 0.6), slips
    return Transition(probability=0.6, reward=0.2, observation=(2, 2, 1), state=f"{position + 1}:{turn + 1}"), slips


def _rooms(state: str, move: Move) -> tuple[Transition, ...]:
    """States are `room:turn`, of which agents see the room; the third turn is the last."""
    room, _, turn = state.partition(":")
    if move == (2,):
        return (_over(1.0, 0.5), _over(0.0, 0.5)) if room == "vault" else (_over(0.1),)
    if turn == "2":
        return (_over(0.0),)
    after = str(int(turn) + 1)
    hall = Transition(observation=(0,), state=f"hall:{after}")
    if move == (END,):
        return (hall,)
    vault = Transition(probability=0.8, reward=0.2, observation=(2, 0), state=f"vault:{after}")
    return vault, Transition(probability=0.2, observation=(0,), state=f"hall:{after}")


def _notebook(state: str, move: Move) -> tuple[Transition, ...]:
    """First a question; then either more context, or a rewrite that replaces all of it."""
    first, last = move[0], move[-1]
    match state:
        case "question":
            if first == 1:
                return (Transition(reward=0.05 * last, observation=(1,), state=":note"),)
            if move == (2, 0):
                rosy = Transition(probability=0.5, reward=0.1, observation=(2, 2, 1), state="rosy page", rewrites=True)
                return rosy, Transition(probability=0.5, observation=(0, 2, 1), state="dim page", rewrites=True)
            return (_over(0.2 * last),)
        case ":note":
            return (_over(0.8 if first == 2 else 0.3 * last),)
        case "last line":
            return (_over(1.0 if move == (1, 2) else 0.1 * first),)
    if first == 1:
        return (Transition(reward=0.1 * last, observation=(2, 1), state="last line", rewrites=True),)
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
                transition=_search,
                turn_tokens=2,
            ),
            World(
                name="corridor",
                story="cut off by our limit after two turns while it would have gone on",
                prompt=(2,),
                start="0:0",
                transition=_corridor,
                turn_tokens=1,
                max_turns=2,
            ),
            World(
                name="rooms",
                story="the same room is met again, within an episode and by others of the group",
                prompt=(0, 1),
                start="hall:0",
                transition=_rooms,
                turn_tokens=1,
            ),
            World(
                name="notebook",
                story="rewrites the conversation, so that a trajectory fills up to three rows",
                prompt=(1, 2),
                start="question",
                transition=_notebook,
                turn_tokens=2,
            ),
        )
    }
)
"""By name."""
