"""Runs as a monitor sees them: curves of health metrics, healthy ones and ones that fall into the trap."""

import math
import random
from dataclasses import replace

from turnwise.stability import HealthMetrics, Monitor, MonitorSettings

WELL = HealthMetrics(
    success=0.3,
    reward=0.3,
    reward_std=0.4,
    zero_variance=0.1,
    token_entropy=1.0,
    action_entropy=0.8,
    gradient=1.0,
    repeated_turns=0.05,
    repeated_ngrams=0.2,
    response_length=30.0,
    invalid_actions=0.1,
    early_stops=0.1,
)


def watch(curve, **settings):
    """Everything a monitor finds along a curve, and the monitor as it is at the end."""
    monitor = Monitor(MonitorSettings(**settings))
    findings = [finding for step, health in enumerate(curve, 1) for finding in monitor.observe(step, health)]
    return findings, monitor


def alarms(curve, **settings):
    return [finding.step for finding in watch(curve, **settings)[0] if finding.severity == "alarm"]


def kinds(curve, **settings):
    return [finding.kind for finding in watch(curve, **settings)[0]]


def steady(steps, **changes):
    return [replace(WELL, **changes)] * steps


def slide(steps, **ends):
    """From WELL to the given values, evenly; a pair says where to begin."""
    curve = []
    for step in range(1, steps + 1):
        share = step / steps
        values = {}
        for name, end in ends.items():
            first, last = end if isinstance(end, tuple) else (getattr(WELL, name), end)
            values[name] = first + share * (last - first)
        curve.append(replace(WELL, **values))
    return curve


def noisy(curve, seed, amount):
    """Each metric multiplied by noise of its own, rates kept between 0 and 1."""
    episode_seed = random.Random(seed)
    shaken = []
    for health in curve:
        values = {
            name: getattr(health, name) * math.exp(episode_seed.gauss(0, amount))
            for name in ("reward_std", "token_entropy", "action_entropy", "response_length")
        }
        values["gradient"] = health.gradient * math.exp(episode_seed.gauss(0, 2 * amount))
        for name in ("success", "repeated_turns", "repeated_ngrams", "invalid_actions", "early_stops"):
            values[name] = min(1.0, max(0.0, getattr(health, name) + episode_seed.gauss(0, amount / 4)))
        shaken.append(replace(health, **values, reward=values["success"]))
    return shaken


def healthy(seed, steps=150):
    """Success rises as it may, and the spread within groups and the entropy follow it down."""
    episode_seed = random.Random(seed)
    first, last = episode_seed.uniform(0.0, 0.3), episode_seed.uniform(0.4, 1.0)
    middle, pace = episode_seed.uniform(20, 100), episode_seed.uniform(5, 25)
    alike, decided = episode_seed.uniform(0.6, 1.0), episode_seed.uniform(0.25, 1.0)
    curve = []
    for step in range(1, steps + 1):
        share = 1 / (1 + math.exp((middle - step) / pace))
        success = first + share * (last - first)
        curve.append(
            replace(
                WELL,
                success=success,
                reward=success,
                reward_std=math.sqrt(success * (1 - success)) * (1 + share * (alike - 1)),
                token_entropy=1 + share * (decided - 1),
                action_entropy=0.8 * (1 + share * (decided - 1)),
                response_length=30 * (1 + share * episode_seed.uniform(-0.3, 0.3)),
            )
        )
    return noisy(curve, seed, episode_seed.uniform(0.05, 0.25))


def echo_trap(seed=0, amount=0.1):
    """As the paper draws it for FrozenLake: deviation falls at 40, success at 90, gradients spike from there on."""
    curve = [
        *slide(40, success=(0.1, 0.25)),
        *slide(25, success=(0.25, 0.3), reward_std=0.1, token_entropy=0.6, repeated_turns=0.3),
        *slide(
            25,
            success=(0.3, 0.3),
            reward_std=(0.1, 0.05),
            token_entropy=(0.6, 0.25),
            repeated_turns=(0.3, 0.6),
        ),
        *slide(
            20,
            success=(0.3, 0.02),
            reward_std=(0.05, 0.02),
            token_entropy=(0.25, 0.15),
            repeated_turns=(0.6, 0.9),
            gradient=(4.0, 10.0),
        ),
    ]
    return noisy(curve, seed, amount)
