"""A renderer of the user's own stands in for the chat template's, with settings of its own."""

import pytest

from byte_render import ByteRender
from turnwise.errors import ConfigError
from turnwise.render import RenderSettings, make_render


class Shouting(ByteRender):
    """Bytes in capitals, by a tokenizer that it does not need."""

    def __init__(self, tokenizer: object, *, marks: int = 1) -> None:
        super().__init__()
        self.marks = marks


def silent(tokenizer: object) -> object:
    return object()


def test_ones_own_is_made_with_the_tokenizer_and_its_arguments():
    made = make_render(None, RenderSettings(name=f"{__name__}:Shouting", args={"marks": 3}))
    assert isinstance(made, Shouting)
    assert made.marks == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "Shouting", "args": {"mark": 3}}, r"Shouting has no argument 'mark' .did you mean 'marks'"),
        ({"name": "Shouting", "args": {"marks": "3"}}, r"render\.args\.marks: expected an integer"),
        ({"name": "Shuting"}, r"render\.name: .* has no 'Shuting' .did you mean 'Shouting'"),
        ({"name": "silent"}, "'.*silent' made object; write a class with the methods of turnwise.render.Render"),
    ],
)
def test_a_broken_one_is_one_line(settings, words):
    with pytest.raises(ConfigError, match=words) as error:
        make_render(None, RenderSettings(**settings | {"name": f"{__name__}:{settings['name']}"}))
    assert "\n" not in str(error.value)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(ConfigError, match=r"'chatt' is not a renderer \(did you mean 'chat'\?\); the built-in"):
        make_render(None, RenderSettings(name="chatt"))
