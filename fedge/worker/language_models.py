"""Causal language models for task files: fine-tuned as a whole, or by adapters beside frozen weights (LoRA).

An adapter of rank r beside a frozen layer adds (alpha / r) B A to it, with A (r, in) and B (out, r); B starts at zero.
Only A and B are trained and exchanged; the frozen weights are loaded on every board.

Needs torch, transformers and, for adapters, peft, in the Python that trains.

References:
    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685.
"""

import contextlib
import importlib
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple, Union

import numpy as np
from torch import Tensor, nn

from fedge.worker.refusal import one_line
from fedge.worker.sources import BadSource, Data, free_data, read
from fedge.worker.task_shape import BadTask
from fedge.worker.tasks import suggest_cure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tokens = NDArray[np.int64]

Model = Union[str, Mapping[str, Any]]
Encoder = Callable[[str], Sequence[int]]
BYTES = 256
"""Vocabulary of a model that reads bytes."""
PACKAGES = {"transformers": "4.56", "peft": "0.17"}
"""Packages for language models and the oldest version of each that is known to work."""


class TokenScores(nn.Module):
    """Scores of a causal language model in the order of torch's losses: the vocabulary before the places."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores (n, vocabulary, length) of the token after each place, from tokens (n, length)."""
        scores: Tensor = self.net(input_ids=tokens, use_cache=False).logits
        return scores.transpose(1, 2)


def causal_lm(
    model: Model,
    rank: int = 0,
    alpha: float = 16.0,
    dropout: float = 0.0,
    targets: Union[str, Sequence[str]] = "all-linear",
    freeze_a: bool = False,
    *,
    download: bool = False,
) -> nn.Module:
    """Build a causal language model to be fine-tuned.

    Args:
        model: Folder of a model as ``save_pretrained`` writes it, or its name on a hub; or a configuration, such as
            ``{"model_type": "llama", "hidden_size": 64, ...}``, for random weights.
        rank: Rank of the adapters; 0 trains all weights.
        alpha: Scale of an adapter times its rank.
        dropout: Share of an adapter's inputs that are dropped in training.
        targets: Names of the layers that get adapters, or ``all-linear``.
        freeze_a: Whether A stays as it was made, so that only B is trained: then the average of the clients' adapters
            is the average of what they add, and half of the bytes travel.
        download: Whether a model that is not on this machine may be fetched from the hub.

    Returns:
        A module from tokens (n, length) to scores (n, vocabulary, length).

    Raises:
        BadTask: A package is missing, or there is no such model or layer.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about what peft calls of it
        net = _build_language_model(model, rank, alpha=alpha, dropout=dropout, targets=targets, download=download)
    if freeze_a:
        for name, weight in net.named_parameters():
            if ".lora_A." in name:
                weight.requires_grad_(False)
    return TokenScores(net)


def _build_language_model(
    model: Model, rank: int, *, alpha: float, dropout: float, targets: Union[str, Sequence[str]], download: bool
) -> nn.Module:
    transformers = require_package("transformers")
    try:
        if isinstance(model, str):
            place = _find_model("causal_lm", model)
            options = {"dtype": "float32", "use_safetensors": True, **_load_options(download)}
            net = transformers.AutoModelForCausalLM.from_pretrained(place, **options)
        else:
            net = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**model))
        return _add_adapters(net, rank, alpha=alpha, dropout=dropout, targets=targets) if rank > 0 else net
    except BadTask:
        raise
    except Exception as error:  # the libraries can raise anything for a folder or configuration of another form
        right = "a folder or name of a causal language model, or a configuration with its model_type"
        raise BadTask("causal_lm", f"{model!r} ({one_line(error)})", right) from error


def _find_model(where: str, model: str) -> str:
    """Return a model's folder, or its name on a hub; a path to nowhere is not looked up there."""
    folder = Path(model).expanduser()
    if not folder.is_dir() and (model[:1] in "./~" or model.count("/") > 1 or "\\" in model):
        raise BadTask(where, f"{model!r}, which is no folder", "the folder of a model, or a name on a hub")
    return str(folder)


def _load_options(download: bool) -> Dict[str, Any]:
    """Return how anything is loaded from a model's folder: without code of its own."""
    return {"trust_remote_code": False, "local_files_only": not download}


def _add_adapters(
    net: nn.Module, rank: int, alpha: float, dropout: float, targets: Union[str, Sequence[str]]
) -> nn.Module:
    peft = require_package("peft")
    wanted = targets if isinstance(targets, str) else list(targets)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=wanted
    )
    made: nn.Module = peft.get_peft_model(net, config)
    return made


def require_package(name: str) -> Any:
    """Import a package for language models.

    Raises:
        BadTask: It is not installed, or does not work with this Python or torch.
    """
    with contextlib.suppress(BadTask):  # transformers imports torchvision where there is one
        importlib.import_module("fedge.worker.torchvision_shim")
    try:
        return importlib.import_module(name)
    except Exception as error:  # an incompatible release can raise anything
        got = f"no {name} {PACKAGES[name]} or newer, which needs Python 3.10 ({one_line(error)})"
        raise BadTask("causal_lm", got, suggest_cure(error)) from error


def read_texts(source: Mapping[str, Any], model: Model, context: int, *, download: bool = False) -> Data:
    """Read texts as blocks of tokens, each labelled with itself shifted by one token.

    Args:
        source: ``{"folder": path}`` with ``train.jsonl`` and ``test.jsonl``, a JSON object per line with ``text`` and,
            optionally, ``group``: where the text is from, for the partition ``natural``; or what ``sources.read``
            takes.
        model: The model whose tokenizer is used, see ``causal_lm``; bytes are the tokens of a configuration.
        context: Tokens in a block. Texts of a group are joined; what is left over at its end is dropped.
        download: Whether a tokenizer that is not on this machine may be fetched from the hub.

    Raises:
        BadSource: A file is missing or of another form, or has no whole block.
    """
    folder = source.get("folder")
    if folder is None:
        return read(dict(source))
    encode, vocabulary, end = _load_encoder(model, download)
    blocks, groups = {}, {}  # type: Dict[str, Tokens], Dict[str, Tokens]
    for part in ("train", "test"):
        path = Path(folder).expanduser() / (part + ".jsonl")
        blocks[part], groups[part] = _cut_blocks(_join_groups(path, encode, end), context)
        if not len(blocks[part]):
            raise BadSource(str(path), "less text than a block", f"more than {context} tokens in a group")
    train, test = blocks["train"], blocks["test"]
    return free_data(train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:], classes=vocabulary, groups=groups["train"])


def _load_encoder(model: Model, download: bool) -> Tuple[Encoder, int, int]:
    """Return a function from text to tokens, the size of the vocabulary, and the token that ends a text."""
    if not isinstance(model, str):
        return lambda text: list(text.encode("utf-8")), BYTES, ord("\n")
    transformers = require_package("transformers")
    place = _find_model("read_texts", model)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, **_load_options(download))
    except (OSError, ValueError, KeyError) as error:
        raise BadTask("read_texts", f"no tokenizer in {model!r} ({one_line(error)})", "a model with one") from error
    end = tokenizer.eos_token_id
    return lambda text: tokenizer(text)["input_ids"], len(tokenizer), 0 if end is None else int(end)


def _join_groups(path: Path, encode: Encoder, end: int) -> Dict[str, List[int]]:
    joined = {}  # type: Dict[str, List[int]]
    for text, group in _iter_lines(path):
        joined.setdefault(group, []).extend([*encode(text), end])
    return joined


def _iter_lines(path: Path) -> Iterator[Tuple[str, str]]:
    right = 'a line {"text": "...", "group": "..."} for every text; the group may be left out'
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                number += 1
                if line.strip():
                    yield _parse_line(line)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        where = f"{path}, line {number}" if number else str(path)
        raise BadSource(where, f"a file that cannot be read ({one_line(error)})", right) from error


def _parse_line(line: str) -> Tuple[str, str]:
    record = json.loads(line)
    text = record["text"]
    if not isinstance(text, str):
        raise TypeError(f"text is {one_line(text)}")
    return text, str(record.get("group", ""))


def _cut_blocks(joined: Mapping[str, List[int]], context: int) -> "Tuple[Tokens, Tokens]":
    """Return blocks of context + 1 tokens, the last of which is the first of the next, and the group of each."""
    rows, groups = [], []  # type: List[Tokens], List[int]
    for number, tokens in enumerate(joined.values()):
        numbers = np.array(tokens, dtype=np.int64)
        for start in range(0, len(numbers) - context, context):
            rows.append(numbers[start : start + context + 1])
            groups.append(number)
    blocks = np.stack(rows) if rows else np.zeros((0, context + 1), dtype=np.int64)
    return blocks, np.array(groups, dtype=np.int64)
