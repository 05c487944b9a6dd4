"""A training as a Flower app does it: a network of torch, an optimiser, and a reply with metrics."""

from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedge.flower.messages import build_message


def make_network() -> torch.nn.Module:
    return torch.nn.Linear(4, 2)


def train_network(steps: int, seen: Callable[[int], None] = lambda _: None) -> dict[str, torch.Tensor]:
    """Train a small network with Adam and return its weights; ``seen`` is called after each step."""
    torch.manual_seed(0)
    net = make_network()
    optimiser = torch.optim.Adam(net.parameters())
    for step in range(steps):
        optimiser.zero_grad()
        net(torch.ones(8, 4)).square().sum().backward()
        optimiser.step()
        seen(step + 1)
    return dict(net.state_dict())


def make_app(steps: int) -> Callable[[Message, Context], Message]:
    """Return the function of a ClientApp that trains ``steps`` steps."""

    def train(message: Message, _context: Context) -> Message:
        weights = train_network(steps)
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 8 * steps})
        return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)

    return train


def make_context(**node: object) -> Context:
    """Return a node's context; keys of its configuration are given with underscores."""
    config = {name.replace("_", "-"): value for name, value in node.items()}
    return Context(run_id=1, node_id=7, node_config=config, state=RecordDict(), run_config={})


def make_message(kind: str = "train", **record: str) -> Message:
    """Return a message to a node, with a record of fedge's if anything is given for it."""
    content = RecordDict({"fedge": ConfigRecord(dict(record))} if record else {})
    return build_message(content, kind, node_id=7)
