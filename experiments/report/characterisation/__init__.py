"""The page of a characterisation: where the time and the energy of training go on a board, and what to turn next."""
