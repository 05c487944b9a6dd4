"""Training and inference executed side by side on this machine: the workers, the turns, the batch size, the view."""
