"""Studies without learning: how good the modes are that boards and fleets choose, against what could be known."""
