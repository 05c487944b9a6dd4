"""What a run leaves behind: rows of rounds, clients and events, and the folder that holds them."""
