"""Rooms for the ALFWorld engine: receptacles, objects and a goal, drawn from a seed, as a PDDL problem.

Invariant: what fits where, what opens and what can be heated are ALFRED's own tables. The goal is open at the start and
can be reached: the object lies where it must not stay, and the appliance that it needs is in the room.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from alfworld.gen import constants, goal_library

GOALS: Final = {
    "put": "pick_and_place_simple",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "two": "pick_two_obj_and_place",
    "light": "look_at_obj_in_light",
}
"""Our short names for ALFRED's kinds of task."""
_ROOMS: Final = {
    "kitchen": "Fridge Microwave SinkBasin CounterTop DiningTable Cabinet Drawer StoveBurner GarbageCan CoffeeMachine "
    "Shelf SideTable",
    "living room": "Sofa ArmChair CoffeeTable SideTable Dresser Drawer Cabinet Shelf GarbageCan",
    "bedroom": "Bed Desk Dresser Drawer SideTable Shelf LaundryHamper GarbageCan Safe",
    "bathroom": "SinkBasin Toilet BathtubBasin CounterTop Cabinet Cart HandTowelHolder GarbageCan",
}
_APPLIANCES: Final = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
_ABILITIES: Final = {"clean": "Cleanable", "heat": "Heatable", "cool": "Coolable"}
_SEVERAL: Final = ("Cabinet", "CounterTop", "Drawer", "Shelf", "SideTable", "StoveBurner")
"""Receptacles of which a room may have more than one."""
_LAMP: Final = "DeskLamp"
_LAMP_STANDS: Final = ("Desk", "Dresser", "SideTable", "CoffeeTable")
_NAMED_BY_DOMAIN: Final = ("SinkBasin", "Microwave", "Fridge")
_KNIVES: Final = ("Knife", "ButterKnife")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """`Room(task="put a clean mug in shelf", ...)`; a receptacle or object is its type and its number among these."""

    task: str
    goal: str
    receptacles: tuple[tuple[str, int], ...]
    objects: tuple[tuple[str, int, int], ...]
    """Type, number, and the place of its receptacle in `receptacles`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What an episode shall be about."""

    kind: str
    item: str
    target: str
    sources: tuple[str, ...]
    room: tuple[str, ...]


def draw_room(seed: int, kinds: Sequence[str], receptacles: int, objects: int) -> Room:
    """The room of a seed, with so many receptacles and objects, or as many more as its goal needs."""
    rng = random.Random(seed)
    wish = _draw_wish(rng, rng.choice(list(kinds)))
    needed = [_APPLIANCES[wish.kind]] if wish.kind in _APPLIANCES else []
    chosen = list(dict.fromkeys([wish.target, *needed, rng.choice(wish.sources)]))
    while len(chosen) < receptacles:
        chosen.append(rng.choice([one for one in wish.room if one not in chosen or one in _SEVERAL]))
    rng.shuffle(chosen)
    items = [wish.item] * (2 if wish.kind == "two" else 1)
    placed = [(item, rng.choice(_places(chosen, item, without=wish.target))) for item in items]
    if wish.kind == "light":
        placed.append((_LAMP, chosen.index(wish.target)))
    while len(placed) < objects:
        other = rng.choice(sorted({item for kind in chosen for item in _fitting(kind)} - {wish.item}))
        placed.append((other, rng.choice(_places(chosen, other))))
    goal = goal_library.gdict[GOALS[wish.kind]]
    words = {"obj": wish.item, "recep": wish.target, "toggle": _LAMP}
    numbered = _number([item for item, _ in placed])
    return Room(
        task=rng.choice(goal["templates"]).format(**words).lower(),
        goal=goal["pddl"].format(**words).replace("#", "-"),
        receptacles=_number(chosen),
        objects=tuple((*name, at) for name, (_, at) in zip(numbered, placed, strict=True)),
    )


def _draw_wish(rng: random.Random, kind: str) -> _Wish:
    """An object, where it goes and where it may come from: drawn until they fit each other."""
    while True:
        name = "kitchen" if kind in _APPLIANCES else rng.choice(list(_ROOMS))
        room = tuple(_ROOMS[name].split())
        target = rng.choice([one for one in room if kind != "light" or one in _LAMP_STANDS] or [""])
        items = _fitting(target) if kind != "light" else {item for one in room for item in _fitting(one)}
        if kind in _ABILITIES:
            items &= constants.VAL_ACTION_OBJECTS[_ABILITIES[kind]]
        if not target or not items or target == _APPLIANCES.get(kind):
            continue
        item = rng.choice(sorted(items))
        sources = tuple(one for one in room if one != target and item in _fitting(one))
        if sources:
            return _Wish(kind=kind, item=item, target=target, sources=sources, room=room)


def _fitting(receptacle: str) -> set[str]:
    """The objects that a receptacle can hold, whole and small enough not to hold others."""
    found = constants.VAL_RECEPTACLE_OBJECTS.get(receptacle, set())
    return {item for item in found if not item.endswith("Sliced") and item != "Box"}


def _places(chosen: Sequence[str], item: str, without: str = "") -> list[int]:
    return [at for at, kind in enumerate(chosen) if kind != without and item in _fitting(kind)]


def _number(kinds: Sequence[str]) -> tuple[tuple[str, int], ...]:
    return tuple((kind, kinds[: at + 1].count(kind)) for at, kind in enumerate(kinds))


def write_problem(room: Room) -> str:
    """The room as a PDDL problem of ALFRED's domain."""
    receptacles = [_receptacle_id(*one) for one in room.receptacles]
    objects = [f"{kind}_bar_{number}" for kind, number, _ in room.objects]
    rtypes = sorted({kind for kind, _ in room.receptacles} | set(_NAMED_BY_DOMAIN))
    otypes = sorted({kind for kind, _, _ in room.objects} | set(_KNIVES))
    declared = [
        "agent1 - agent",
        "loc_start - location",
        *(f"loc_{at} - location" for at in range(len(receptacles))),
        *(f"{one} - receptacle" for one in receptacles),
        *(f"{one} - object" for one in objects),
        *(f"{kind}Type - rtype" for kind in rtypes),
        *(f"{kind}Type - otype" for kind in otypes),
    ]
    facts = [
        *(f"(canContain {kind}Type {item}Type)" for kind in rtypes for item in otypes if item in _fitting(kind)),
        *_facts(room, receptacles, objects),
    ]
    return "\n".join(
        (
            "(define (problem room) (:domain alfred)",
            f"(:objects {' '.join(declared)})",
            f"(:init {' '.join(facts)})",
            room.goal,
        )
    )


def _facts(room: Room, receptacles: Sequence[str], objects: Sequence[str]) -> Iterator[str]:
    yield from ("(= (total-cost) 0)", "(atLocation agent1 loc_start)")
    for at, ((kind, _), name) in enumerate(zip(room.receptacles, receptacles, strict=True)):
        yield from (f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} loc_{at})")
        if kind in constants.OPENABLE_CLASS_LIST:
            yield f"(openable {name})"
    for (kind, _, at), name in zip(room.objects, objects, strict=True):
        yield from (f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {receptacles[at]})")
        yield from (f"(wasInReceptacle {name} {receptacles[at]})", f"(objectAtLocation {name} loc_{at})")
        if kind != _LAMP:
            yield f"(pickupable {name})"
        for ability, members in constants.VAL_ACTION_OBJECTS.items():
            if kind in members:
                yield f"({ability.lower()} {name})"


def _receptacle_id(kind: str, number: int) -> str:
    """As ALFRED names them, so that ALFWorld reads the name back: a basin is part of a sink."""
    if kind.endswith("Basin"):
        return f"{kind.removesuffix('Basin')}_bar_{number}_bar_{kind}"
    return f"{kind}_bar_{number}"
