"""One seed fixes everything, and every label draws from a stream of its own."""

from fedge.seeds import derive_seed, make_generator


def test_the_same_labels_give_the_same_numbers():
    assert make_generator(7, "nano-1", 3).random(5).tolist() == make_generator(7, "nano-1", 3).random(5).tolist()


def test_other_labels_give_other_numbers():
    draws = {make_generator(seed, board, n).random() for seed in (1, 2) for board in ("a", "b") for n in (1, 2)}

    assert len(draws) == 8


def test_a_derived_seed_fits_in_31_bits():
    assert all(0 <= derive_seed(seed, "x") < 2**31 for seed in range(50))
