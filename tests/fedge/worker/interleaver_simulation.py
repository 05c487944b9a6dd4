"""A training beside services on a virtual clock, with every batch and every loss written down."""

from fedge.worker.inference_interleaver import Interleaver


class Play:
    """``batch_s(service, size)`` and ``step_s`` say how long things take; what was done is in ``done``."""

    def __init__(self, services, arrivals, batch_s, step_s, share=0.1, known=True):
        self.now_s, self.step_s, self.steps = 0.0, step_s, 0
        self.batch_s = batch_s
        self.done, self.dropped = [], []
        self.loop = Interleaver(
            services,
            arrivals,
            self._infer,
            lambda: self.now_s,
            self._wait,
            drop=lambda service, requests: self.dropped.extend((service.name, one) for one in requests),
            training_share=share,
        )
        if known:
            self.loop.learn_step(step_s)
            for service in services:
                for place in range(service.batch_size.bit_length() + 1):
                    size = min(1 << place, service.batch_size)
                    self.loop.learn_batch(service.name, size, batch_s(service, size))

    def _wait(self, seconds):
        assert seconds > 0
        self.now_s += seconds

    def _infer(self, service, requests):
        assert 1 <= len(requests) <= service.batch_size
        begin_s = self.now_s
        self.now_s += self.batch_s(service, len(requests))
        self.done.append((service.name, begin_s, self.now_s, list(requests), self.steps))

    def train(self, until_s):
        while self.now_s < until_s:
            self.loop.serve_before_step()
            self.now_s += self.step_s
            self.steps += 1
        self.loop.end_step()

    def served(self, name):
        return [one for batch in self.done if batch[0] == name for one in batch[3]]
