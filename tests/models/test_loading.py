"""Loading, saving and refusing models: exact round trips, and one line for whatever cannot be had."""

import importlib.util
import json
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.errors import OfflineModeIsEnabled
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from turnwise.errors import ModelError
from turnwise.models import loading as models
from turnwise.models import settings as models_settings
from turnwise.models.loading import ModelSettings, load_model, load_weights, require_context, save_model
from turnwise.models.small import SmallSettings
from turnwise.planning.shape import find_shape

TINY = SmallSettings(layers=2, width=16, heads=4, kv_heads=2, positions=64, vocabulary=300, induction=False)
SETTINGS = ModelSettings(small=TINY, device="cpu")
TEXTS = ("the quick brown fox", "the quick red fox")
IDS = torch.tensor([[5, 17, 200, 3, 41, 260]])


def load(settings=SETTINGS, seed=0):
    return load_model(settings, seed=seed, texts=lambda: TEXTS)


def no_texts():
    raise AssertionError("only the built-in's tokenizer is trained")


@pytest.mark.parametrize(
    ("asked", "dtype", "parameters", "on_gpu", "chosen"),
    [
        (None, "float32", models_settings.LARGE, True, torch.bfloat16),
        (None, "float32", models_settings.LARGE - 1, True, None),
        (None, "bfloat16", models_settings.LARGE, True, None),
        (None, "float32", models_settings.LARGE, False, None),
        (True, "float32", 1, False, torch.bfloat16),
        (True, "bfloat16", 1, True, torch.bfloat16),
        (False, "float32", models_settings.LARGE, True, None),
    ],
)
def test_a_large_model_on_a_gpu_computes_in_bfloat16_unless_told_otherwise(
    asked, dtype, parameters, on_gpu, chosen, monkeypatch
):
    monkeypatch.setattr(models, "_computes_in_bfloat16", lambda device: on_gpu)
    settings = ModelSettings(name="some/model", autocast=asked, dtype=dtype)
    loaded = SimpleNamespace(
        device=torch.device("cpu"), model=torch.nn.Linear(parameters, 1, bias=False, device="meta")
    )
    assert models.choose_autocast(settings, loaded) is chosen


def test_only_gpus_that_compute_in_bfloat16_count(monkeypatch):
    assert not models._computes_in_bfloat16(torch.device("cpu"))
    for able in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation, able=able: able)
        assert models._computes_in_bfloat16(torch.device("cuda")) is able


def one_line(call):
    with pytest.raises(ModelError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or fills the user's own cache."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def saved(tmp_path):
    loaded = load()
    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved")
    return loaded, tmp_path / "saved"


def test_built_in_is_fixed_by_the_seed_and_in_evaluation_mode():
    first, again = load(seed=4), load(seed=4)
    assert torch.equal(first.model(IDS).logits, again.model(IDS).logits)
    assert not first.model.training
    assert first.context_limit == 64


def test_saved_model_loads_as_a_folder_with_the_same_logits_and_ids(saved):
    loaded, folder = saved
    again = load_model(ModelSettings(name=str(folder), device="cpu"), seed=9, texts=no_texts)
    assert torch.equal(again.model(IDS).logits, loaded.model(IDS).logits)
    text = "the quick ☃ <|im_end|>"
    assert again.tokenizer.encode(text) == loaded.tokenizer.encode(text)
    assert again.context_limit == 64


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_come_back_bit_for_bit_and_in_place(tmp_path, dtype):
    loaded = load(SETTINGS.model_copy(update={"dtype": dtype}))
    assert {weight.dtype for weight in loaded.model.parameters()} == {getattr(torch, dtype)}
    before = {name: weight.detach().clone() for name, weight in loaded.model.named_parameters()}
    held = list(loaded.model.parameters())
    save_model(loaded.model, loaded.tokenizer, tmp_path)
    with torch.no_grad():
        for weight in held:
            weight.add_(1.0)
    load_weights(loaded.model, tmp_path)
    for weight, (name, now) in zip(held, loaded.model.named_parameters(), strict=True):
        assert now is weight
        assert torch.equal(now, before[name])
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == getattr(torch, dtype)


def test_built_in_can_borrow_a_tokenizer(saved):
    _, folder = saved
    settings = SETTINGS.model_copy(update={"tokenizer": str(folder)})
    borrowed = load_model(settings, seed=0, texts=no_texts)
    assert borrowed.tokenizer.encode("the quick") == load().tokenizer.encode("the quick")


def test_weights_of_another_shape_are_refused(saved):
    _, folder = saved
    other = load(
        ModelSettings(small=SmallSettings(layers=1, width=16, heads=2, vocabulary=300, induction=False), device="cpu")
    )
    assert f"{folder} cannot be loaded" in one_line(lambda: load_weights(other.model, folder))
    assert "holds no saved model" in one_line(lambda: load_weights(other.model, folder / "none"))


def test_tokenizer_larger_than_the_model_is_refused(saved, tmp_path):
    _, folder = saved
    large = load(
        ModelSettings(small=SmallSettings(layers=1, width=16, heads=2, induction=False), device="cpu")
    ).tokenizer
    large.add_tokens([f"<{number}>" for number in range(50)])
    large.save_pretrained(tmp_path / "large")
    settings = ModelSettings(name=str(folder), tokenizer=str(tmp_path / "large"), device="cpu")
    assert "set model.tokenizer to its own" in one_line(lambda: load_model(settings, seed=0, texts=no_texts))


def test_generation_options_that_cannot_be_saved_do_not_cost_a_checkpoint(saved, tmp_path):
    _, folder = saved
    options = GenerationConfig(eos_token_id=2).to_dict() | {"temperature": 0.6, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(options))
    loaded = load_model(ModelSettings(name=str(folder), device="cpu"), seed=0, texts=no_texts)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "again")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "again")(IDS).logits, loaded.model(IDS).logits)


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "~/none", "a/b/c", "weights\\none"])
def test_a_path_that_is_not_there_never_reaches_the_hub(name, monkeypatch):
    monkeypatch.setattr(models, "get_hf_file_metadata", no_texts)
    line = one_line(lambda: load(ModelSettings(name=name)))
    assert line == f"model.name: no folder {name}: give a folder, a Hugging Face id, a .gguf file or 'small'"


def test_the_hub_is_asked_once_and_its_silence_is_one_line(monkeypatch):
    asked = []

    def offline(url):
        asked.append(url)
        raise OfflineModeIsEnabled("Cannot reach the hub.\nSecond line.")

    monkeypatch.setattr(models, "get_hf_file_metadata", offline)
    line = one_line(lambda: load(ModelSettings(name="nobody/nothing-here")))
    assert asked == [huggingface_hub.hf_hub_url("nobody/nothing-here", "config.json")]
    assert "'nobody/nothing-here' is neither a folder nor a model the hub gives (Cannot reach the hub.)" in line


def test_names_no_hub_could_know_are_refused():
    assert "neither a folder nor a model" in one_line(lambda: load(ModelSettings(name="two words!")))


def test_code_that_comes_with_a_model_is_never_run_nor_asked_about(saved, tmp_path, monkeypatch):
    """transformers would ask in the terminal, and wait for an answer that a job cannot give."""
    _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "theirs", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.setattr("builtins.input", lambda *text: "y")
    line = one_line(lambda: load(ModelSettings(name=str(folder), device="cpu")))
    assert str(folder) in line
    assert not (tmp_path / "ran").exists()


def test_missing_files_are_named(tmp_path):
    (tmp_path / "notes.txt").write_text("not a model")
    absent = tmp_path / "absent.gguf"
    assert f"no file {absent}" in one_line(lambda: load(ModelSettings(name=str(absent))))
    assert "has no config.json" in one_line(lambda: load(ModelSettings(name=str(tmp_path))))
    tokenizer = ModelSettings(tokenizer=str(tmp_path))
    assert "model.tokenizer: folder" in one_line(lambda: load_model(tokenizer, seed=0, texts=no_texts))


def test_broken_weights_are_one_line(saved):
    _, folder = saved
    (folder / "model.safetensors").write_bytes(b"broken")
    assert f"{folder} cannot be loaded" in one_line(lambda: load(ModelSettings(name=str(folder), device="cpu")))


def test_weights_that_are_missing_are_not_drawn_at_random(saved):
    _, folder = saved
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    line = one_line(lambda: load(ModelSettings(name=str(folder), device="cpu")))
    assert line == f"{folder} lacks 1 weights, such as model.norm.weight: get the complete model"
    assert one_line(lambda: load_weights(load().model, folder)) == line


def test_absent_gpu_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "set model.device to auto or cpu" in one_line(lambda: load(ModelSettings(device="cuda")))


def test_require_context():
    require_context(512, 512)
    assert one_line(lambda: require_context(512, 513)) == (
        "recipe asks for 513 tokens but the model has 512 positions: "
        "lower rollout.context_tokens and rollout.turn_tokens, or pick another model"
    )


def test_gguf_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = one_line(lambda: load(ModelSettings(name=str(tmp_path / "model.gguf"))))
    assert line == "model.gguf needs the packages gguf and accelerate: pip install turnwise[gguf]"


def test_gguf_loads_trains_and_saves_like_any_model(tmp_path):
    pytest.importorskip("gguf")
    original = load()
    file = tmp_path / "tiny.gguf"
    write_gguf(original.model, original.tokenizer, file)
    loaded = load_model(ModelSettings(name=str(file), device="cpu"), seed=0, texts=no_texts)
    assert loaded.context_limit == 64
    assert torch.allclose(loaded.model(IDS).logits, original.model(IDS).logits, atol=1e-6)
    assert find_shape(ModelSettings(name=str(file)), {}).parameters == sum(p.numel() for p in loaded.model.parameters())
    loaded.model(IDS).logits.sum().backward()
    assert all(weight.grad is not None for weight in loaded.model.parameters())

    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(IDS).logits, loaded.model(IDS).logits)
    text = "the quick brown fox<|im_end|>"
    ids = loaded.tokenizer.encode(text)
    assert ids[-1] == loaded.tokenizer.eos_token_id == original.tokenizer.eos_token_id
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").encode(text) == ids
    load_weights(loaded.model, tmp_path / "saved")


def test_gguf_is_converted_once_for_each_file_and_type(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    original = load()
    file = tmp_path / "tiny.gguf"
    write_gguf(original.model, original.tokenizer, file)
    settings = ModelSettings(name=str(file))
    first = load(settings)
    (kept,) = (tmp_path / "cache" / "models").iterdir()
    assert kept.name.startswith("tiny-float32-")
    with monkeypatch.context() as patched:
        patched.setattr(models, "_dense", lambda options: pytest.fail("read anew") if options else {})
        again = load(settings)
    for name, weight in first.model.named_parameters():
        assert torch.equal(weight, again.model.get_parameter(name)), name
    assert again.tokenizer.eos_token == first.tokenizer.eos_token
    assert again.tokenizer.chat_template == first.tokenizer.chat_template
    assert again.tokenizer.encode("What is x?") == first.tokenizer.encode("What is x?")
    with torch.no_grad():
        original.model.get_output_embeddings().weight.mul_(2)
    write_gguf(original.model, original.tokenizer, file)
    changed = load(settings)
    assert len(list((tmp_path / "cache" / "models").iterdir())) == 2
    weights = [one.model.get_output_embeddings().weight for one in (first, changed)]
    assert not torch.equal(*weights), "another file of the same name is another model"


def test_a_cache_that_cannot_be_written_costs_a_warning_alone(tmp_path, caplog):
    pytest.importorskip("gguf")
    (tmp_path / "cache").write_text("a file where a folder should be")
    original = load()
    write_gguf(original.model, original.tokenizer, tmp_path / "tiny.gguf")
    assert load(ModelSettings(name=str(tmp_path / "tiny.gguf"))).context_limit == original.context_limit
    assert "set TURNWISE_CACHE to a folder with room for it" in caplog.text


def test_broken_gguf_is_one_line(tmp_path):
    pytest.importorskip("gguf")
    (tmp_path / "model.gguf").write_bytes(b"not a GGUF file at all, whatever its name says")
    assert "cannot be loaded" in one_line(lambda: load(ModelSettings(name=str(tmp_path / "model.gguf"))))


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_gguf_whose_download_broke_off_is_one_line_that_names_it(tmp_path, share):
    pytest.importorskip("gguf")
    original = load()
    write_gguf(original.model, original.tokenizer, file := tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    assert one_line(lambda: load(ModelSettings(name=str(file)))).startswith(f"{file} cannot be loaded: ")


def write_gguf(model, tokenizer, file):
    """The model in f32, under llama.cpp's names and with its order of rotary rows."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)

    core = json.loads(tokenizer.backend_tokenizer.to_str())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    control = {token["id"]: 3 if token["special"] else 4 for token in core["added_tokens"]}
    writer.add_token_types([control.get(number, 1) for number in range(len(tokenizer))])
    writer.add_token_merges([" ".join(pair) for pair in core["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.convert_tokens_to_ids("<|im_start|>"))
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.named_parameters():
        values = weight.detach().numpy()
        for projection, count in heads.items():
            if f"{projection}.weight" in name:
                halves = values.reshape(count, 2, -1, values.shape[1])  # [head, half, row, in]
                values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
