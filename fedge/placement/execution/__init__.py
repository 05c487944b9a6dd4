"""Placements really executed: torch, ONNX Runtime and TensorRT where they are, one process per instance, measured."""
