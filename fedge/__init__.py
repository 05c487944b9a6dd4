"""fedge: federated learning on fleets of NVIDIA Jetson boards, real or emulated."""

__version__ = "0.1.0"
