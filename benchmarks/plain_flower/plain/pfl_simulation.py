"""The plain Flower app's training as a program of ``pfl``, run by the Python of an environment that has ``pfl``.

    python pfl_simulation.py SAMPLES CLIENTS SAMPLED ROUNDS MODEL CHANNELS SIZE BATCH RATE

Simulated as pfl's quickstart does: one process, federated averaging, a test of the global model after every round.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

APP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(APP), str(APP.parents[1])]

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.central_evaluation import CentralEvaluationCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.metrics import Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402

from plain.task import images, network  # noqa: E402


class TestedNetwork(nn.Module):
    """The network with the loss and the metrics that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a minibatch."""
        self.train()
        return nn.functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        """Return loss and accuracy, to be weighted by the number of samples."""
        self.eval()
        scores = self.net(x)
        loss = nn.functional.cross_entropy(scores, y, reduction="sum").item()
        return {"loss": Weighted(loss, len(y)), "accuracy": Weighted(int((scores.argmax(1) == y).sum()), len(y))}


def main() -> None:
    """Run all rounds."""
    folder, clients, sampled, rounds, name, channels, size, batch, rate = sys.argv[1:]
    torch.set_num_threads(1)
    net = TestedNetwork(network(name, int(channels), int(size)))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))

    def load_client(number: int) -> Dataset:
        return Dataset(raw_data=images(Path(folder) / str(number), "train"), user_id=str(number))

    sampler = get_user_sampler("minimize_reuse", list(range(int(clients))))
    backend = SimulatedBackend(FederatedDataset(load_client, sampler), FederatedDataset(load_client, sampler))
    test = CentralEvaluationCallback(Dataset(raw_data=images(Path(folder), "test")), NNEvalHyperParams(None))
    training = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=float(rate), local_batch_size=int(batch))
    FederatedAveraging().run(
        NNAlgorithmParams(
            int(rounds), evaluation_frequency=sys.maxsize, train_cohort_size=int(sampled), val_cohort_size=0
        ),
        backend,
        model,
        model_train_params=training,
        model_eval_params=NNEvalHyperParams(None),
        callbacks=[test],
    )


if __name__ == "__main__":
    main()
