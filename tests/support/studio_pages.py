"""The studio's pages: their addresses, and what each shows once it is there."""

TRAJECTORY = "train-1/0/0"


def path_of(client, rest="", name="first"):
    return f"/run/{client.run_id(name)}{rest}"


def pages_of(client, name="first", trajectory=TRAJECTORY, overlay="second"):
    """Every page of a run, by its name."""
    t, sibling = f"/t/{trajectory}", f"{trajectory.rpartition('/')[0]}/1"
    return {
        "runs": "/",
        **{tab: path_of(client, f"/{tab}", name) for tab in ("curves", "trajectories", "ledger", "health", "config")},
        "conversation": path_of(client, t, name),
        "tokens": path_of(client, f"{t}?view=tokens", name),
        "siblings": path_of(client, f"{t}?view=siblings", name),
        "branch": path_of(client, f"{t}?view=branch&turn=2", name),
        "compare": path_of(client, f"/compare?name={trajectory}&name={sibling}", name),
        "overlay": path_of(client, f"/curves?with={client.run_id(overlay)}", name),
    }


LANDMARK = {
    "runs": ".run-row",
    "curves": ".chart svg",
    "trajectories": ".row",
    "ledger": ".stack rect",
    "health": ".health-row",
    "config": "pre.code",
    "conversation": ".message",
    "tokens": ".tok.act",
    "siblings": ".picked",
    "branch": ".branch-form",
    "compare": ".column .differs",
    "overlay": ".legend.runs",
}
