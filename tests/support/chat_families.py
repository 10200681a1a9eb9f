"""Small tokenizers with chat templates in the shape of the families we support, built without a download."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_CORPUS = (
    "The harbour of Oslo opens to the south. Who founded the observatory, and when did it close?\n"
    'user assistant system tool {"name": "search", "arguments": {"query": "who founded Lumen"}}\n'
    "<tool_call> </tool_call> <think> </think> <answer> </answer> <tool_response> </tool_response>\n"
) * 4

CHATML_TOOLS = """
{%- if tools %}
{{- '<|im_start|>system\n' }}
{{- messages[0]['content'] if messages[0]['role'] == 'system' else 'You are a careful assistant.' }}
{{- '\n\n# Functions\n<tools>' }}
{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
{{- '\n</tools>\nReply with <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call> to use one.<|im_end|>\n' }}
{%- elif messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>system\nYou are a careful assistant.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

# Old thinking goes once a newer question is asked; the last turn always shows a thinking block.
CHATML_THINKING = """
{%- if messages[0].role == 'system' or tools %}
{{- '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else '') }}
{%- if tools %}{{- '\n<tools>' }}{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
{{- '\n</tools>' }}{%- endif %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last_question=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set ns.last_question = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set thinking = '' %}{%- set content = message.content %}
{%- if '</think>' in content %}
{%- set thinking = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last_question and (loop.last or thinking) %}
{{- '<think>\n' + thinking + '\n</think>\n\n' }}
{%- endif %}
{{- content }}
{%- for call in message.tool_calls or [] %}
{%- if content or not loop.first %}{{- '\n' }}{%- endif %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- if open_thinking is defined %}{{- '<think>\n' }}{%- endif %}
{%- endif %}
"""

HEADERS_AND_DATE = """
{{- bos_token }}
{%- if date_string is not defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools %}{{- 'Environment: ipython\n' }}{%- endif %}
{{- 'Today: ' + date_string + '\n\n' + system + '<|eot_id|>' }}
{%- if tools %}
{{- '<|start_header_id|>user<|end_header_id|>\n\nAnswer with {"name": tool, "parameters": object}.\n\n' }}
{%- for tool in tools %}{{- (tool | tojson(indent=2)) + '\n\n' }}{%- endfor %}
{{- (messages[0].content | trim) + '<|eot_id|>' }}{%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + message.tool_calls[0].function.name + '", ' }}
{{- '"parameters": ' + (message.tool_calls[0].function.arguments | tojson) + '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + (message.content | tojson) + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + (message.content | trim) + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""

CHATML_BARE = """
{%- for message in messages %}
{%- if loop.first and message['role'] != 'system' %}
{{- '<|im_start|>system\nYou are a small assistant.<|im_end|>\n' }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

# No system role, strict alternation, another name for the assistant, a newline before the end of its turn, and
# an eos that only a finished conversation carries.
QUIRKY = """
{{- bos_token }}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('user and assistant must take turns') }}
{%- endif %}
{%- if message.role == 'assistant' %}
{{- '<turn>model\n' + message.content + '\n<end>\n' }}
{%- else %}
{{- '<turn>user\n' + (message.content | trim) + '<end>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<turn>model\n' }}{%- else %}{{- eos_token }}{%- endif %}
"""

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
)


@cache
def _train() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _CORPUS.splitlines(), trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer.to_str()


def make_tokenizer(template: str | None, specials: tuple[str, ...], **named: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer.from_str(_train())
    tokenizer.add_special_tokens(list(specials))
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **named)
    made.chat_template = template.strip("\n") if template else None
    return made


@cache
def family(name: str) -> PreTrainedTokenizerFast:
    if name == "qwen2.5":
        return make_tokenizer(CHATML_TOOLS, CHATML_TOKENS, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    if name == "qwen3":
        return make_tokenizer(CHATML_THINKING, CHATML_TOKENS, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    if name == "llama3":
        return make_tokenizer(
            HEADERS_AND_DATE, LLAMA_TOKENS, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"
        )
    if name == "smollm2":
        return make_tokenizer(
            CHATML_BARE, CHATML_TOKENS, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"
        )
    assert name == "quirky"
    return make_tokenizer(QUIRKY, ("<s>", "</s>", "<turn>", "<end>"), bos_token="<s>", eos_token="</s>")
