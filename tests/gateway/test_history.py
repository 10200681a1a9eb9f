"""Where a request belongs: tables of conversations, as clients send them, and what each turn then reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.gateway.history import Break, History
from turnwise.types import Message, ToolCall, ToolSpec

SEARCH = ToolSpec(name="search", description="", parameters={"type": "object"})
READ = ToolSpec(name="read", description="", parameters={"type": "object"})


def chat(text):
    """`chat("S.go U.hi A.yes")`: a role's letter and a word, for each message."""
    roles = {"S": "system", "U": "user", "A": "assistant", "T": "tool"}
    return tuple(Message(role=roles[one[0]], content=one[2:]) for one in text.split())


def play(*requests, tools=()):
    """Places requests in turn; `request -> reply`. Returns the placements and the history."""
    history, placed = History(), []
    for request in requests:
        asked, _, reply = request.partition(" -> ")
        placed.append(history.place(chat(asked), tools))
        history.add(placed[-1], Message(role="assistant", content=reply))
    return placed, history


def test_a_conversation_that_grows_extends_its_row():
    placed, history = play("S.s U.hi -> a", "S.s U.hi A.a T.t -> b", "S.s U.hi A.a T.t A.b U.more -> c")
    assert [(p.after, p.extends, p.cause) for p in placed] == [(None, False, None), (0, True, None), (1, True, None)]
    assert [p.fresh for p in placed] == [chat("S.s U.hi"), chat("T.t"), chat("U.more")]
    assert history.breaks.total() == 0


@pytest.mark.parametrize(
    ("requests", "after", "fresh", "cause"),
    [
        (["S.s U.hi -> a", "S.other U.sub -> b", "S.s U.hi A.a T.t -> c"], 0, "T.t", Break.RESUMED),
        (["S.s U.hi -> a", "S.s U.hi A.a T.t -> b", "S.s U.hi A.a T.u -> c"], 0, "T.u", Break.RESUMED),
        (["S.s U.hi -> a", "S.s U.hi -> b"], None, "S.s U.hi", Break.RESAMPLED),
        (["S.s U.hi -> a", "S.s U.hi A.a T.t -> b", "S.s U.hi A.a T.t -> c"], 0, "T.t", Break.RESAMPLED),
        (["S.s U.hi -> a", "S.s U.hi A.A T.t -> b"], None, "S.s U.hi A.A T.t", Break.REPLY_EDITED),
        (["S.s U.hi -> a", "S.s U.ho A.a T.t -> b"], None, "S.s U.ho A.a T.t", Break.REWRITTEN),
        (["S.s U.hi -> a", "S.s U.hi A.a T.t -> b", "S.s U.sum T.t -> c"], None, "S.s U.sum T.t", Break.COMPACTED),
        (["S.s U.hi -> a", "S.s -> b"], None, "S.s", Break.COMPACTED),
        (["S.s U.hi -> a", "U.new -> b"], None, "U.new", Break.BRANCHED),
    ],
)
def test_what_does_not_extend_the_last_turn_opens_a_row_for_a_cause(requests, after, fresh, cause):
    placed, history = play(*requests)
    last = placed[-1]
    assert (last.after, last.extends, last.cause, last.fresh) == (after, False, cause, chat(fresh))
    assert last.conversation == chat(requests[-1].partition(" -> ")[0])
    assert history.breaks[cause] == 1


def test_other_tools_open_a_row_because_they_stand_at_its_beginning():
    history = History()
    first = history.place(chat("U.hi"), [SEARCH])
    history.add(first, Message(role="assistant", content="a"))
    assert history.place(chat("U.hi A.a T.t"), [SEARCH]).extends
    assert history.place(chat("U.hi A.a T.t"), [SEARCH, READ]).cause is Break.TOOLS_CHANGED
    assert history.place(chat("U.hi"), [READ]).cause is Break.TOOLS_CHANGED


def test_what_clients_do_to_a_reply_on_its_way_back_rewrites_nothing():
    """They drop thinking, trim text and write arguments anew; the call's id, name and values they keep."""
    own = ToolCall(id="call_0", name="search", arguments='{"b": 1,  "a": [2]}')
    sent = Message(
        role="assistant",
        content="Look.",
        thinking="hm",
        tool_calls=(ToolCall(id="x_1", name="search", arguments=own.arguments),),
    )
    history = History()
    history.add(history.place(chat("U.hi"), ()), sent)
    history.name_call("x_1", own)
    echoed = Message(
        role="assistant",
        content=" Look.\n",
        tool_calls=(ToolCall(id="x_1", name="search", arguments='{"a":[2],"b":1}'),),
    )
    result = Message(role="tool", content="found", tool_call_id="x_1")
    placed = history.place((*chat("U.hi"), echoed, result), ())
    assert placed.extends
    assert placed.fresh == (Message(role="tool", content="found", tool_call_id="call_0", name="search"),)
    other = Message(
        role="assistant", content="Look.", tool_calls=(ToolCall(id="x_1", name="search", arguments='{"a":[3],"b":1}'),)
    )
    assert history.place((*chat("U.hi"), other, result), ()).cause is Break.REPLY_EDITED


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab")), min_size=1, max_size=30))
def test_any_tree_of_conversations_is_followed(moves):
    """Each move continues some earlier turn, or begins: `after` is always that turn, and `fresh` what is new."""
    history, ends, breaks = History(), [()], 0
    for number, (choice, word) in enumerate(moves):
        place = choice % len(ends)
        fresh = (Message(role="user", content=f"{word}{number}"),)
        placed = history.place(ends[place] + fresh, ())
        assert placed.after == (place - 1 if place else None)
        assert placed.fresh == fresh
        assert placed.extends == (place == number and place > 0)
        breaks += not placed.extends and number > 0
        reply = Message(role="assistant", content=f"r{number}")
        assert history.add(placed, reply) == number
        ends.append((*ends[place], *fresh, reply))
    assert history.breaks.total() == breaks
