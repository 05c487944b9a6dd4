"""Networks for text: a transformer that classifies, and an LSTM that predicts the next character at every place.

Attention is written out instead of taken from torch, whose layers differ between torch 1.10 and 2.x.
"""

from torch import Tensor, nn

from fedge.worker.task_shape import VOCABULARY, Shape

FAR = -1e4
"""Attention score of padding: large enough to count for nothing, and finite, so that an empty text gives no NaN."""


class AttentionBlock(nn.Module):
    """Self-attention and two dense layers, each after a layer normalisation and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.split, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Return the block's output, of the shape of ``x`` (n, length, width); ``padding`` is (n, 1, 1, length)."""
        n, length, width = x.shape
        parts = self.split(self.norm_1(x)).reshape((n, length, 3, self.heads, width // self.heads))
        query, key, value = parts.permute((2, 0, 3, 1, 4)).unbind(0)
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        attended = scores.masked_fill(padding, FAR).softmax(-1) @ value
        x = x + self.join(attended.transpose(1, 2).reshape(n, length, width))
        out: Tensor = x + self.dense(self.norm_2(x))
        return out


class TextTransformer(nn.Module):
    """Classifies a text by the mean of its words' vectors after some blocks of attention."""

    def __init__(self, length: int, classes: int, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([AttentionBlock(width, heads) for _ in range(blocks)])
        self.scores = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return scores (n, classes) of texts given as numbers of words (n, length)."""
        padding = words == 0
        x = self.words(words) + self.places.weight
        for block in self.blocks:
            x = block(x, padding[:, None, None])
        kept = (~padding)[:, :, None].to(x.dtype)
        scores: Tensor = self.scores((x * kept).sum(1) / kept.sum(1).clamp(min=1.0))
        return scores


class CharacterLstm(nn.Module):
    """Predicts the next character at every place of a text from all characters before it."""

    def __init__(self, symbols: int, embedding: int = 32, width: int = 128) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, embedding)
        self.cell = nn.LSTM(embedding, width, batch_first=True)
        self.scores = nn.Linear(width, symbols)

    def forward(self, text: Tensor) -> Tensor:
        """Return scores (n, symbols, length) of texts given as numbers of characters (n, length)."""
        scores: Tensor = self.scores(self.cell(self.symbols(text))[0])
        return scores.transpose(1, 2)


def text_transformer(shape: Shape) -> nn.Module:
    """Build a text classifier of 0.6 million parameters, most of them the words' vectors."""
    return TextTransformer(shape.sample[0], shape.classes)


def character_lstm(shape: Shape) -> nn.Module:
    """Build a language model for characters, 96 thousand parameters for 80 characters."""
    return CharacterLstm(shape.classes)
