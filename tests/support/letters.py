"""A renderer of one id per letter, for tests of who plays with whom and not of what is said."""

from turnwise.types import Message


class Letters:
    stop_ids = (0,)

    def start(self, messages, tools):
        return (1, 2)

    def extend(self, action_ids, messages):
        return (3,)

    def parse(self, action_ids):
        return Message(role="assistant", content="x")

    def write(self, message):
        return message.content

    def encode_action(self, text):
        return (*map(ord, text), 0)

    def decode(self, ids):
        return ""
