"""Studies without training: how good the modes are that boards and fleets choose, compared with an oracle."""
