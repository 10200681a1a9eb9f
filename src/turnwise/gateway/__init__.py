"""The gateway: an OpenAI- and Anthropic-compatible endpoint through which any program is trained as it is.

A foreign program owns its loop: it calls a model, runs its own tools, calls the model again. Seen from the rollout,
such a program is an environment: what it sends is what the agent reads, and the agent's reply is its answer.

    program --HTTP--> server -> session -> SessionEnv --messages--> the one loop (rollout/episode.py) -> policy, engine
            <--HTTP-- server <- session <- SessionEnv <---turn-----

So limits, groups, failures, the store, credit and the learner are those of every other environment, and whatever can
act in the loop (the policy, a model behind an API, an expert, a person) can be the model behind the program.

    chat.py                          a request, a reply and an error, in no API's shape
    wire.py openai.py anthropic.py responses.py    the wire formats, streams included
    history.py                       does a request extend an earlier conversation, or open a new row, and why
    session.py                       one episode's requests: retries, cancellations, hand-over between threads
    server.py                        HTTP
    env.py                           a session as an environment
    program.py process.py client.py  `AgentProgram`: runs the program, by command or by function
    collect.py                       `turnwise gateway`: clients begin the episodes, trajectories are stored
"""
