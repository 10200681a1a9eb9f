"""A run with all that the studio shows, small enough to write in a moment, and a studio that serves it over HTTP.

A token is a byte; the chat template is ChatML. What a model wrote here would be a script, if anything ran it.
"""

import http.client
import itertools
import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from turnwise.runs import MetricsLog, RunDirectory, write_trajectories
from turnwise.runs.findings import FindingsLog
from turnwise.studio.server import Studio
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Oslo"}}\n</tool_call>'
RULES = "P: you. G: goal, pays 1. O: hole, ends it. _: ice."
SYSTEM = f"Answer. Look things up.\nsearch(query): Searches the encyclopedia\n{RULES}"
BOARD = "_ P _\n_ O G"
CONFIG = """\
env: {name: encyclopedia, args: {hops: [2]}}
steps: %d
seed: %d
credit: {estimator: grpo}
learner: {optimizer: {lr: %g}}
"""


def make_tokenizer():
    """A token for every byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


_TOKENIZER = make_tokenizer()


def encode(text):
    return tuple(_TOKENIZER.encode(text).ids)


def decode(ids):
    return _TOKENIZER.decode(list(ids), skip_special_tokens=False)


def said(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def turn(read, wrote, *, version=0, opens=False, rewards=None):
    action = encode(f"{wrote}<|im_end|>")
    return Turn(
        context_ids=encode(read + "<|im_start|>assistant\n"),
        action_ids=action,
        logprobs=tuple(-(place % 7) / 8 - 0.125 for place in range(len(action))),
        rewards=rewards or {},
        version=version,
        opens_row=opens,
    )


def episode(task, answer, *, reward=1.0, version=0, rewrites=False, stop=StopReason.DONE, errors=0.0, failure=""):
    """Two turns: a search, and an answer, which is paid."""
    opening = said("system", SYSTEM) + said("user", f"What is {task}?\n{BOARD}")
    found = said("tool", f"Found {EVIL}")
    turns = (
        turn(opening, f"<think>Look it up.</think>{CALL}", version=version, opens=True, rewards={"found": 0.25}),
        turn(
            opening if rewrites else found, answer, version=version + 1, opens=rewrites, rewards={"exact_match": reward}
        ),
    )
    metrics = {"success": float(reward > 0), "tool_errors": errors}
    data = {"question": f"What is {task}?", "answers": ["Oslo"]}
    return Trajectory(
        task=Task(id=task, data=data),
        turns=turns,
        stop=stop,
        metrics=metrics,
        failure=failure,
        seconds=0.5,
        episode_seed=2**61 + 7,
    )


def groups_of(step):
    """Two groups of three: one that teaches, one with equal rewards, of which one member failed."""
    taught = [
        episode("task-a", word, reward=paid, version=step)
        for word, paid in (("Oslo", 1.0), ("Ostend", 0.0), ("Bergen", 0.0))
    ]
    dull = [
        episode("task-b", "Rome", reward=0.0, version=step, rewrites=True, stop=StopReason.MAX_TURNS),
        episode("task-b", "Rome again and again", reward=0.0, version=step, errors=2.0),
        episode(
            "task-b",
            "",
            reward=0.0,
            stop=StopReason.ENV_FAILED,
            failure="task 'task-b': step: KeyError: 'gold' (own.py:4)",
        ),
    ]
    return [Group(task=some[0].task, trajectories=tuple(some)) for some in (taught, dull)]


def per_token(groups):
    """Numbers that differ from token to token; the failed member has none."""
    columns = {"advantages": {}, "learner_logprobs": {}, "entropies": {}}
    for place, group in enumerate(groups):
        for member, one in enumerate(group.trajectories):
            if one.stop is not StopReason.ENV_FAILED:
                count = one.action_tokens
                columns["advantages"][place, member] = [(-1) ** member * (at + 1) / 64 for at in range(count)]
                columns["learner_logprobs"][place, member] = [-(at % 7) / 8 - 0.125 - 2.0**-at for at in range(count)]
                columns["entropies"][place, member] = [at / 32 for at in range(count)]
    return columns


def write_step(run, step, log=None):
    """What a training step writes."""
    groups = groups_of(step)
    write_trajectories(run.trajectory_file("train", step), step, groups, per_token(groups), decode)
    metrics = {
        "rollout/reward": step / 10,
        "rollout/success": step / 12,
        "rollout/episodes": 6.0,
        "rollout/failed": 1.0,
    }
    metrics |= {"rollout/stop_max_turns": 0.2, "env/tool_errors": 0.4, "env/breaks": 0.5, "env/breaks_rewritten": 0.5}
    metrics |= {
        "policy/entropy": 2.0 - step / 10,
        "ledger/decode_seconds": 1.5,
        "ledger/update_seconds": 0.5,
        "ledger/wall_seconds": 2.0,
    }
    (log or MetricsLog(run.metrics, clock=lambda: 1.8e9 + step)).write(step, "train", metrics)


def make_studio_run(folder, *, steps=3, seed=0, lr=3e-4, ended=True):
    """A run of so many steps, with evaluations, findings, a decision and a tokenizer."""
    run = RunDirectory.create(folder, CONFIG % (steps, seed, lr))
    model = run.checkpoints / "step-000002" / "model"
    model.mkdir(parents=True)
    make_tokenizer().save(str(model / "tokenizer.json"))
    times = itertools.count(1_800_000_000)
    log = MetricsLog(run.metrics, clock=lambda: float(next(times)))
    log.write(1, "sft", {"sft/loss": 4.0, "ledger/sft_seconds": 3.0, "ledger/wall_seconds": 3.0})
    for step in range(steps + 1):
        if step:
            write_step(run, step, log)
        if step % 2 == 0:
            scores = {
                "evaluate/success": step / 10,
                "evaluate/success_low": step / 20,
                "evaluate/success_high": step / 8 + 0.1,
            }
            log.write(step, "evaluate", scores)
            held_out = [
                Group(
                    task=Task(id="task-a", data={"question": "What is task-a?", "answers": ["Oslo"]}),
                    trajectories=(episode("task-a", f"Answer at {step}", version=step),),
                )
            ]
            write_trajectories(run.trajectory_file("evaluate", step), step, held_out, None, decode)
    if ended:
        log.write(steps, "end", {})
    findings = FindingsLog(run.path / "findings.jsonl")
    findings.write(
        {"step": 2, "kind": "echo_trap", "severity": "alarm", "sentence": "Echo Trap: rewards no longer vary"}
    )
    findings.write(
        {"step": 2, "kind": "enable_starpo_s", "rollback_to": 1, "sentence": "rolled back to step 1; StarPO-S enabled"}
    )
    return run


class Client:
    """Asks a studio as a browser that is signed in would: `client.get("/api/runs")`."""

    def __init__(self, studio):
        self.studio = studio
        self.cookie = f"turnwise-studio-{studio.port}={studio.token}"

    def ask(self, path, method="GET", body=None, **headers):
        """Status, headers and body of an answer; a header given as None is not sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.studio.port, timeout=30)
        sent = {"Cookie": self.cookie, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.putrequest(method, path, skip_host="Host" in sent, skip_accept_encoding=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        found = response.status, response.headers, response.read()
        connection.close()
        return found

    def get(self, path):
        status, _, body = self.ask(path)
        assert status == 200, (status, body[:400])
        return json.loads(body)

    def run_id(self, name):
        return next(run["id"] for run in self.get("/api/runs")["runs"] if run["name"] == name)


@contextmanager
def serving(*folders, token="a-token"):
    """A studio of these folders in a thread."""
    studio = Studio([Path(folder) for folder in folders], token=token)
    thread = threading.Thread(target=studio.run, daemon=True)
    thread.start()
    while not studio.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield Client(studio)
    finally:
        studio.stop()
        thread.join(timeout=10)
