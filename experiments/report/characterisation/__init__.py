"""The page of a characterisation: where time and energy go on a board, and which knob to change next."""
