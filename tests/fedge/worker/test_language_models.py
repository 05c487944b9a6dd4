"""Language models of task files: adapters, blocks of text, and clear words where a package is missing."""

import contextlib
import importlib.util
import json
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from fedge.worker import language_models  # noqa: E402  torch first
from fedge.worker.narrow_networks import narrow_network  # noqa: E402
from fedge.worker.network_arrays import collect_exchanged, load_arrays  # noqa: E402
from fedge.worker.sources import BadSource  # noqa: E402
from fedge.worker.subnetwork_arrays import array_shapes, take_leading, write_leading  # noqa: E402
from fedge.worker.task_shape import BadTask, Shape  # noqa: E402

TINY = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
HAS_PACKAGES = all(importlib.util.find_spec(name) for name in ("transformers", "peft"))
with_packages = pytest.mark.skipif(not HAS_PACKAGES, reason="needs transformers and peft")
ADAPTER_ELEMENTS = 2 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
"""Per rank: sums of inputs and outputs of q, o (32, 32), k, v (32, 16) and three layers (32, 64), in two layers."""


def build(**options):
    """A model whose adapters all do something."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        net = language_models.causal_lm(TINY, **options).eval()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if ".lora_B." in name:
                weight.normal_(std=0.1)
    return net


def arrays_of(net):
    return {name: tensor.numpy().copy() for name, tensor in collect_exchanged(net).items()}


def scores_of(net):
    with torch.no_grad():
        return net(torch.arange(20).reshape(2, 10))


def elements(net):
    return sum(array.size for array in arrays_of(net).values())


@with_packages
def test_adapters_alone_are_exchanged_and_a_frozen_a_stays_as_well():
    net = build(rank=8)

    assert all(".lora_A." in name or ".lora_B." in name for name in arrays_of(net))
    assert elements(net) == 8 * ADAPTER_ELEMENTS
    assert all(".lora_B." in name for name in arrays_of(build(rank=8, freeze_a=True)))
    assert elements(build()) == sum(weight.numel() for weight in build().parameters())


@with_packages
@pytest.mark.parametrize("width", [0.25, 0.5, 0.6, 1.0])
def test_a_lower_rank_is_the_full_network_with_zeros_in_the_other_ranks(width):
    full = build(rank=8)

    narrow = narrow_network(full, width, Shape(10, 10, 256, (10,)))

    part = arrays_of(narrow)
    zeros = {name: 0 * array for name, array in arrays_of(full).items()}
    assert all(part[name].shape[0] == int(np.ceil(8 * width)) for name in part if ".lora_A." in name)
    for name, array in take_leading(arrays_of(full), array_shapes(part)).items():
        np.testing.assert_array_equal(part[name], array)
    with torch.no_grad():
        load_arrays(full, write_leading(zeros, part))
    assert torch.allclose(scores_of(full), scores_of(narrow), atol=1e-5)
    shared = {weight.data_ptr() for weight in full.parameters() if not weight.requires_grad}
    assert shared <= {weight.data_ptr() for weight in narrow.parameters()}


@with_packages
def test_a_saved_folder_gives_its_weights_and_its_tokens(tmp_path):
    net = build()
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<e>": 0, "board": 1, "waits": 2}, unk_token="<e>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<e>", unk_token="<e>").save_pretrained(tmp_path)
    net.net.save_pretrained(tmp_path)
    for part in ("train", "test"):
        (tmp_path / (part + ".jsonl")).write_text('{"text": "board waits board"}\n', encoding="utf-8")

    data = language_models.read_texts({"folder": str(tmp_path)}, str(tmp_path), context=3)

    assert torch.equal(scores_of(language_models.causal_lm(str(tmp_path)).eval()), scores_of(net))
    assert data.train_x.tolist() == [[1, 2, 1]]
    assert data.train_y.tolist() == [[2, 1, 0]]


def test_texts_of_a_group_are_joined_and_cut_into_blocks_that_follow_each_other(tmp_path):
    lines = [{"text": "abcd", "group": "ann"}, {"text": "xyz", "group": "ben"}, {"text": "efg", "group": "ann"}]
    for part in ("train", "test"):
        text = "\n".join(json.dumps(line) for line in lines)
        (tmp_path / (part + ".jsonl")).write_text(text + "\n\n", encoding="utf-8")

    data = language_models.read_texts({"folder": str(tmp_path)}, TINY, context=3)

    assert ["".join(map(chr, row)) for row in data.train_x.tolist()] == ["abc", "d\ne", "xyz"]
    assert ["".join(map(chr, row)) for row in data.train_y.tolist()] == ["bcd", "\nef", "yz\n"]
    assert data.groups.tolist() == [0, 0, 1]
    assert data.classes == 256


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "a file that cannot be read"),
        ("{}\n", "a line .* for every text"),
        ('["a"]\n', "a file that cannot be read"),
        ('{"text": "ab"}\n{"text": 5}\n', "train.jsonl, line 2: got .*text is 5"),
        ('{"text": "ab"}\n', "less text than a block; more than 3 tokens in a group"),
    ],
)
def test_texts_of_another_form_are_one_clear_line(content, message, tmp_path):
    for part in ("train", "test") if content else ():
        (tmp_path / (part + ".jsonl")).write_text(content, encoding="utf-8")

    with pytest.raises(BadSource, match=message.replace("; ", ".*")) as caught:
        language_models.read_texts({"folder": str(tmp_path)}, TINY, context=3)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named_with_the_python_that_needs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(BadTask, match=r"no transformers .*pip install transformers"):
        language_models.causal_lm(TINY)


@pytest.mark.parametrize("download", [False, True])
def test_a_model_is_loaded_without_code_of_its_own_and_from_this_machine_alone_by_default(download, monkeypatch):
    calls = []

    def from_pretrained(place, **options):
        calls.append((place, options))
        return SimpleNamespace(eos_token_id=0, __len__=lambda: 1)

    loader = SimpleNamespace(from_pretrained=from_pretrained)
    stand_in = SimpleNamespace(AutoModelForCausalLM=loader, AutoTokenizer=loader)
    monkeypatch.setattr(language_models, "require_package", lambda name: stand_in)
    monkeypatch.setattr(language_models, "TokenScores", lambda net: net)
    given = {"download": True} if download else {}

    language_models.causal_lm("org/model", **given)
    with contextlib.suppress(TypeError):  # the stand-in has no tokens
        language_models.read_texts({"folder": "absent"}, "org/model", context=3, **given)

    safe = {"trust_remote_code": False, "local_files_only": not download}
    assert calls == [
        ("org/model", {"dtype": "float32", "use_safetensors": True, **safe}),
        ("org/model", safe),
    ]
    for path in ("/absent/model", "~/absent", "./absent", "a/b/c"):
        with pytest.raises(BadTask, match="which is no folder; the folder of a model"):
            language_models.causal_lm(path)
        with pytest.raises(BadTask, match="which is no folder"):
            language_models.read_texts({"folder": "absent"}, path, context=3)
    assert len(calls) == 2


@with_packages
def test_a_model_that_is_not_there_is_one_clear_line(tmp_path):
    with pytest.raises(BadTask, match="a folder or name of a causal language model") as caught:
        language_models.causal_lm(str(tmp_path))
    assert "\n" not in str(caught.value)
