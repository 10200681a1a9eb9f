"""The studio: a local web page that shows runs while they train, and every token of every trajectory.

Invariant: it only reads. Nothing is written into a run's folder, no lock is taken, and training is not slowed; what
cannot be read is named in `problems` beside what can.

    guard.py      token, Host, Origin, content security policy
    library.py    the runs under the given folders, by id; a path outside them is refused
    scan.py       a run's line in the list, from its metrics without parsing most of them
    curves.py     metrics as columns: curves, ledger and health over time
    index.py      a line per trajectory, as columns: filters and orders
    search.py     text inside trajectories, straight from their files
    episode.py    one trajectory: conversation, tools, boards, tokens
    branches.py   replays in a process of their own
    events.py     what changes, as server-sent events
    server.py     routes      static/   the page: ES modules and CSS, no build step, no outside request

The interface, JSON over GET unless noted. A run is named by its id, `name-1a2b3c`, which its path decides, so that
links last; a trajectory as everywhere, `train-12/3/1`: stage, step, group, member. Absent numbers are null.

    /api/runs                        {runs: [{id, name, path, status, step, steps, episodes, best, best_step, last,
                                     environment, estimator, age, spark, differs: {key: value}, problem}],
                                     differing: [key]}
    /api/runs/ID                     {run, config, versions, metrics: [{name, stages}], findings: [{step, kind,
                                     severity, sentence, rollback_to}], checkpoints: [step],
                                     files: {stage: [step]}, problems}
    /api/runs/ID/series?name=..&name=..&since=MARK   {series: [{name, stage, step: [], time: [], value: [], low: [],
                                     high: []}], mark, whole, run, metrics, findings, problems}
        since, the `mark` of an answer before: only what was written after it; `whole` where all of it must be told
        again; metrics and findings where they changed
    /api/runs/ID/ledger              {accounts: [{name, colour, about}], bars: [{label, step, wall, seconds: {}}]}
    /api/runs/ID/health              {steps: [], rows: [{name, about, unit, values: [], total}],
                                     failures: [{kind, count, example}]}
    /api/runs/ID/trajectories?..     {total, found, rows: [{name, stage, step, task, environment, reward, rewards,
                                     success, spread, stop, failure, turns, tokens, tool_errors, seconds, question}],
                                     facets: {stages, steps, environments, stops, channels}, pending, problems}
        stage step task environment stop channel least most errors shortest longest text sort descending offset limit
    /api/runs/ID/trajectory/NAME     {name, task, blocks: [...], tools: {name: text}, turns: [{context, action,
                                     rewards, version, opens_row, finish, state_key, seconds, env_seconds}],
                                     tail, siblings: [row], same_task: [row], pieces: bool, ...}
                                     context = [[id, text]], action = [[id, text, logprob, advantage, learner, entropy]]
    /api/runs/ID/compare?name=..     {trajectories: [...], differs: [{turn, part, place}]}: from the first
    /api/runs/ID/branch              POST {trajectory, from_turn, checkpoint, temperature, seed, edit_result, action}
                                     -> {branch}; then GET /api/branches/BRANCH: {state, line, error, trajectory}
    /api/events?run=ID               server-sent events: `change` {id}, `runs` {}

An error is {error: "one line that tells what to do"} with its status.
"""
