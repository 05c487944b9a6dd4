"""Train, test and profile one task on named arrays; the same code on a board and in an emulated client."""

import copy
import gc
import math
import time
from contextlib import contextmanager
from typing import Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from fedge.worker import narrow_networks, subnetwork_arrays
from fedge.worker.network_arrays import check_arrays, collect_exchanged, copy_arrays, load_arrays, to_arrays
from fedge.worker.optimizers import AnyOptimizer, TrainingOptions, compute_metric, make_optimizer
from fedge.worker.refusal import TEST_SAMPLES_NEEDED, BadCall, JobStopped, iter_causes
from fedge.worker.sources import UNLABELLED, Data, Labels, class_labels
from fedge.worker.subnetwork_arrays import Arrays, OwnArrays, array_shapes
from fedge.worker.tasks import TrainingTask, cross_entropy, data_shape

TEST_BATCH = 500
"""Upper limit of test samples per batch: bounds memory, no influence on the result."""
TEST_PIXELS = TEST_BATCH * 3 * 32 * 32
"""Upper limit of values per test batch, so that images of 224 x 224 pixels fit into a board's memory too."""
TEST_SCORES = 1 << 25
"""Upper limit of scores per test batch, 134 MB: a language model has a score per token and word of its vocabulary."""
MOST_BATCH = 1 << 16
"""Upper limit of a minibatch: a mistyped size would otherwise exhaust the memory before it is noticed."""
MOST_NARROW = 4
"""Number of narrow networks kept: trades memory against building one again, which takes longer than a step."""
PROFILE_RATE = 0.01
"""Learning rate of profiling steps, which train nothing: small, so that no number overflows."""
TIGHT_MEMORY = (
    "out of memory",  # CUDA's allocator and CUDA itself
    "can't allocate memory",  # the CPU's allocator on Linux
    "not enough memory",  # the CPU's allocator elsewhere, and older releases
    "cannot allocate memory",
    "STATUS_ALLOC_FAILED",  # cuDNN and cuBLAS
    "failed to allocate",
    "NVML_SUCCESS == r",  # CUDA's allocator on boards whose NVML does not answer it
    "NvMapMem",  # the boards' own memory driver
)
"""Messages of a ``RuntimeError`` of torch 1.10 to 2.x when memory is short; the last two occur on Jetsons only."""


class TrainingResult(NamedTuple):
    """Result of a training.

    Attributes:
        arrays: The trained arrays by name; of a narrow network the leading blocks of the full ones
            (``subnetwork_arrays``).
        loss: Mean loss over the steps done.
        accuracy: Mean accuracy over the steps done, 0 to 1.
    """

    arrays: OwnArrays
    loss: float
    accuracy: float


class StepTime(NamedTuple):
    """Time of one step in seconds.

    Attributes:
        fetch_s: Gathering the images and copying them to the device.
        step_s: The step itself.
    """

    fetch_s: float
    step_s: float


def never_stop() -> bool:
    """Return False: never stop."""
    return False


def is_oom(error: Optional[BaseException]) -> bool:
    """Return whether an error, or one of its causes, is a lack of memory, on the CPU or a GPU."""
    for one in iter_causes(error):
        if isinstance(one, MemoryError) or any(c.__name__ == "OutOfMemoryError" for c in type(one).__mro__):
            return True
        if isinstance(one, RuntimeError) and any(text.lower() in str(one).lower() for text in TIGHT_MEMORY):
            return True
    return False


def resolve_device(device: str) -> str:
    """Return the torch device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        BadCall: The name is invalid or the device is missing.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = device.partition(":")
    if device == "cpu":
        return device
    if kind != "cuda" or (number and not number.isdigit()):
        raise BadCall("device", repr(device), "auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        got = f"{device!r}, but torch {torch.__version__} finds no CUDA device"
        raise BadCall("device", got, "cpu, or a torch that was built for this board's CUDA")
    if int(number or 0) >= torch.cuda.device_count():
        raise BadCall("device", repr(device), f"cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    return device


class MinibatchFeed:
    """Makes minibatches from training images kept as bytes in main memory; copies to a GPU use pinned memory."""

    def __init__(self, data: Data, device: torch.device) -> None:
        self._x, self._y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
        self._device = device
        self._scaled = data.is_scaled
        self._mean, self._sd = (torch.tensor(v).reshape(1, -1, 1, 1).to(device) for v in (data.mean, data.sd))
        self._pinned: Optional[Tuple[Tensor, Tensor]] = None

    def minibatch(self, chosen: Labels) -> Tuple[Tensor, Tensor]:
        """Return the samples ``chosen`` on the device.

        Args:
            chosen: Sample indices (n,).

        Returns:
            Normalised float32 images (n, channels, side, side) and labels (n,).
        """
        index = torch.from_numpy(chosen)
        if self._device.type == "cpu":
            return self.normalize(self._x[index]), self._y[index]
        # The buffer is reused only after the previous step, whose end the trainer waited for.
        x, y = self._get_pinned_buffers(len(chosen))
        torch.index_select(self._x, 0, index, out=x)
        torch.index_select(self._y, 0, index, out=y)
        return self.normalize(x.to(self._device, non_blocking=True)), y.to(self._device, non_blocking=True)

    def normalize(self, x: Tensor) -> Tensor:
        """Convert byte images on the device to normalised float32; other samples stay as they are."""
        if not self._scaled:
            return x
        return (x.to(torch.float32) - self._mean) / self._sd

    def release(self) -> None:
        """Free the pinned memory."""
        self._pinned = None

    def _get_pinned_buffers(self, count: int) -> Tuple[Tensor, Tensor]:
        if self._pinned is None or len(self._pinned[1]) != count:
            x = torch.empty((count, *self._x.shape[1:]), dtype=self._x.dtype, pin_memory=True)
            self._pinned = x, torch.empty((count, *self._y.shape[1:]), dtype=self._y.dtype, pin_memory=True)
        return self._pinned


def minibatches(share: Labels, steps: int, batch_size: int, rng: "np.random.Generator") -> Iterator[Labels]:
    """Yield minibatches of exactly ``batch_size`` indices from endless, newly shuffled passes over the share.

    All are full, also across the end of an epoch and for a share smaller than one minibatch (whose samples then occur
    more than once), because a board's cost is counted in full steps and batch norm needs more than one sample.

    The share has sample indices (n,).
    """
    left = share[:0]
    for _ in range(steps):
        while len(left) < batch_size:
            left = np.concatenate([left, rng.permutation(share)])
        yield left[:batch_size]
        left = left[batch_size:]


class Trainer:
    """A task with its data in memory and one network on a device, kept warm between rounds.

    Not thread-safe. On the CPU a seed fixes every bit, for a given number of torch threads. The global random state is
    left unchanged. Errors of torch, such as a lack of memory, are passed on; after ``recover()`` the trainer can be
    used again.
    """

    def __init__(
        self,
        task: TrainingTask,
        data: Data,
        device: str = "cpu",
        *,
        threads: Optional[int] = None,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Build the network and keep the data.

        The device is one that ``resolve_device`` takes; ``threads`` sets the torch threads of this process.

        Raises:
            BadCall: The device is missing.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        self.task = task
        self.device = torch.device(resolve_device(device))
        self.now_s = now_s
        self.shape = data_shape(data)
        self._net = self._make_network(seed=0).to(self.device)
        self._feed = MinibatchFeed(data, self.device)
        self._test_x, self._test_y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
        self._training: Optional[TrainingSession] = None
        self._narrow: Dict[float, nn.Module] = {}
        """Narrow networks by width; kept, since building one takes longer than a step."""
        self.labels, self.test_labels = class_labels(data.train_y), class_labels(data.test_y)
        self.groups = data.groups
        self.n_classes = data.classes

    @property
    def buffers(self) -> FrozenSet[str]:
        """Names of the arrays that are statistics or counters, such as batch norm's."""
        return frozenset(name for name, _ in self._net.named_buffers())

    @property
    def n_train(self) -> int:
        """Number of training samples."""
        return len(self.labels)

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return len(self._test_y)

    def initial_arrays(self, seed: int) -> OwnArrays:
        """Return a freshly initialised model on the CPU: parameters and buffers by name, in the model's own order.

        Frozen parameters are not among them: every client has those of seed 0.
        """
        return to_arrays(self._make_network(seed))

    def start(self, arrays: Arrays, share: Optional[Labels], seed: int, options: TrainingOptions) -> "TrainingSession":
        """Begin a training; one begun earlier is ended, as it is by ``evaluate``.

        The arrays are the full model's, or their leading part that contains the width. ``share`` are indices of the
        samples to train on (None: all); ``seed`` fixes the sample order and dropout.

        Raises:
            BadCall: There are no samples or steps, an index is out of range, or the arrays belong to another model.
            CannotNarrow: The network cannot have the width.
            ShapeMismatch: The arrays of a narrow training belong to another model, or are narrower than it.
        """
        chosen = self._check_share(share, options)
        net = self._prepare_network(arrays, options.width)
        net.train()
        order = minibatches(chosen, options.steps, options.batch_size, np.random.default_rng(seed))
        self._training = TrainingSession(self, net=net, order=order, seed=seed, options=options)
        return self._training

    def narrow_shapes(self, width: float) -> Dict[str, Tuple[int, ...]]:
        """Return the shapes of a trained narrow model's arrays, by name.

        Raises:
            CannotNarrow: The network cannot have the width.
        """
        return _exchanged_shapes(self._get_narrow_network(width))

    def evaluate(
        self, arrays: Arrays, stop: Callable[[], bool] = never_stop, share: Optional[Labels] = None
    ) -> Tuple[float, float]:
        """Evaluate a model on the whole test set, or on its samples ``share``, at least one.

        ``stop`` is checked before each batch.

        Returns:
            Mean loss and accuracy (0 to 1).

        Raises:
            JobStopped: ``stop`` was true.
            BadCall: The arrays belong to another model, or there are no test samples.
        """
        chosen = None if share is None else torch.from_numpy(share)
        test_x, test_y = (each if chosen is None else each[chosen] for each in (self._test_x, self._test_y))
        if not len(test_y):
            raise BadCall("evaluate", "no test samples", TEST_SAMPLES_NEEDED)
        self._load_network(arrays)
        self._net.eval()
        loss, right, counted = 0.0, 0.0, 0.0
        with torch.no_grad():
            batch = self._choose_test_batch(test_x)
            for start in range(0, len(test_y), batch):
                if stop():
                    raise JobStopped(f"stopped after {start} of {len(test_y)} test samples")
                x, y = test_x[start : start + batch], test_y[start : start + batch].to(self.device)
                scores, labelled = self._compute_scores(x), _labelled_share(y)
                if labelled:
                    loss += labelled * self._total_loss(scores, y)
                    right += labelled * self._total_metric(scores, y)
                    counted += labelled * len(y)
        return loss / (counted or math.nan), right / (counted or math.nan)

    def profile(
        self, steps: int, batch_size: int, kind: str = "train", stop: Callable[[], bool] = never_stop
    ) -> List[StepTime]:
        """Time steps on a copy of the model; model, training and random state stay as they are.

        ``kind`` is ``train`` or ``infer``. ``stop`` is checked before each step; true ends the profile early.

        Raises:
            BadCall: An argument is out of range.
        """
        if kind not in {"train", "infer"} or steps < 1 or not 1 <= batch_size <= MOST_BATCH:
            got = f"{steps} minibatches of {batch_size} to {kind!r}"
            raise BadCall("profile", got, f"at least one of each, to 'train' or to 'infer', and {MOST_BATCH} at most")
        times: List[StepTime] = []
        with self.isolate_random_state():
            seed_device(self.device, 0)
            work = self._make_profile_step(kind, TrainingOptions(steps, batch_size, PROFILE_RATE))
            for chosen in minibatches(np.arange(self.n_train), steps, batch_size, np.random.default_rng(0)):
                if stop():
                    break
                begin_s = self.synchronized_time_s()
                x, y = self._feed.minibatch(chosen)
                fetched_s = self.synchronized_time_s()
                work(x, y)
                times.append(StepTime(fetched_s - begin_s, self.synchronized_time_s() - fetched_s))
        return times

    def recover(self) -> None:
        """End the current training and free all memory that is not model or data.

        Call it when the error is no longer handled (after the ``except``): its traceback holds tensors.
        """
        self._end_training()
        self._feed.release()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def isolate_random_state(self) -> Iterator[None]:
        """Restore the global random state at the end of the block."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            yield

    def synchronized_time_s(self) -> float:
        """Return the time in seconds once the device has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.now_s()

    def minibatch(self, chosen: Labels) -> Tuple[Tensor, Tensor]:
        """Return the training samples ``chosen``, normalised, and their labels, on the device."""
        return self._feed.minibatch(chosen)

    def arrays(self) -> OwnArrays:
        """Return the current model: of the last training or test, or freshly initialised."""
        return to_arrays(self._net)

    def _make_profile_step(self, kind: str, options: TrainingOptions) -> Callable[[Tensor, Tensor], object]:
        net = copy.deepcopy(self._net)
        if kind == "train":
            return make_optimizer(net.train(), self.task, options).step
        net.eval()

        def infer(x: Tensor, _: Tensor) -> object:
            with torch.no_grad():
                return net(x).argmax(1).cpu()

        return infer

    def _end_training(self) -> None:
        if self._training is not None:
            self._training.end()
        self._training = None

    def _check_share(self, share: Optional[Labels], options: TrainingOptions) -> Labels:
        chosen = np.arange(self.n_train) if share is None else np.asarray(share)
        if not chosen.size or options.steps < 1 or not 1 <= options.batch_size <= MOST_BATCH:
            got = f"{chosen.size} samples, {options.steps} steps of {options.batch_size}"
            raise BadCall("training", got, f"at least one of each, and {MOST_BATCH} in a step at most")
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= self.n_train:
            got = f"a share of {chosen.dtype} {chosen.shape}, from {chosen.min()} to {chosen.max()}"
            raise BadCall("training", got, f"a row of indices from 0 to {self.n_train - 1}")
        return chosen.astype(np.int64, copy=False)

    def _make_network(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            seed_device(torch.device("cpu"), seed)
            return self.task.build(self.shape)

    def _compute_scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self._net(self._feed.normalize(x.to(self.device)))
        return scores

    def _choose_test_batch(self, samples: Tensor) -> int:
        """Return the samples of a test batch, so that neither they nor their scores exceed their limit."""
        per_sample = self._compute_scores(samples[:1]).numel()
        limits = TEST_BATCH, TEST_PIXELS // max(1, samples[0].numel()), TEST_SCORES // max(1, per_sample)
        return max(1, min(limits))

    def _total_loss(self, scores: Tensor, y: Tensor) -> float:
        if self.task.loss is cross_entropy and y.dim() == 1:  # summed by torch: one rounding less than a mean times n
            return float(nn.functional.cross_entropy(scores, y, reduction="sum"))
        return float(self.task.loss(scores, y)) * len(y)

    def _total_metric(self, scores: Tensor, y: Tensor) -> float:
        if self.task.metric is None and y.dim() == 1:
            return int((scores.argmax(1) == y).sum())
        return float(compute_metric(self.task, scores, y)) * len(y)

    def _load_network(self, arrays: Arrays) -> None:
        own = check_arrays(self._net, arrays)
        self._end_training()
        copy_arrays(own, arrays)

    def _prepare_network(self, arrays: Arrays, width: float) -> nn.Module:
        """Return the network to train, with its arrays loaded: the full one, or a narrow one."""
        if width == 1.0:
            self._load_network(arrays)
            return self._net
        subnetwork_arrays.leading_slices(_exchanged_shapes(self._net), array_shapes(arrays))
        self._end_training()
        net = self._get_narrow_network(width)
        load_arrays(net, subnetwork_arrays.take_leading(arrays, self.narrow_shapes(width)))
        return net

    def _get_narrow_network(self, width: float) -> nn.Module:
        if width not in self._narrow:
            while len(self._narrow) >= MOST_NARROW:
                del self._narrow[next(iter(self._narrow))]
            # Adapters share the frozen weights of the network that is there; others are narrowed on the CPU.
            full = self._net if narrow_networks.find_adapters(self._net) else self._make_network(seed=0)
            self._narrow[width] = narrow_networks.narrow_network(full, width, self.shape).to(self.device)
        return self._narrow[width]


class TrainingSession:
    """A client's training in a round, done in parts; ended by the trainer's next start, test or recovery."""

    def __init__(
        self, trainer: Trainer, net: nn.Module, order: Iterator[Labels], seed: int, options: TrainingOptions
    ) -> None:
        self.steps = options.steps
        self._trainer = trainer
        self._net: Optional[nn.Module] = net
        self._descent: Optional[AnyOptimizer] = make_optimizer(net, trainer.task, options)
        self._order = order
        self._seen: List[Tuple[float, float]] = []
        with trainer.isolate_random_state():
            seed_device(trainer.device, seed)
            self._random = _random_state(trainer.device)

    @property
    def done(self) -> int:
        """Number of steps done so far."""
        return len(self._seen)

    def advance(
        self, steps: int, stop: Callable[[], bool] = never_stop, limit_s: Optional[float] = None
    ) -> List[float]:
        """Do the next steps and return the seconds of each step done: fewer than ``steps`` if fewer are left.

        With ``limit_s``, a step is begun only if it fits into the limit when it takes as long as the last one, but at
        least one is done. The time spent in ``stop`` counts towards the limit, but not towards any step.

        Raises:
            BadCall: This training was ended.
        """
        descent, trainer = self._require_open(), self._trainer
        seconds: List[float] = []
        with trainer.isolate_random_state():
            _set_random_state(trainer.device, self._random)
            begin_s = trainer.synchronized_time_s()
            for _ in range(min(steps, self.steps - self.done)):
                if stop():
                    break
                last_s = trainer.now_s()  # ``stop`` leaves the device idle
                if limit_s is not None and seconds and last_s - begin_s + seconds[-1] > limit_s:
                    break
                self._seen.append(descent.step(*trainer.minibatch(next(self._order))))
                seconds.append(trainer.synchronized_time_s() - last_s)
            self._random = _random_state(trainer.device)
        return seconds

    def result(self) -> TrainingResult:
        """Return the result of all steps so far.

        Raises:
            BadCall: No step was done, or this training was ended.
        """
        self._require_open()
        if not self._seen:
            raise BadCall("training", "no minibatch done", "at least one before the result is asked for")
        loss, accuracy = np.mean(self._seen, axis=0)
        assert self._net is not None, "it goes with the descent"
        return TrainingResult(to_arrays(self._net), float(loss), float(accuracy))

    def end(self) -> None:
        """Free the memory that only training needs."""
        for weight in [] if self._descent is None else self._descent.weights:
            weight.grad = None  # the trainer keeps the network
        self._descent = self._net = None

    def _require_open(self) -> "AnyOptimizer":
        if self._descent is None:
            raise BadCall("training", "one that was ended by another start, test or recovery", "begin it again")
        return self._descent


def _exchanged_shapes(net: nn.Module) -> Dict[str, Tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in collect_exchanged(net).items()}


def _labelled_share(y: Tensor) -> float:
    """Return the share of a batch's places that have a label, over which the mean of its loss is."""
    return 1.0 if y.dim() == 1 or y.is_floating_point() else int((y != UNLABELLED).sum()) / max(1, y.numel())


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the CPU's and the device's generators. ``torch.manual_seed`` seeds every kind of device, for 2 ms a call."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _random_state(device: torch.device) -> List[Tensor]:
    state = [torch.random.get_rng_state()]
    return [*state, torch.cuda.get_rng_state(device)] if device.type == "cuda" else state


def _set_random_state(device: torch.device, state: List[Tensor]) -> None:
    torch.random.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
