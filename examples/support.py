"""A customer-support agent over sqlite: it finds the order, reads the shop's policy and settles the complaint.

turnwise check examples/support.py:Support
turnwise play examples/support.py:Support
turnwise train examples/support.yaml
python examples/support.py
"""

import json
import random
import sqlite3
import sys
from collections.abc import Sequence

import turnwise
from turnwise import Episode, Message, Task, ToolCall, ToolEnv, ToolResult, reward, tool

FIRST = ["Ada", "Bram", "Cleo", "Dario", "Edith", "Felix", "Greta", "Hugo", "Iris", "Jonas", "Karin", "Leo"]
LAST = ["Alder", "Brandt", "Castor", "Dorn", "Elling", "Farrow", "Grieg", "Holm", "Ivers", "Keller", "Marlow", "Oakes"]
ITEMS = ["lamp", "kettle", "chair", "clock", "radio", "tent", "camera", "heater", "mirror", "drill"]
REMEDIES = ("refund", "replace", "repair")
COMPLAINTS = ("It arrived broken.", "It stopped working.", "A part of it is missing.")
SYSTEM = "Settle the complaint as the policy says."
SCHEMA = """
    CREATE TABLE orders (number INTEGER PRIMARY KEY, customer TEXT, item TEXT, status TEXT DEFAULT 'open');
    CREATE TABLE policies (item TEXT PRIMARY KEY, remedy TEXT);
"""


class Support(ToolEnv):
    """`Support(fail=0.2, hasty=0.7)`: one call in five to settle an order fails, and has to be made again.

    Seven in ten of its expert's demonstrations are hasty: they refund without reading the policy, and do not try again.
    """

    def __init__(self, *, fail: float = 0.2, hasty: float = 0.7) -> None:
        tasks = {"train": make_tasks("train", 4000), "test": make_tasks("test", 500)}
        super().__init__(tasks=tasks, process={"informed": 0.1}, system=SYSTEM, max_turns=7)
        self.fail, self.hasty = fail, hasty

    def begin(self, task: Task, episode_seed: int) -> None:
        """Opens the shop of the task; the episode's seed decides what goes wrong in it."""
        self.customer = str(task.data["customer"])
        self.shop = open_shop(task.seed, self.customer)
        self.chance = random.Random(episode_seed)
        self.in_haste = self.chance.random() < self.hasty
        self.informed = False

    def close(self) -> None:
        self.shop.close()

    @tool
    def find_order(self, customer: str) -> str:
        """Finds an order.

        Args:
            customer: First and last name.
        """
        rows = self.shop.execute("SELECT number, item FROM orders WHERE customer = ?", (customer,)).fetchall()
        return json.dumps({"order": rows[0][0], "item": rows[0][1]}) if rows else "no order"

    @tool
    def read_policy(self, item: str) -> ToolResult:
        """Reads the policy.

        Args:
            item: What the customer bought.
        """
        rows = self.shop.execute("SELECT remedy FROM policies WHERE item = ?", (item,)).fetchall()
        if not rows:
            return ToolResult(content="no policy")
        pays = item == self.order()[1] and not self.informed
        self.informed = self.informed or pays
        return ToolResult(content=json.dumps({"item": item, "remedy": rows[0][0]}), rewards={"informed": float(pays)})

    @tool(timeout=5)
    def settle(self, order: int, remedy: str) -> str:
        """Settles an order.

        Args:
            order: The number of the order.
            remedy: One of refund, replace, repair.
        """
        if self.chance.random() < self.fail:
            raise ConnectionError("try again")
        if remedy not in REMEDIES:
            return "no remedy"
        change = "UPDATE orders SET status = ? WHERE number = ? AND status = 'open'"
        done = self.shop.execute(change, (remedy, order)).rowcount
        return json.dumps({"settled": order, "remedy": remedy}) if done else "no open order"

    @reward
    def settled(self, episode: Episode) -> float:
        """1 when the customer's order was settled as the policy says, and no other order was touched."""
        query = "SELECT customer, status = remedy FROM orders JOIN policies USING (item) WHERE status != 'open'"
        return float(self.shop.execute(query).fetchall() == [(self.customer, 1)])

    def order(self) -> tuple[int, str, str]:
        """The number, item and status of the customer's order."""
        row: tuple[int, str, str] = self.shop.execute(
            "SELECT number, item, status FROM orders WHERE customer = ?", (self.customer,)
        ).fetchone()
        return row

    def expert(self) -> Message:
        """Finds the order, reads the policy, and settles until it worked; in haste, refunds once and hopes."""
        number, item, status = self.order()
        (due,) = self.shop.execute("SELECT remedy FROM policies WHERE item = ?", (item,)).fetchone()
        remedy = "refund" if self.in_haste else due
        if self.turns_taken == 0:
            return call("find_order", customer=self.customer)
        if self.turns_taken == 1 and not self.in_haste:
            return call("read_policy", item=item)
        if status == "open" and not (self.in_haste and self.turns_taken == 2):
            return call("settle", order=number, remedy=remedy)
        return Message(role="assistant", content=f"We {remedy} it.")


def make_tasks(split: str, count: int) -> Sequence[Task]:
    """Complaints; a customer of the test split complains in no other."""
    tasks = []
    for seed in range(count):
        rng = random.Random(f"{split} {seed}")
        place = rng.randrange(len(FIRST))
        # Every fourth pair of names is held out, and yet each name is met in training.
        held_out = [last for at, last in enumerate(LAST) if ((place + at) % 4 == 0) == (split == "test")]
        customer = f"{FIRST[place]} {rng.choice(held_out)}"
        question = json.dumps({"customer": customer, "complaint": rng.choice(COMPLAINTS)})
        data = {"question": question, "customer": customer}
        tasks.append(Task(id=f"{split}-{seed}", seed=rng.getrandbits(32), data=data))
    return tasks


def open_shop(seed: int, customer: str) -> sqlite3.Connection:
    """A shop with four open orders, of which one is the customer's, and a policy on every item."""
    rng = random.Random(seed)
    others = [f"{rng.choice(FIRST)} {rng.choice(LAST)}" for _ in range(3)]
    customers = [customer, *(name for name in others if name != customer)]
    orders = zip(
        rng.sample(range(10, 50), len(customers)), customers, rng.choices(ITEMS, k=len(customers)), strict=True
    )
    shop = sqlite3.connect(":memory:")
    shop.executescript(SCHEMA)
    shop.executemany("INSERT INTO orders (number, customer, item) VALUES (?, ?, ?)", orders)
    shop.executemany("INSERT INTO policies VALUES (?, ?)", [(item, rng.choice(REMEDIES)) for item in ITEMS])
    return shop


def call(name: str, **arguments: object) -> Message:
    """A message that calls one tool."""
    written = ToolCall(id="", name=name, arguments=json.dumps(arguments))
    return Message(role="assistant", content="", tool_calls=(written,))


def experiment(algorithm: str) -> dict[str, object]:
    """The settings of examples/support.yaml, support-ppo.yaml and support-starpo-s.yaml, for Python."""
    with_critic = {"minibatches": 2, "critic": {"warmup": 2, "optimizer": {"lr": 1e-3}}}
    return {
        "model": {"name": "small", "small": {"layers": 2, "positions": 512, "induction_heads": 2}},
        "sft": {
            "demonstrations": 3200,
            "batch": 8,
            "context_weight": 0.3,
            "optimizer": {"lr": 2e-3, "warmup_steps": 30},
        },
        "steps": {"grpo": 8, "ppo": 16, "starpo-s": 12}[algorithm],
        # StarPO-S learns from a quarter of its groups, so it is given more of them.
        "rollout": {"groups_per_step": 32 if algorithm == "starpo-s" else 16, "group_size": 8, "turn_tokens": 48},
        "learner": {"optimizer": {"lr": 3e-4}, **({} if algorithm == "grpo" else with_critic)},
        "evaluate": {"tasks": 250},
        "engine": {"slots": 128},
    }


if __name__ == "__main__":
    algorithm = sys.argv[1] if len(sys.argv) > 1 else "grpo"
    turnwise.train(env=Support(), algorithm=algorithm, run=f"runs/support-{algorithm}", **experiment(algorithm))
