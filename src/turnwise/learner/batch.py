"""From groups to token rows that a model can read, with the maps back to row, trajectory and group.

Invariant: tokens lie end to end in order of time, trajectory after trajectory, so every per-token quantity is one
flat tensor [L] and a mask is all it takes to choose tokens. The token at position t is predicted from t − 1.
Shapes: L tokens of all rows, R rows, T trajectories, N credited tokens.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from turnwise.compute.layout import MicroBatch, MicroBatches, Rows, pack, pad
from turnwise.credit.base import TokenBatch
from turnwise.learner.parallel import Parallel
from turnwise.losses.aggregate import token_weights
from turnwise.losses.settings import Aggregation
from turnwise.types import Group, StopReason, Trajectory, lay_out

PerTurn: TypeAlias = tuple[tuple[tuple[float, ...], ...], ...]
"""For each trajectory, for each of its turns, one number per action token."""


_SHORT_PROMPT = 32
"""A shorter prompt is read again for every row: sharing it would save less than it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All rows of all trajectories that can be trained on."""

    ids: torch.Tensor
    """[L] long."""
    action: torch.Tensor
    """[L] bool: the agent sampled it."""
    credited: torch.Tensor
    """[L] bool: estimators see it."""
    trained: torch.Tensor
    """[L] bool: losses see it."""
    tail: torch.Tensor
    """[L] bool: it follows the trajectory's last action; only a critic reads it."""
    logprob: torch.Tensor
    """[L] float: the sampler's, on action tokens; zero elsewhere."""
    reward: torch.Tensor
    """[L] double: a turn's reward, on its last action token; so a tool's answer at the end loses nothing."""
    turn: torch.Tensor
    """[L] long: the turn that read or sampled it."""
    state: torch.Tensor | None
    """[L] long: the state that turn was played in, as `TokenBatch.state` numbers them; None when none has a key."""
    row: torch.Tensor
    """[L] long."""
    trajectory: torch.Tensor
    """[L] long."""
    row_start: tuple[int, ...]
    """R + 1 offsets into the flat tensors."""
    row_prompt: tuple[int, ...]
    """R lengths of what each row opens with, before its first action."""
    row_trajectory: torch.Tensor
    """[R] long."""
    group: torch.Tensor
    """[T] long: which of the given groups."""
    truncated: torch.Tensor
    """[T] bool."""
    place: tuple[int, ...]
    """T places of the trajectories kept, in the order they were given."""
    oldest_version: int
    """Of the weights that sampled these trajectories, the oldest."""
    given: int
    """How many trajectories were given."""
    failed: int
    """How many of them were left out because environment or tool infrastructure broke."""
    empty: int
    """How many of them were left out because the agent never made a move."""

    @classmethod
    def of(
        cls, groups: Sequence[Group], *, advantage_mask: bool = True, action_mask: bool = True, tails: bool = True
    ) -> "Batch":
        """Lays groups out as rows; the masks choose the credited and the trained tokens.

        On, a mask keeps action tokens alone; off, all tokens from the row's first action to the trajectory's last.
        Without a critic, which alone reads them, tails are better left out.
        """
        given = [(number, trajectory) for number, group in enumerate(groups) for trajectory in group.trajectories]
        kept = [(place, number, t) for place, (number, t) in enumerate(given) if _trainable(t)]
        rows = lay_out([t for _, _, t in kept], tail=tails)
        assert all(rows.prompts), "a row opens with a prompt: its first action needs a state"
        row = torch.from_numpy(np.repeat(np.arange(len(rows.lengths)), rows.lengths))  # [L]
        row_trajectory = torch.tensor(rows.owner, dtype=torch.long)  # [R]
        trajectory = row_trajectory[row]  # [L]
        action, tail = torch.from_numpy(rows.every.action_mask), torch.from_numpy(rows.every.tail_mask)  # [L]
        played = ~(tail | torch.from_numpy(rows.every.prompt_mask))  # [L]
        turn = torch.from_numpy(rows.every.turn_index)  # [L]
        failed = sum(t.stop is StopReason.ENV_FAILED for _, t in given)
        return cls(
            ids=torch.from_numpy(rows.every.ids),
            action=action,
            credited=action if advantage_mask else played,
            trained=action if action_mask else played,
            tail=tail,
            logprob=torch.from_numpy(rows.every.logprobs),
            reward=torch.from_numpy(rows.every.rewards),
            turn=turn,
            state=_states([(number, t) for _, number, t in kept], trajectory, turn),
            row=row,
            trajectory=trajectory,
            row_start=tuple(itertools.accumulate(rows.lengths, initial=0)),
            row_prompt=tuple(rows.prompts),
            row_trajectory=row_trajectory,
            group=torch.tensor([number for _, number, _ in kept], dtype=torch.long),
            truncated=torch.tensor([t.stop.truncated for _, _, t in kept], dtype=torch.bool),
            place=tuple(place for place, _, _ in kept),
            oldest_version=min((turn.version for _, _, t in kept for turn in t.turns), default=0),
            given=len(given),
            failed=failed,
            empty=len(given) - len(kept) - failed,
        )

    @property
    def rows(self) -> int:
        return len(self.row_start) - 1

    def credited_tokens(self, reward: torch.Tensor, state_value: torch.Tensor | None) -> TokenBatch:
        """The credited tokens, with rewards [L] and critic values of the state after each token [L].

        The final value is that of the state after a trajectory's tail. Where no tail was kept, the last token is an
        action, after which no other is chosen, and a critic learns nothing of such states: it would say what it said
        before the turn was paid. There the final value is what leaves nothing unexpected of the last token.
        """
        final_value = None
        if state_value is not None:
            last = torch.bincount(self.trajectory, minlength=len(self.group)).cumsum(0) - 1  # [T]
            expected = value_before_token(state_value)[last] - reward[last]  # [T]
            final_value = torch.where(self.action[last], expected.to(state_value.dtype), state_value[last])  # [T]
        seen = self.credited.nonzero().flatten()  # [N]
        return TokenBatch(
            reward=reward[seen],
            trajectory=self.trajectory[seen],
            turn=self.turn[seen],
            group=self.group,
            truncated=self.truncated,
            value=None if state_value is None else value_before_token(state_value)[seen],
            final_value=final_value,
            state=None if self.state is None else self.state[seen],
        )

    def spread(self, per_credited: torch.Tensor) -> torch.Tensor:
        """Values of credited tokens [N] for every token [L]; an uncredited one takes that of the action it led to.

        But for a tail, which led to none and gets zero, every row ends in an action and every action is credited: so
        the next credited token is in the same row, and for a turn's context it is the turn's first action.
        """
        before = self.credited.cumsum(0) - self.credited.long()  # [L]: credited tokens before this one
        if not self.tail.any():
            return per_credited[before]
        led = (~self.tail).nonzero().flatten()
        spread = per_credited.new_zeros(len(self.ids))  # [L]
        spread[led] = per_credited[before[led]]
        return spread

    def weights(
        self,
        rows: Sequence[int],
        mode: Aggregation,
        *,
        fixed_length: int | None = None,
        among: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[L] float: the weight of each trained token of a mini-batch in its loss; of those in `among` [L] alone."""
        chosen = self.trained if among is None else self.trained & among  # [L]
        token = (chosen & self.in_rows(rows)).nonzero().flatten()
        weights = torch.zeros(len(self.ids))  # [L]
        weights[token] = token_weights(self.trajectory[token], mode, fixed_length=fixed_length)
        return weights

    def in_rows(self, rows: Sequence[int]) -> torch.Tensor:
        """[L] bool: the tokens of these rows."""
        theirs = torch.zeros(self.rows, dtype=torch.bool)  # [R]
        theirs[torch.tensor(rows, dtype=torch.long)] = True
        return theirs[self.row]

    def minibatches(self, count: int, seed: int) -> list[list[int]]:
        """Splits the rows by whole trajectories, shuffled by `seed`, into at most `count` mini-batches."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.group), generator=generator)  # [T]
        parts = torch.tensor_split(order, min(count, len(order)))
        return [torch.isin(self.row_trajectory, part).nonzero().flatten().tolist() for part in parts]

    def share(self, rows: Iterable[int], parallel: Parallel) -> list[int]:
        """The rows that this rank runs, in whole trajectories, with about as many tokens as the other ranks have.

        No row is in two shares, none is in no share, and none is added to make shares even; a share may be empty.
        """
        units = self._by_trajectory(rows)
        return [row for index in parallel.share([self._tokens(unit) for unit in units]) for row in units[index]]

    def micro_batches(
        self,
        token_budget: int,
        *,
        rows: Iterable[int] | None = None,
        select: torch.Tensor | None = None,
        packing: bool = False,
        share_prompts: bool = False,
        whole_trajectories: bool = False,
    ) -> MicroBatches:
        """Puts rows of like length together, longest first, at most `token_budget` tokens (padding counts) at a time.

        `select` [L] are the tokens to score, the trained ones by default. Packed, rows lie end to end, and
        may share the prompts they have in common; else they are padded. A row longer than the budget goes alone; so
        does a trajectory, where those are kept whole, as a loss needs whose tokens share one ratio. The same rows
        always fall into the same micro-batches.
        """
        assert packing or not share_prompts, "only rows that lie end to end can share a prompt"
        rows = list(range(self.rows) if rows is None else rows)
        select = self.trained if select is None else select
        leader = self._leaders(rows) if share_prompts else {row: row for row in rows}
        units = self._by_trajectory(rows) if whole_trajectories else [[row] for row in rows]
        packs: list[list[int]] = []
        size = _PackSize()
        for unit in self._longest_first(units, leader):
            lengths = [(self._length(row), self.row_prompt[row], leader[row]) for row in unit]
            size = size.grown(lengths)
            if not packs or size.count(packing=packing) > token_budget:
                packs.append([])
                size = _PackSize().grown(lengths)
            packs[-1] += unit
        leaders = leader if packing else None
        return MicroBatches(functools.partial(self._lay_out, rows, select, leaders) for rows in packs)

    def shortest_row(self) -> int:
        return min(range(self.rows), key=self._length)

    def _longest_first(self, units: Sequence[list[int]], leader: Mapping[int, int]) -> list[list[int]]:
        """Units of rows by length, where those with one leader stay together and count as long as their longest."""
        family = [leader[unit[0]] for unit in units]
        reach: dict[int, int] = defaultdict(int)
        for unit, head in zip(units, family, strict=True):
            reach[head] = max(reach[head], self._longest(unit))
        ranked = sorted(
            (-reach[head], head, -self._longest(unit), unit) for unit, head in zip(units, family, strict=True)
        )
        return [unit for *_, unit in ranked]

    def _leaders(self, rows: Iterable[int]) -> dict[int, int]:
        """For each row, the first of them with the same prompt, where that is long enough to be worth sharing."""
        ids = self.ids.numpy()  # [L]
        first: dict[bytes, int] = {}
        leader: dict[int, int] = {}
        for row in rows:
            start, length = self.row_start[row], self.row_prompt[row]
            prompt = ids[start : start + length].tobytes()
            leader[row] = first.setdefault(prompt, row) if length >= _SHORT_PROMPT else row
        return leader

    def _by_trajectory(self, rows: Iterable[int]) -> list[list[int]]:
        return [list(own) for _, own in itertools.groupby(sorted(rows), key=self.row_trajectory.tolist().__getitem__)]

    def _length(self, row: int) -> int:
        return self.row_start[row + 1] - self.row_start[row]

    @property
    def longest_row(self) -> int:
        """Tokens of the longest row; 0 where there is none."""
        return self._longest(range(self.rows)) if self.rows else 0

    def _longest(self, rows: Iterable[int]) -> int:
        return max(map(self._length, rows))

    def _tokens(self, rows: Iterable[int]) -> int:
        return sum(map(self._length, rows))

    def _lay_out(self, rows: Sequence[int], select: torch.Tensor, leader: Mapping[int, int] | None) -> MicroBatch:
        """Rows end to end, those with one leader side by side; without leaders, padded."""
        if leader is not None:
            first = {leader[row]: place for place, row in reversed(list(enumerate(rows)))}
            rows = sorted(rows, key=lambda row: first[leader[row]])
        these = Rows(
            start=torch.tensor([self.row_start[row] for row in rows]),
            length=torch.tensor([self._length(row) for row in rows]),
            prompt=torch.tensor([self.row_prompt[row] for row in rows]),
        )
        if leader is None:
            return pad(self.ids, these, select)
        return pack(self.ids, these, select, torch.tensor(_owners(rows, leader)))

    def by_turn(self, per_token: torch.Tensor) -> PerTurn:
        """Values [L] of action tokens, for every trajectory given; one that was left out has no turns."""
        acted = self.action.nonzero().flatten()  # [actions]
        values: list[float] = per_token[acted].tolist()
        turns = self.turn[acted] + self.trajectory[acted] * len(self.ids)  # [actions]
        result: list[list[tuple[float, ...]]] = [[] for _ in range(self.given)]
        keys, counts = torch.unique_consecutive(turns, return_counts=True)
        start = 0
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            result[self.place[key // len(self.ids)]].append(tuple(values[start : start + count]))
            start += count
        return tuple(tuple(turns) for turns in result)

    def metrics(self) -> dict[str, float]:
        return {
            "batch/trajectories": len(self.group),
            "batch/failed_trajectories": self.failed,
            "batch/empty_trajectories": self.empty,
            "batch/rows": self.rows,
            "batch/tokens": len(self.ids),
            "batch/action_tokens": int(self.action.sum()),
        }


def value_before_token(state_value: torch.Tensor) -> torch.Tensor:
    """Critic value [L] of the state before each token, from values of the state after each token [L]."""
    return state_value.roll(1)


def _states(
    kept: Sequence[tuple[int, Trajectory]], trajectory: torch.Tensor, turn: torch.Tensor
) -> torch.Tensor | None:
    """The state [L] each token's turn was played in, a number for every key within its group; −1 without a key."""
    if all(move.state_key is None for _, played in kept for move in played.turns):
        return None
    numbers: dict[tuple[int, str], int] = {}
    known: list[int] = []
    first: list[int] = []
    for group, played in kept:
        first.append(len(known))
        for key in (move.state_key for move in played.turns):
            known.append(-1 if key is None else numbers.setdefault((group, key), len(numbers)))
        known.append(-1)  # of the turn never taken, which a tail would have opened
    return torch.tensor(known)[torch.tensor(first)[trajectory] + turn]  # [L]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PackSize:
    """The size of a micro-batch: rows padded side by side, or packed end to end with equal prompts read once."""

    lengths: tuple[int, ...] = ()
    tokens: int = 0
    """Packed."""
    leaders: frozenset[int] = frozenset()

    def grown(self, lengths: Sequence[tuple[int, int, int]]) -> "_PackSize":
        """With more rows, each a length, the length of its prompt and its leader."""
        tokens, leaders = self.tokens, set(self.leaders)
        for length, prompt, leader in lengths:
            tokens += length - (prompt if leader in leaders else 0)
            leaders.add(leader)
        return _PackSize(
            lengths=(*self.lengths, *(length for length, _, _ in lengths)),
            tokens=tokens,
            leaders=frozenset(leaders),
        )

    def count(self, *, packing: bool) -> int:
        return self.tokens if packing else len(self.lengths) * max(self.lengths)


def _owners(rows: Sequence[int], leader: Mapping[int, int]) -> list[int]:
    """For each row, the place among them of the first that has its leader."""
    first: dict[int, int] = {}
    return [first.setdefault(leader[row], place) for place, row in enumerate(rows)]


def _trainable(trajectory: Trajectory) -> bool:
    return trajectory.stop is not StopReason.ENV_FAILED and bool(trajectory.turns)
