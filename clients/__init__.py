"""The Flower ClientApp: thin packing around a board's own round."""
