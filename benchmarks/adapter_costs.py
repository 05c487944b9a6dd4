"""Costs of a step of Qwen2.5-0.5B by its layers, as a whole and with adapters: bytes moved, time and memory.

Weights are random and nothing is trained. Needs the extra llm and 5 GB of memory; about a minute.
"""

import warnings

from fedge.costs.layer_estimate import estimate_network_cost
from fedge.costs.layers.network_cost import sum_layers
from fedge.costs.layers.torch_trace import trace_module
from fedge.costs.memory.step_need import predict_step_need
from fedge.devices.catalogue import load_catalogue
from fedge.modes import stack_modes
from fedge.physics.time_power_model import compute_step_s
from fedge.types import LayerWork, Workload
from fedge.worker.language_models import causal_lm

MODEL = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
WAYS = {
    "all weights": {"rank": 0},
    "rank 8, all linear layers": {"rank": 8},
    "rank 8, attention": {"rank": 8, "targets": ATTENTION},
}
BATCH, CONTEXT = 4, 512
BOARDS = ("agx-orin-64gb", "orin-nano")

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    catalogue = load_catalogue()
    for name, options in WAYS.items():
        network = trace_module(causal_lm(MODEL, **options), (CONTEXT,), name)
        work = Workload(name, BATCH, layers=LayerWork(name, sum_layers(network, training=True), loading="cached"))
        passes = network.batch_work(BATCH, "train").flop / network.batch_work(BATCH).flop
        print(f"{name}: {4e-6 * network.trained_parameters:,.2f} MB sent, {passes:.2f} forward passes a step")
        for board in BOARDS:
            spec = catalogue[board]
            cost = estimate_network_cost(spec, work, catalogue).coefficients
            step_s = compute_step_s(cost, spec.maxn, stack_modes([spec.maxn]))[0]
            need = predict_step_need(network, spec, BATCH)
            print(f"  {board}: {step_s:.1f} s a step at MAXN, {need.memory_mb:,.0f} MB ({need.label})")
