"""Physical model of a minibatch's time and a board's power over its power modes, and its fits; numpy only."""
