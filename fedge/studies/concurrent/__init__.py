"""Training and inference on one board, judged on measured tables and planned for a person."""
