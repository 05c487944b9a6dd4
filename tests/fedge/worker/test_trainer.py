"""The trainer: the same bits for a seed, stops and limits, profiles without a trace, life after a lack of memory."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from fedge.worker import sources  # noqa: E402  torch first
from fedge.worker.architectures import MODELS  # noqa: E402
from fedge.worker.optimizers import TrainingOptions, choose_half_type, make_gradient_scaler  # noqa: E402
from fedge.worker.refusal import BadCall, JobStopped  # noqa: E402
from fedge.worker.tasks import BadTask, TrainingTask, cross_entropy, data_shape  # noqa: E402
from fedge.worker.trainer import (  # noqa: E402
    TEST_SCORES,
    Trainer,
    is_oom,
    minibatches,
    never_stop,
    resolve_device,
)

OPTIONS = TrainingOptions(steps=4, batch_size=8, learning_rate=0.05)
SHARE = np.arange(0, 60, 2)
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"), id="cuda"
)


def with_batch_norm(shape):
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(shape.channels, 4, 3),
        nn.BatchNorm2d(4),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(4 * (shape.side - 2) ** 2, shape.classes),
    )


def task_of(build, loss=cross_entropy):
    return TrainingTask("test", "", build, loss, None)


def noise(samples=64, side=8):
    return sources.make_synthetic(samples, 1, side, 10)


def made(build=with_batch_norm, device="cpu", **given):
    return Trainer(task_of(build, **given), noise(), device)


def same(one, other):
    return list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)


def begun(trainer, options=OPTIONS):
    return trainer.start(trainer.initial_arrays(1), SHARE, 5, options)


def trained(trainer, parts, options=OPTIONS, between=lambda: None):
    training = begun(trainer, options)
    for steps in parts:
        training.advance(steps)
        between()
    return training.result()


class Counter:
    """A ``stop`` that says yes when it is asked for the n-th time."""

    def __init__(self, after):
        self.left = after

    def __call__(self):
        self.left -= 1
        return self.left < 0


class Clock:
    """A clock on which every look lasts as long as the next of the steps given."""

    def __init__(self, *ticks):
        self.now, self.ticks = 100.0, list(ticks)

    def __call__(self):
        self.now += self.ticks.pop(0) if self.ticks else 0.0
        return self.now


@pytest.mark.parametrize("build", [MODELS["digits-cnn"], MODELS["small-cnn"], with_batch_norm])
def test_a_seed_fixes_every_bit_however_the_training_is_cut(build):
    trainer = made(build)
    whole = trained(trainer, [4])

    def other_work():
        trainer.profile(2, 4)
        torch.rand(3)

    cut = trained(trainer, [1, 2, 0, 1], between=other_work)

    assert same(whole.arrays, cut.arrays)
    assert (whole.loss, whole.accuracy) == (cut.loss, cut.accuracy)


def test_the_global_random_state_is_left_as_it_was():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    trainer = made()
    trainer.evaluate(trained(trainer, [4]).arrays)
    trainer.profile(2, 4)
    assert torch.equal(torch.rand(3), expected)


def check_against_torch(build, mu, rtol, atol):
    """Hold six steps against those of ``torch.optim.SGD`` on the proximal loss."""
    data = noise()
    trainer = Trainer(task_of(build), data)
    options = TrainingOptions(6, 16, 0.05, 0.9, mu)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        net = build(data_shape(data))
    anchors = [w.detach().clone() for w in net.parameters()]
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for chosen in minibatches(SHARE, 6, 16, np.random.default_rng(9)):
        x = (torch.from_numpy(data.train_x[chosen]).float() - 127.5) / 73.9
        pull = sum(((w - anchors[i]) ** 2).sum() for i, w in enumerate(net.parameters()))
        sgd.zero_grad()
        (cross_entropy(net(x), torch.from_numpy(data.train_y[chosen])) + mu / 2 * pull).backward()
        sgd.step()

    training = trainer.start(trainer.initial_arrays(2), SHARE, 9, options)
    training.advance(6)

    for name, array in training.result().arrays.items():
        np.testing.assert_allclose(array, net.state_dict()[name].numpy(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_the_steps_are_those_of_torchs_own_sgd_on_the_proximal_loss(mu):
    check_against_torch(MODELS["digits-cnn"], mu, rtol=1e-4, atol=1e-5)


def test_weights_whose_gradients_are_one_tensor_keep_their_own_momentum():
    class Sum(torch.nn.Module):
        def __init__(self, shape):
            super().__init__()
            self.one = torch.nn.Parameter(torch.zeros(shape.side**2, shape.classes))
            self.other = torch.nn.Parameter(torch.zeros(shape.side**2, shape.classes))

        def forward(self, x):
            return x.flatten(1) @ (self.one + self.other)

    check_against_torch(Sum, 0.0, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("count", "batch_size"), [(11, 8), (2, 5)])
def test_minibatches_are_full_and_those_of_whole_epochs_shuffled_one_after_the_other(count, batch_size):
    share, rng = np.arange(3, 3 + count), np.random.default_rng(4)
    epochs = np.concatenate([rng.permutation(share) for _ in range(20)])
    batches = list(minibatches(share, 5, batch_size, np.random.default_rng(4)))
    assert np.array_equal(batches, epochs[: 5 * batch_size].reshape(5, batch_size))


def test_stop_is_asked_before_every_minibatch_and_training_ends_after_its_steps():
    trainer = made()
    training = begun(trainer)
    assert training.advance(4, lambda: True) == []
    assert [len(training.advance(4, Counter(2))), len(training.advance(4)), len(training.advance(4))] == [2, 2, 0]
    assert training.done == training.steps == 4
    assert same(training.result().arrays, trained(trainer, [4]).arrays)


def test_a_limit_allows_the_minibatches_that_fit_and_one_at_least():
    def done(limit_s, *seconds):
        trainer = made()
        training = begun(trainer)
        looks = [tick for one in seconds for tick in (0.0, one)]  # each minibatch begins and ends with a look
        trainer.now_s = Clock(0.0, *looks)
        return training.advance(4, never_stop, limit_s)

    assert done(1.0, 5.0, 1.0, 1.0, 1.0) == [5.0]
    assert done(3.0, 1.0, 1.0, 1.0, 1.0) == [1.0, 1.0, 1.0]
    assert done(2.5, 1.0, 0.5, 1.0, 1.0) == [1.0, 0.5, 1.0]
    assert done(None, 9.0, 9.0, 9.0, 9.0) == [9.0] * 4


def test_a_test_of_large_images_takes_few_at_once_and_has_no_result_when_it_is_stopped(monkeypatch):
    seen = []

    class Looking(torch.nn.Linear):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x.flatten(1))

    trainer = Trainer(task_of(lambda shape: Looking(shape.side**2, shape.classes)), noise(8 * 30, side=5))
    monkeypatch.setattr("fedge.worker.trainer.TEST_PIXELS", 7 * 25 + 3)
    trainer.evaluate(trainer.initial_arrays(0))
    assert seen == [1, 7, 7, 7, 7, 2]  # the first to see how many scores a sample has
    with pytest.raises(JobStopped, match="after 7 of 30 test samples"):
        trainer.evaluate(trainer.initial_arrays(0), Counter(1))


def test_a_test_batch_is_bounded_by_its_scores_as_well():
    vocabulary, length, sizes = 150_000, 64, []

    class Talker(torch.nn.Module):
        """Scores as large as a language model's, which take no memory."""

        def forward(self, tokens):
            sizes.append(len(tokens))
            return torch.zeros(1).expand(len(tokens), vocabulary, length)

    def loss(scores, labels):
        assert scores.numel() <= TEST_SCORES
        return scores[:, 0, 0].mean() + labels.float().mean()

    tokens = np.arange(20 * length, dtype=np.int64).reshape(20, length)
    data = sources.free_data(tokens, tokens, tokens, tokens, classes=vocabulary)
    task = task_of(lambda shape: Talker(), loss)._replace(metric=lambda scores, labels: torch.tensor(0.5))

    assert Trainer(task, data).evaluate({}) == (tokens.mean(), 0.5)
    assert sizes[1:] == [3] * 6 + [2]


@pytest.mark.parametrize("scaled", [True, False])
def test_without_test_samples_it_trains_and_refuses_to_evaluate(scaled):
    plain = noise()
    if not scaled:
        plain = plain._replace(train_x=plain.train_x.astype(np.float32), mean=(), sd=())
    data = plain._replace(test_x=plain.train_x[:0], test_y=plain.test_y[:0])
    trainer = Trainer(task_of(with_batch_norm), sources.check_data(data, "empty"))

    assert trained(trainer, [1]).arrays.keys() == trainer.initial_arrays(0).keys()
    with pytest.raises(BadCall, match="evaluate: got no test samples; at least one: fewer clients"):
        trainer.evaluate(trainer.initial_arrays(0))


def test_a_loss_of_ones_own_is_trained_and_tested_with():
    def double(scores, y):
        return 2 * cross_entropy(scores, y)

    plain, doubled = made(), made(loss=double)
    start = plain.initial_arrays(1)

    assert doubled.evaluate(start)[0] == pytest.approx(2 * plain.evaluate(start)[0])
    one = trained(plain, [1], OPTIONS._replace(learning_rate=0.1))
    other = trained(doubled, [1], OPTIONS._replace(learning_rate=0.05))
    assert one.loss * 2 == pytest.approx(other.loss)
    for name in one.arrays:
        np.testing.assert_allclose(one.arrays[name], other.arrays[name], rtol=1e-4, atol=1e-6)


def test_places_without_a_label_count_neither_as_right_nor_as_wrong(monkeypatch):
    class Echo(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = torch.nn.Embedding(5, 5)
            self.scores.weight.data = 50 * torch.eye(5)

        def forward(self, x):
            return self.scores(x).transpose(1, 2)

    x = np.arange(24).reshape(4, 6) % 5
    y = x.copy()
    y[:, 2:4], y[:, 5] = sources.UNLABELLED, (x[:, 5] + 1) % 5
    data = sources.check_data(sources.free_data(x, y, x, y, classes=5), "test")
    trainer = Trainer(TrainingTask("echo", "", lambda _: Echo(), cross_entropy, None), data)
    training = trainer.start(trainer.arrays(), None, 0, TrainingOptions(1, 4, 0.0))
    training.advance(1)

    assert training.result().accuracy == trainer.evaluate(trainer.arrays())[1] == 0.75

    y[0, 1:], y[1] = sources.UNLABELLED, sources.UNLABELLED  # 7 of 9 are right, in batches of unlike many
    trainer = Trainer(trainer.task, data._replace(test_y=y))
    whole = trainer.evaluate(trainer.arrays())
    monkeypatch.setattr("fedge.worker.trainer.TEST_BATCH", 1)
    assert trainer.evaluate(trainer.arrays()) == pytest.approx(whole)
    assert whole[1] == pytest.approx(7 / 9)


def test_weights_that_are_frozen_or_unused_do_not_stop_training():
    class Odd(torch.nn.Module):
        def __init__(self, shape):
            super().__init__()
            self.used = torch.nn.Linear(shape.side**2, shape.classes)
            self.unused = torch.nn.Linear(2, 2)
            self.used.bias.requires_grad_(False)

        def forward(self, x):
            return self.used(x.flatten(1))

    trainer = made(Odd)
    start, after = trainer.initial_arrays(1), trained(trainer, [4]).arrays
    changed = [name for name in start if not np.array_equal(start[name], after[name])]
    assert changed == ["used.weight"]


@pytest.mark.parametrize("kind", ["train", "infer"])
def test_a_profile_times_fetching_and_step_and_leaves_no_trace(kind):
    trainer = made()
    training = begun(trainer)
    training.advance(2)
    before = trainer.arrays()
    trainer.now_s = Clock(0.0, 1.0, 10.0, 0.0, 2.0, 20.0)

    assert trainer.profile(2, 8, kind) == [(1.0, 10.0), (2.0, 20.0)]
    assert same(trainer.arrays(), before)
    training.advance(2)
    assert same(training.result().arrays, trained(trainer, [4]).arrays)


def test_a_profile_stops_when_it_is_told_to_and_one_of_nothing_is_refused():
    trainer = made()
    assert len(trainer.profile(5, 4, stop=Counter(3))) == 3
    for asked in ((0, 4, "train"), (3, 0, "infer"), (3, 4, "test"), (1, 10**15, "train")):
        with pytest.raises(BadCall, match="at least one of each, to 'train' or to 'infer'"):
            trainer.profile(*asked)


@pytest.mark.parametrize("end", [lambda t: t.start(t.initial_arrays(0), None, 0, OPTIONS), lambda t: t.recover()])
def test_a_training_that_was_ended_says_so_and_one_before_its_first_minibatch_has_no_result(end):
    trainer = made()
    training = begun(trainer)
    with pytest.raises(BadCall, match="no minibatch done"):
        training.result()
    training.advance(1)
    end(trainer)
    for go_on in (lambda: training.advance(1), training.result):
        with pytest.raises(BadCall, match="one that was ended by another start, test or recovery; begin it again"):
            go_on()


def test_a_refused_start_leaves_the_training_before_alone():
    trainer = made()
    training = begun(trainer)
    training.advance(2)
    with pytest.raises(BadCall):
        trainer.start({}, SHARE, 5, OPTIONS)
    training.advance(2)
    assert same(training.result().arrays, trained(trainer, [4]).arrays)


@pytest.mark.parametrize(
    ("share", "options", "said"),
    [
        ([], OPTIONS, "0 samples, 4 steps of 8; at least one of each"),
        ([1], OPTIONS._replace(steps=0), "1 samples, 0 steps of 8"),
        ([1], OPTIONS._replace(batch_size=0), "at least one of each"),
        ([1], OPTIONS._replace(batch_size=10**15), "65536 in a step at most"),
        ([64], OPTIONS, "from 64 to 64; a row of indices from 0 to 63"),
        ([-1], OPTIONS, "a row of indices from 0 to 63"),
        ([1.5], OPTIONS, "a share of float64"),
        ([[1]], OPTIONS, "a row of indices"),
    ],
)
def test_training_on_nothing_or_on_samples_that_are_not_there_is_refused(share, options, said):
    trainer = made()
    with pytest.raises(BadCall, match=said):
        trainer.start(trainer.initial_arrays(0), np.array(share), 0, options)


def test_arrays_of_another_model_are_refused_by_name():
    trainer = made()
    with pytest.raises(BadCall, match=r"model arrays: got arrays called a; this model's 9: 0\.weight, 0\.bias"):
        trainer.evaluate({"a": np.zeros(3)})
    with pytest.raises(BadCall, match=r"0\.bias of shape \(2,\); shape \(4,\)"):
        trainer.evaluate(dict(trainer.initial_arrays(0), **{"0.bias": np.zeros(2)}))


def test_arrays_may_be_read_only_of_another_type_or_turned_round():
    trainer = made()
    start = trainer.initial_arrays(0)
    expected = trainer.evaluate(start)
    odd = {name: array.astype(">f8")[::-1].copy()[::-1] if array.ndim else array for name, array in start.items()}
    for array in odd.values():
        array.flags.writeable = False
    assert trainer.evaluate(odd) == expected


def test_the_given_arrays_and_the_result_share_no_memory_with_the_model():
    trainer = made()
    start = trainer.initial_arrays(1)
    before = {name: array.copy() for name, array in start.items()}
    training = trainer.start(start, SHARE, 5, OPTIONS)
    training.advance(2)
    first = training.result().arrays
    kept = {name: array.copy() for name, array in first.items()}
    training.advance(2)
    assert same(start, before)
    assert same(first, kept)


def test_counters_stay_integers_also_after_averaging():
    trainer = made()
    arrays = dict(trainer.initial_arrays(0), **{"1.num_batches_tracked": np.float64(2.6)})
    training = trainer.start(arrays, SHARE, 0, OPTIONS)
    training.advance(4)
    counter = training.result().arrays["1.num_batches_tracked"]
    assert (counter.dtype, counter) == (np.int64, 7)
    assert trainer.buffers == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_the_best_device_is_found_and_an_absent_one_or_another_name_refused(monkeypatch):
    for text in ("gpu", "cuda:x", "cuda:-1", ""):
        with pytest.raises(BadCall, match="auto, cpu, cuda or cuda:N"):
            resolve_device(text)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [resolve_device("auto"), resolve_device("cpu")] == ["cpu", "cpu"]
    with pytest.raises(BadCall, match="finds no CUDA device; cpu, or a torch that was built for this board's CUDA"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [resolve_device("auto"), resolve_device("cuda"), resolve_device("cuda:1")] == ["cuda", "cuda", "cuda:1"]
    with pytest.raises(BadCall, match="got 'cuda:2'; cuda:0 to cuda:1"):
        resolve_device("cuda:2")


class OutOfMemoryError(RuntimeError):
    """Called as in torch from 1.13 on."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("any text"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 3.87 GiB total capacity)"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:73] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("[enforce fail at CPUAllocator.cpp:68] . DefaultCPUAllocator: not enough memory: you tried ..."),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/opt/pytorch/c10/cuda/CUDACachingAllocator.cpp"'),
    ],
    ids=lambda error: str(error)[:30],
)
def test_a_lack_of_memory_is_told_from_its_error_and_from_what_it_caused(error):
    wrapped = BadTask("my_task.py, line 3", "RuntimeError", "mend it")
    wrapped.__cause__ = error
    assert is_oom(error)
    assert is_oom(wrapped)


@pytest.mark.parametrize(
    "error",
    [None, ValueError("out of memory"), RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("x")],
    ids=repr,
)
def test_another_error_is_no_lack_of_memory(error):
    assert not is_oom(error)


class Starving(torch.nn.Linear):
    """A network that asks for more memory than there is while it is ``hungry``."""

    hungry = False

    def forward(self, x):
        self.seen = weakref.ref(x)
        if Starving.hungry:
            torch.empty(1 << 58, dtype=torch.uint8, device=x.device)
        return super().forward(x.flatten(1))


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_after_a_lack_of_memory_the_trainer_is_usable_and_gives_the_same_bits(device, monkeypatch):
    trainer = made(lambda shape: Starving(shape.side**2, shape.classes), device)
    expected = trained(trainer, [4]).arrays
    training = begun(trainer)
    training.advance(2)
    monkeypatch.setattr(Starving, "hungry", True)
    with pytest.raises(RuntimeError) as caught:
        training.advance(2)
    assert is_oom(caught.value)
    monkeypatch.setattr(Starving, "hungry", False)
    del caught  # its traceback holds the minibatch
    trainer.recover()

    assert trainer._net.seen() is None
    assert same(trained(trainer, [4]).arrays, expected)
    assert len(trainer.profile(2, 4)) == 2


@pytest.mark.parametrize("device", [CUDA])
def test_on_a_gpu_training_is_much_as_on_the_cpu_and_memory_is_given_back(device):
    def without_dropout(shape):
        return torch.nn.Sequential(*[part for part in with_batch_norm(shape) if not isinstance(part, torch.nn.Dropout)])

    there, here = made(without_dropout, device), made(without_dropout)
    assert same(there.initial_arrays(3), here.initial_arrays(3))
    one, other = trained(there, [2, 2]), trained(here, [4])
    assert one.loss == pytest.approx(other.loss, rel=1e-2)
    for name in one.arrays:
        np.testing.assert_allclose(one.arrays[name], other.arrays[name], rtol=1e-2, atol=1e-2)
    assert there.evaluate(one.arrays)[0] == pytest.approx(here.evaluate(one.arrays)[0], rel=1e-2)

    there.recover()
    before = torch.cuda.memory_reserved()
    there.profile(2, 64)
    assert torch.cuda.memory_reserved() >= before
    there.recover()
    assert torch.cuda.memory_reserved() <= before


@pytest.mark.parametrize("device", [CUDA])
def test_on_a_gpu_dropout_has_its_own_random_state_and_stop_stops(device):
    trainer = made(device=device)
    torch.cuda.manual_seed_all(5)
    expected = torch.rand(3, device=device)
    torch.cuda.manual_seed_all(5)
    whole = trained(trainer, [4])
    cut = trained(trainer, [1, 3], between=lambda: trainer.profile(1, 4))
    assert torch.equal(torch.rand(3, device=device), expected)
    for name in whole.arrays:  # the same dropout; sums on a GPU may round differently
        np.testing.assert_allclose(whole.arrays[name], cut.arrays[name], rtol=1e-3, atol=1e-4)
    training = begun(trainer)
    assert len(training.advance(4, Counter(2))) == 2


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("own", [False, True], ids=["sgd", "own optimiser"])
def test_half_precision_computes_in_it_trains_alike_and_keeps_single_precision_weights(device, own):
    seen = []

    def loss(scores, labels):
        seen.append(scores.dtype)
        return cross_entropy(scores, labels)

    def adam(weights, learning_rate, momentum):
        return torch.optim.Adam(weights, lr=learning_rate)

    task = task_of(MODELS["digits-cnn"], loss)._replace(optimizer=adam if own else None)
    trainer = Trainer(task, noise(), device)
    options = TrainingOptions(steps=30, batch_size=16, learning_rate=0.01, proximal_mu=0.1)

    results = {}
    for mixed in (False, True):
        del seen[:]
        training = trainer.start(trainer.initial_arrays(1), SHARE, 5, options._replace(mixed=mixed))
        training.advance(30)
        results[mixed] = training.result()
        assert set(seen) == {choose_half_type(device) or torch.float32 if mixed else torch.float32}

    whole, half = results[False], results[True]
    assert {array.dtype for array in half.arrays.values()} == {np.dtype(np.float32)}
    assert same(whole.arrays, half.arrays) == (choose_half_type(device) is None and own)
    assert half.loss == pytest.approx(whole.loss, rel=0.1)


def test_a_gpu_before_ampere_takes_float16_although_torch_emulates_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    for capability, half in {(7, 2): torch.float16, (8, 7): torch.bfloat16}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert choose_half_type("cuda:0") == half


@pytest.mark.parametrize("amp", [None, SimpleNamespace(), SimpleNamespace(GradScaler=lambda: "new")])
def test_gradients_are_scaled_by_what_this_torch_has(amp, monkeypatch):
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", lambda: "old")
    if amp is None:
        monkeypatch.delattr(torch, "amp", raising=False)
    else:
        monkeypatch.setattr(torch, "amp", amp, raising=False)

    assert make_gradient_scaler() == ("new" if hasattr(amp, "GradScaler") else "old")


def test_no_gradient_outlives_its_training_or_is_zero_where_a_weight_is_unused():
    steps = []

    class Decayed(torch.optim.SGD):
        def step(self, closure=None):
            steps.append([w.grad is None for group in self.param_groups for w in group["params"]])
            return super().step(closure)

    def build(shape):
        net = MODELS["digits-cnn"](shape)
        net.unused = torch.nn.Parameter(torch.ones(3))
        return net

    task = task_of(build)._replace(optimizer=lambda weights, rate, momentum: Decayed(weights, lr=rate, weight_decay=1))
    trainer = Trainer(task, noise())
    training = begun(trainer)
    net = training._net
    net.unused.grad = torch.zeros(3)  # as an earlier step that used it leaves it
    training.advance(2)
    arrays = training.result().arrays
    training.end()

    assert all(weight.grad is None for weight in net.parameters())
    assert [sum(step) for step in steps] == [1, 1]
    assert (arrays["unused"] == 1).all()


def test_frozen_weights_are_not_exchanged_and_are_the_same_whatever_the_seed():
    def build(shape):
        frozen, head = torch.nn.Linear(shape.side**2, 8), torch.nn.Linear(8, shape.classes)
        frozen.requires_grad_(False)
        return torch.nn.Sequential(torch.nn.Flatten(), frozen, head)

    trainer, other = made(build), made(build)
    start = trainer.initial_arrays(3)

    assert list(start) == ["2.weight", "2.bias"]
    assert trainer.evaluate(start) == other.evaluate(start)
    trained = begun(trainer)
    trained.advance(4)
    arrays = trained.result().arrays
    assert list(arrays) == list(start)
    assert trainer.evaluate(arrays) == other.evaluate(arrays)
