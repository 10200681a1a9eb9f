"""Every estimator once more, from its formula alone: plain loops over plain numbers, nothing shared with the package.

A trajectory is judged token by token, in the order the agent said them: `credit_by_hand(groups, ...)` gives, for each
trajectory, one number per action token.
"""

from math import fsum, sqrt

from turnwise.oracle.exact import choices, last_context

ALIKE = 1e-9


def credit_by_hand(groups, credit, values=None):
    """`groups` are lists of trajectories; `values` says what a critic says after each context."""
    return FORMULAS[credit.estimator](groups, credit, values)


def mean(numbers):
    return fsum(numbers) / len(numbers)


def sample_std(numbers):
    middle = mean(numbers)
    return sqrt(fsum((x - middle) ** 2 for x in numbers) / (len(numbers) - 1))


def token_rewards(trajectory):
    """What each action token earned: a turn's reward is its last token's."""
    return [r for turn in trajectory.turns for r in [0.0] * (len(turn.action_ids) - 1) + [turn.reward]]


def by_token(trajectory, per_turn):
    return [a for turn, a in zip(trajectory.turns, per_turn, strict=True) for _ in turn.action_ids]


def after_end(trajectory, values):
    return values[last_context(trajectory)] if trajectory.stop.truncated else 0.0


def to_go(rewards, discount):
    """Σ_{l≥k} γ^{l−k} r_l for every k."""
    return [
        sum(discount ** (later - k) * rewards[later] for later in range(k, len(rewards))) for k in range(len(rewards))
    ]


def td_sum(rewards, values, end, gamma, lam):
    """Σ_{l≥t} (γλ)^{l−t} (r_l + γ V_{l+1} − V_l) for every t."""
    following = [*values[1:], end]
    delta = [r + gamma * after - now for r, now, after in zip(rewards, values, following, strict=True)]
    return to_go(delta, gamma * lam)


def normalised(lists):
    """All numbers of all lists against their common mean and sample std; zero where they do not differ."""
    numbers = [x for one in lists for x in one]
    spread = sample_std(numbers) if len(numbers) > 1 else 0.0
    middle = mean(numbers)
    return [[(x - middle) / spread if spread > ALIKE else 0.0 for x in one] for one in lists]


def against(number, peers, divide):
    """A number less the mean of its peers (itself among them), in units of their sample std where asked."""
    if len(peers) < 2:
        return 0.0
    spread = sample_std(peers)
    if spread <= ALIKE:
        return 0.0
    return (number - mean(peers)) / (spread if divide else 1.0)


def shared(groups, judge):
    """One number per trajectory, for all its tokens."""
    result = []
    for group in groups:
        returns = [t.reward for t in group]
        for place, t in enumerate(group):
            result.append([judge(place, returns)] * t.action_tokens)
    return result


def _grpo(groups, credit, _):
    return shared(groups, lambda i, returns: against(returns[i], returns, credit.divide_by_std))


def _dr_grpo(groups, credit, _):
    return shared(groups, lambda i, returns: returns[i] - mean(returns))


def _others(i, returns):
    others = returns[:i] + returns[i + 1 :]
    return returns[i] - mean(others) if others else 0.0


def _rloo(groups, credit, _):
    return shared(groups, _others)


def _reinforce_pp(groups, credit, _):
    return normalised([to_go(token_rewards(t), credit.gamma) for group in groups for t in group])


def _reinforce_pp_baseline(groups, credit, _):
    return normalised(_dr_grpo(groups, credit, _))


def _reward_to_go(groups, credit, _):
    result = []
    for group in groups:
        earned = [to_go([turn.reward for turn in t.turns], credit.turn_gamma) for t in group]
        for i, t in enumerate(group):
            per_turn = []
            for k, own in enumerate(earned[i]):
                others = [theirs[k] for j, theirs in enumerate(earned) if j != i and k < len(theirs)]
                per_turn.append(own - (mean(others) if others else 0.0))
            result.append(by_token(t, per_turn))
    return result


def _gigpo(groups, credit, _):
    result = []
    for group in groups:
        returns = [t.reward for t in group]
        earned = [to_go([turn.reward for turn in t.turns], credit.turn_gamma) for t in group]
        for i, t in enumerate(group):
            per_turn = []
            for k, turn in enumerate(t.turns):
                visits = [
                    earned[j][there]
                    for j, other in enumerate(group)
                    for there, its_turn in enumerate(other.turns)
                    if its_turn.state_key == turn.state_key
                ]
                step = 0.0 if turn.state_key is None else against(earned[i][k], visits, credit.divide_by_std)
                per_turn.append(against(returns[i], returns, credit.divide_by_std) + credit.step_weight * step)
            result.append(by_token(t, per_turn))
    return result


def _each(groups, credit, judge):
    found = [judge(t) for group in groups for t in group]
    return normalised(found) if credit.whiten else found


def _gae(groups, credit, values):
    def judge(t):
        said = [values[context] for context, _ in choices(t)]
        return td_sum(token_rewards(t), said, after_end(t, values), credit.gamma, credit.lam)

    return _each(groups, credit, judge)


def _first_tokens(t):
    first = 0
    for turn in t.turns:
        yield first
        first += len(turn.action_ids)


def _turn_gae(groups, credit, values):
    def judge(t):
        contexts = [context for context, _ in choices(t)]
        said = [values[contexts[first]] for first in _first_tokens(t)]
        rewards = [turn.reward for turn in t.turns]
        return td_sum(rewards, said, after_end(t, values), credit.turn_gamma, credit.turn_lam)

    found = [judge(t) for group in groups for t in group]
    found = normalised(found) if credit.whiten else found
    return [by_token(t, one) for t, one in zip((t for group in groups for t in group), found, strict=True)]


def _bilevel_gae(groups, credit, values):
    def judge(t):
        said = [values[context] for context, _ in choices(t)]
        firsts = list(_first_tokens(t))
        lasts = [first + len(turn.action_ids) - 1 for first, turn in zip(firsts, t.turns, strict=True)]
        rewards = [turn.reward for turn in t.turns]
        end = after_end(t, values)
        of_turn = td_sum(rewards, [said[last] for last in lasts], end, credit.turn_gamma, credit.turn_lam)
        result = []
        for first, last, whole in zip(firsts, lasts, of_turn, strict=True):
            delta = [credit.gamma * said[place + 1] - said[place] for place in range(first, last)]
            result += to_go([*delta, whole], credit.gamma * credit.lam)
        return result

    return _each(groups, credit, judge)


FORMULAS = {
    "gae": _gae,
    "turn-gae": _turn_gae,
    "bilevel-gae": _bilevel_gae,
    "grpo": _grpo,
    "dr-grpo": _dr_grpo,
    "rloo": _rloo,
    "reinforce++": _reinforce_pp,
    "reinforce++-baseline": _reinforce_pp_baseline,
    "reward-to-go": _reward_to_go,
    "gigpo": _gigpo,
}
