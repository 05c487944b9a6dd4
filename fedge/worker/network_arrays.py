"""A network's weights as named arrays: those that are exchanged, loaded and read."""

from typing import TYPE_CHECKING, Dict, List

import numpy as np
import torch
from torch import Tensor, nn

from fedge.worker.refusal import BadCall
from fedge.worker.subnetwork_arrays import Arrays, OwnArrays

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray


def collect_exchanged(net: nn.Module) -> Dict[str, Tensor]:
    """Return a network's tensors that clients and server exchange: all but frozen parameters.

    They share memory with the network.
    """
    every = net.state_dict(keep_vars=True)
    return {
        name: tensor.detach()
        for name, tensor in every.items()
        if tensor.requires_grad or not isinstance(tensor, nn.Parameter)
    }


def load_arrays(net: nn.Module, arrays: Arrays) -> None:
    """Load a model's arrays into its network.

    Raises:
        BadCall: The arrays belong to another model; the network is unchanged.
    """
    copy_arrays(check_arrays(net, arrays), arrays)


def copy_arrays(own: Dict[str, Tensor], arrays: Arrays) -> None:
    """Copy checked arrays into a network's own tensors."""
    for name, tensor in own.items():
        array = np.asarray(arrays[name])
        # An average of integer buffers (batch norm's step counter) is no integer any more.
        tensor.copy_(_to_tensor(array if tensor.is_floating_point() else np.rint(array)))


def check_arrays(net: nn.Module, arrays: Arrays) -> Dict[str, Tensor]:
    """Return the network's own tensors by name if the arrays are of the same model, else raise ``BadCall``."""
    own = collect_exchanged(net)
    if set(arrays) != set(own):
        got = f"arrays called {_shorten_names(list(arrays))}"
        raise BadCall("model arrays", got, f"this model's {len(own)}: {_shorten_names(list(own))}")
    for name, tensor in own.items():
        shape = np.shape(arrays[name])
        if shape != tuple(tensor.shape):
            got = f"{name} of shape {shape}"
            raise BadCall("model arrays", got, f"shape {tuple(tensor.shape)}")
    return own


def _to_tensor(array: "NDArray[Any]") -> Tensor:
    """Return the array as a tensor, without a copy where torch can share its memory."""
    plain = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(plain) if plain.flags.writeable else torch.tensor(plain)


def to_arrays(net: nn.Module) -> OwnArrays:
    """Return a network's exchanged tensors as arrays of their own."""
    return {name: tensor.cpu().numpy().copy() for name, tensor in collect_exchanged(net).items()}


def _shorten_names(names: List[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
