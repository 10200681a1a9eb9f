"""A request is one turn however often it is sent; what nobody waits for any more is withdrawn before it begins."""

import asyncio

import pytest

from turnwise.gateway.chat import Answer, ChatRequest, ErrorKind, GatewayError, Reply
from turnwise.gateway.session import Ended, Exchange, Identity, Paid, Session
from turnwise.types import Finish, Message

REQUEST = ChatRequest(messages=(Message(role="user", content="x"),))
OVER = GatewayError(ErrorKind.NO_SESSION, "over")


def identity(body="x", **headers):
    return Identity.of("/v1/chat/completions", body.encode(), headers)


def answer(text="a"):
    reply = Reply(message=Message(role="assistant", content=text), finish=Finish.STOP)
    return Answer(id="1", created=0, request=REQUEST, replies=(reply,), prompt_tokens=1)


def in_loop(test):
    """Runs a coroutine function as a test, with a session of its event loop."""

    def run():
        async def main():
            await test(Session("s"))

        asyncio.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_loop
async def test_a_retry_while_the_first_is_in_flight_waits_for_its_answer(session):
    first = session.ask(REQUEST, identity())
    again = session.ask(REQUEST, identity())
    assert again is first
    taken = await session.next()
    session.answer(taken, answer())
    assert session.counts == {"requests": 1, "retries": 1}
    assert not session._events


@in_loop
async def test_a_retry_of_what_was_answered_last_is_given_the_same_answer(session):
    first = session.ask(REQUEST, identity())
    session.answer(await session.next(), answer())
    assert session.ask(REQUEST, identity()) is first
    other = session.ask(REQUEST, identity("y"))
    session.answer(await session.next(), answer("b"))
    assert other is not first
    assert session.ask(REQUEST, identity()) is not first, "the agent has gone on since: it asks anew"


@in_loop
async def test_a_retry_that_comes_while_an_answer_is_given_is_no_second_request(session):
    """Whatever is called as an answer is set sees the request as answered last."""
    first = session.ask(REQUEST, identity())
    again = []
    first.answer.add_done_callback(lambda _: again.append(session.ask(REQUEST, identity())))
    first.answer._done_callbacks.reverse()  # before the session's own
    session.answer(await session.next(), answer())
    assert again == [first]


@in_loop
async def test_an_sdk_that_counts_its_attempts_decides_itself(session):
    first = session.ask(REQUEST, identity(**{"x-stainless-retry-count": "0"}))
    session.answer(await session.next(), answer())
    second = session.ask(REQUEST, identity(**{"x-stainless-retry-count": "0"}))
    assert second is not first, "the same prompt sampled twice"
    assert session.ask(REQUEST, identity(**{"x-stainless-retry-count": "1"})) is second
    between = session.ask(REQUEST, identity("y", **{"x-stainless-retry-count": "0"}))
    for _ in range(2):
        session.answer(await session.next(), answer())
    assert between.answer.done()
    assert session.ask(REQUEST, identity(**{"x-stainless-retry-count": "2"})) is second, "however late it comes"


@in_loop
async def test_a_first_attempt_that_comes_after_its_retry_is_known(session):
    late, retry = (identity(**{"x-stainless-retry-count": count}) for count in "01")
    assert not session.is_overtaken(late)
    exchange = session.ask(REQUEST, retry)
    assert session.is_overtaken(late)
    assert not session.is_overtaken(retry)
    assert not session.is_overtaken(identity("y", **{"x-stainless-retry-count": "0"}))
    assert not session.is_overtaken(identity()), "a client that does not count"
    assert not session.is_overtaken(identity(**{"x-stainless-retry-count": "0", "idempotency-key": "k"}))
    session.leave(exchange)
    assert not session.is_overtaken(late), "withdrawn, so nothing stands in its place"


@in_loop
async def test_an_idempotency_key_decides_whatever_the_body(session):
    first = session.ask(REQUEST, identity(**{"idempotency-key": "k"}))
    assert session.ask(REQUEST, identity("y", **{"idempotency-key": "k"})) is first
    assert session.ask(REQUEST, identity(**{"idempotency-key": "l"})) is not first
    assert session.ask(REQUEST, identity()) is not first, "a request without the key repeats none that has one"


@in_loop
async def test_a_request_that_failed_is_tried_anew(session):
    first = session.ask(REQUEST, identity())
    (await session.next()).answer.set_exception(GatewayError(ErrorKind.FAILED, "broke"))
    assert session.ask(REQUEST, identity()) is not first


@in_loop
async def test_a_request_that_was_cancelled_before_it_began_is_withdrawn(session):
    first = session.ask(REQUEST, identity())
    session.ask(REQUEST, identity())
    session.leave(first)
    assert not first.answer.cancelled(), "the second attempt still waits"
    session.leave(first)
    assert first.answer.cancelled()
    second = session.ask(REQUEST, identity())
    assert second is not first
    assert await session.next() is second
    assert session.counts == {"requests": 2, "retries": 1, "withdrawn": 1}


@in_loop
async def test_a_request_that_was_cancelled_after_it_began_keeps_its_answer_for_a_retry(session):
    first = session.ask(REQUEST, identity())
    taken = await session.next()
    session.leave(first)
    assert session.ask(REQUEST, identity()) is first
    session.answer(taken, answer())
    assert session.counts["withdrawn"] == 0


@in_loop
async def test_events_come_in_order_and_wake_the_reader_from_any_thread(session):
    def send():
        session.ask(REQUEST, identity())
        session.pay("r", 0.5)
        session.end(Ended())

    waiting = asyncio.ensure_future(session.next())
    await asyncio.sleep(0)
    await asyncio.to_thread(send)
    first, second, third = await waiting, await session.next(), await session.next()
    assert isinstance(first, Exchange)
    assert (second, third) == (Paid(name="r", value=0.5), Ended())


@in_loop
async def test_a_closed_session_refuses_what_waits_and_what_comes(session):
    queued, begun = session.ask(REQUEST, identity("x")), session.ask(REQUEST, identity("y"))
    assert await session.next() is queued
    session.pay("late", 1.0)
    assert session.close(OVER) == [Paid(name="late", value=1.0)]
    assert queued.answer.exception() is begun.answer.exception() is OVER
    for call in (lambda: session.ask(REQUEST, identity()), lambda: session.pay("r", 1.0)):
        with pytest.raises(GatewayError, match="over"):
            call()
    session.end(Ended())


@in_loop
async def test_a_session_takes_only_so_many_requests_at_once(session):
    for number in range(256):
        session.ask(REQUEST, identity(str(number)))
    with pytest.raises(GatewayError) as refused:
        session.ask(REQUEST, identity("one more"))
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
