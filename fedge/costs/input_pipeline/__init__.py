"""The input pipeline of training as a model: loader workers, prefetch queue, storage, cache and cores."""
