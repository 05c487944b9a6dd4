"""Data sources: a checked file, the board's own folder, noise; what is wrong is said with what would be right."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from fedge.worker import sources
from fedge.worker.sources import BadSource, read

RIGHT_X = r"uint8 of shape \(n, channels, side, side\)"


def noise(n=20, channels=1, side=4):
    return sources.make_synthetic(n, channels, side, 3)


def same(one, other):
    return len(one) == len(other) and all(np.array_equal(one[i], other[i]) for i in range(len(one)))


def write_npz(path, **changed):
    arrays = dict(noise()._asdict(), **changed)
    np.savez(str(path), **{name: array for name, array in arrays.items() if array is not None})
    return {"file": str(path)}


def test_what_is_written_is_read_again(tmp_path):
    path, data = tmp_path / "share.npz", noise(channels=3)
    sha256 = sources.write_file(path, data)

    found = read({"file": str(path), "sha256": sha256})

    assert same(found, data)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [type(value) for value in found[4:7]] == [tuple, tuple, int]
    assert [p.name for p in tmp_path.iterdir()] == ["share.npz"]


def test_a_file_with_another_hash_is_refused_unread(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"no archive at all")
    with pytest.raises(BadSource, match=r"a file of SHA-256 .*; the one of 0+; copy it again"):
        read({"file": str(tmp_path / "x.npz"), "sha256": "0" * 64})


def test_a_file_need_hold_only_images_and_labels(tmp_path):
    found = read(write_npz(tmp_path / "x.npz", mean=None, sd=None, classes=None))

    assert found.classes == 3
    assert np.allclose(found.mean, noise().train_x.mean())
    assert np.allclose(found.sd, noise().train_x.std())


def test_labels_of_any_integer_type_are_taken(tmp_path):
    found = read(write_npz(tmp_path / "x.npz", train_y=noise().train_y.astype(">u2")))
    assert found.train_y.dtype == np.int64
    assert np.array_equal(found.train_y, noise().train_y)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train_x": None}, "nothing called train_x; arrays called train_x, train_y, test_x, test_y"),
        ({"train_x": noise().train_x.astype(np.float32)}, "train_x float32 of shape .*; " + RIGHT_X),
        ({"train_x": noise().train_x[:, 0]}, r"train_x uint8 of shape \(20, 4, 4\); " + RIGHT_X),
        ({"train_x": noise().train_x[..., :3]}, r"train_x uint8 of shape \(20, 1, 4, 3\); " + RIGHT_X),
        ({"train_x": noise().train_x[:0], "train_y": noise().train_y[:0]}, "train_x uint8 .* at least one image"),
        ({"test_x": noise().test_x[..., :0, :0]}, "test_x uint8 .* at least one image"),
        ({"train_y": noise().train_y[:5]}, r"train_y int64 of shape \(5,\); int64 of shape \(20,\)"),
        ({"train_y": noise().train_y.astype(np.float64)}, "train_y float64"),
        ({"train_y": noise().train_y - 1}, "labels from 0 to 2"),
        ({"classes": 2}, "labels from 0 to 1"),
        ({"classes": "three"}, "classes of type .*; numbers, or none of it"),
        ({"test_x": sources.make_synthetic(20, 1, 5, 3).test_x}, "one shape for both"),
        ({"sd": (0.0,)}, r"one of each per channel \(1\), sd above 0"),
        ({"mean": (float("nan"),)}, r"one of each per channel \(1\), sd above 0"),
        ({"mean": (1.0, 2.0)}, "one of each per channel"),
    ],
)
def test_a_file_of_other_arrays_is_refused_by_name(tmp_path, changed, said):
    with pytest.raises(BadSource, match=said):
        read(write_npz(tmp_path / "x.npz", **changed))


def test_objects_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    bad = np.array([Trap()], dtype=object)
    np.savez(str(tmp_path / "x.npz"), **dict(noise()._asdict(), train_x=bad))
    np.save(str(tmp_path / "train_x.npy"), bad)

    for source in ({"file": str(tmp_path / "x.npz")}, {"folder": str(tmp_path)}):
        with pytest.raises(BadSource, match="plain array"):
            read(source)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00", b"text"])
def test_a_broken_file_is_refused(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(BadSource, match=r"a file that cannot be read; an .npz file of plain arrays"):
        read({"file": str(tmp_path / "x.npz")})


SIZES = {"samples": 40, "channels": 3, "side": 8, "classes": 5}


def noise_source(**changed):
    return {"synthetic": dict(SIZES, **changed)}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"file": "/no/such.npz"}, "no such file"),
        ({"folder": "/no/such"}, "no such folder"),
        ({}, r'{"file": PATH, "sha256": HEX}, {"folder": PATH} or'),
        ({"url": "x"}, r'{"file": PATH, "sha256": HEX}, {"folder": PATH} or'),
        ({"file": "a", "folder": "b"}, r'{"file": PATH, "sha256": HEX}, {"folder": PATH} or'),
        ({"synthetic": 3}, r'{"file": PATH, "sha256": HEX}, {"folder": PATH} or'),
        (noise_source(side=0), "whole numbers above 0 for samples, channels, side, classes"),
        (noise_source(side=2.0), "whole numbers above 0"),
        (noise_source(side=True), "whole numbers above 0"),
        (noise_source(more=1), "whole numbers above 0"),
        (noise_source(samples=1 << 60), "numbers that some memory could hold"),
        (noise_source(side=1 << 40), "numbers that some memory could hold"),
        (noise_source(classes=1 << 40), "numbers that some memory could hold"),
    ],
)
def test_a_source_that_cannot_be_is_refused_before_anything_is_made(source, said):
    with pytest.raises(BadSource, match=said):
        read(source)


def test_a_folder_of_arrays_is_read(tmp_path):
    for name in sources.ARRAY_NAMES:
        np.save(str(tmp_path / (name + ".npy")), getattr(noise(), name))
    found = read({"folder": str(tmp_path)})

    assert same(found[:4], noise()[:4])
    assert found.classes == 3

    (tmp_path / "test_y.npy").unlink()
    with pytest.raises(BadSource, match=r"test_y.npy: got no readable array .*; a plain array, by numpy\.save"):
        read({"folder": str(tmp_path)})


def test_noise_is_the_same_each_time_and_as_large_as_asked_for():
    found = read(noise_source())

    assert found.train_x.shape == (40, 3, 8, 8)
    assert len(found.test_y) == 5
    assert same(found, read(noise_source()))
    assert sources.check_data(found, "noise") == found


def test_something_else_than_a_data_set_is_refused():
    with pytest.raises(BadSource, match=r"mine: got dict instead of a data set; a fedge\.worker\.sources\.Data\("):
        sources.check_data({}, "mine")
    with pytest.raises(BadSource, match="train_x of type list; a numpy array"):
        sources.check_data(noise()._replace(train_x=[1]), "mine")


def test_labels_of_free_samples_are_classes_or_left_out_however_many_axes_they_have():
    x, y = np.zeros((2, 3), dtype=np.float32), np.array([[0, 4, -100], [-100, 1, 2]])

    assert sources.check_data(sources.free_data(x, y, x, y, classes=5), "mine").classes == 5
    for wrong, said in ((y + (y == 4), "from 0 to 5 for 5 classes"), (y - (y == 1) * 2, "from -1 to 4")):
        with pytest.raises(BadSource, match=said):
            sources.check_data(sources.free_data(x, y, x, wrong, classes=5), "mine")


def test_images_without_pillow_are_refused_with_what_to_do(tmp_path, monkeypatch):
    write_images(tmp_path, lambda path, index: path.write_bytes(b"?"))
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(BadSource, match=r"no Pillow to read it; Pillow .*train_x\.npy"):
        read({"folder": str(tmp_path)})


def write_images(folder, write):
    """Three images of each class for training, one for testing, in folders that are not made in sorted order."""
    for part, count in (("train", 3), ("test", 1)):
        for label, name in ((1, "dog"), (0, "cat")):
            (folder / part / name).mkdir(parents=True)
            for index in range(count):
                write(folder / part / name / f"{index}.png", 10 * label + index)


class TestImages:
    """The board's own images; needs Pillow."""

    @pytest.fixture
    def image(self):
        return pytest.importorskip("PIL.Image", reason="needs Pillow")

    def painter(self, image, mode="L", size=(6, 6)):
        def write(path, shade):
            image.new(mode, size, shade if mode == "L" else (shade, 0, 200)).save(str(path))

        return write

    def test_classes_are_counted_in_sorted_order(self, tmp_path, image):
        write_images(tmp_path, self.painter(image))
        (tmp_path / "train" / "dog" / "notes.txt").write_text("no image")

        found = read({"folder": str(tmp_path)})

        assert found.train_x[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12]
        assert found.train_y.tolist() == [0, 0, 0, 1, 1, 1]
        assert found.train_x.shape == (6, 1, 6, 6)
        assert (found.test_x[:, 0, 0, 0].tolist(), found.test_y.tolist(), found.classes) == ([0, 10], [0, 1], 2)

    def test_one_image_in_colour_makes_all_of_them_colour(self, tmp_path, image):
        write_images(tmp_path, self.painter(image))
        self.painter(image, "RGB")(tmp_path / "train" / "dog" / "9.png", 12)

        found = read({"folder": str(tmp_path)})

        assert found.train_x.shape == (7, 3, 6, 6)
        assert found.train_x[-1, :, 0, 0].tolist() == [12, 0, 200]
        assert found.train_x[0, :, 0, 0].tolist() == [0, 0, 0]

    @pytest.mark.parametrize("size", [(5, 5), (6, 5)])
    def test_another_size_is_refused_by_file(self, tmp_path, image, size):
        write_images(tmp_path, self.painter(image))
        self.painter(image, size=size)(tmp_path / "test" / "dog" / "0.png", 1)
        with pytest.raises(BadSource, match=r"0\.png: got an image of {} x {} pixels; square .*6 x 6".format(*size)):
            read({"folder": str(tmp_path)})

    def test_images_of_one_size_that_are_not_square_are_refused_by_file(self, tmp_path, image):
        write_images(tmp_path, self.painter(image, size=(6, 4)))
        with pytest.raises(BadSource, match=r"\.png: got an image of 6 x 4 pixels; square .*4 x 4"):
            read({"folder": str(tmp_path)})

    def test_a_broken_image_is_refused_by_file(self, tmp_path, image):
        write_images(tmp_path, self.painter(image))
        path = tmp_path / "train" / "cat" / "1.png"
        for content in (b"", path.read_bytes()[:45]):
            path.write_bytes(content)
            with pytest.raises(BadSource, match=r"1\.png: got a file that cannot be read .*; a whole png or jpg image"):
                read({"folder": str(tmp_path)})

    def test_no_images_at_all_and_a_class_that_is_not_trained_are_refused(self, tmp_path, image):
        for part in ("train", "test"):
            (tmp_path / part / "cat").mkdir(parents=True)
        with pytest.raises(BadSource, match="train: got no images; png or jpg files in one folder per class"):
            read({"folder": str(tmp_path)})
        (tmp_path / "test" / "fox").mkdir()
        with pytest.raises(BadSource, match="test: got the class 'fox'; only the classes below train/"):
            read({"folder": str(tmp_path)})


def test_what_leads_out_of_the_roots_is_named(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "train").mkdir(parents=True)
    outside.mkdir()
    roots = [str(inside.resolve())]
    assert list(sources.find_strays(str(inside), roots)) == []
    assert list(sources.find_strays(str(inside / ".." / "out"), roots)) == [str(inside / ".." / "out")]
    assert list(sources.find_strays(str(tmp_path / "in-other"), roots)) == [str(tmp_path / "in-other")]
    (inside / "train" / "cats").symlink_to(outside)
    (inside / "own").symlink_to(inside / "train")
    assert list(sources.find_strays(str(inside), roots)) == [str(inside / "train" / "cats")]


def test_a_folders_stamp_changes_with_every_file_below_it_and_with_nothing_else(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "train" / "cats").mkdir(parents=True)
    outside.mkdir()
    roots = [str(inside.resolve())]
    (inside / "elsewhere").symlink_to(outside)
    (inside / "round").symlink_to(inside)
    (inside / "nowhere").symlink_to(tmp_path / "gone")
    picture = inside / "train" / "cats" / "1.png"
    stamps = []

    def changed():
        stamps.append(sources.compute_stamp(str(inside), roots))
        assert sources.compute_stamp(str(inside), roots) == stamps[-1]
        return len(set(stamps)) == len(stamps)

    assert changed()
    picture.write_bytes(b"one")
    assert changed()
    picture.write_bytes(b"longer")
    assert changed()
    os.utime(str(picture), ns=(5, 5))
    assert changed()
    picture.rename(picture.with_name("2.png"))
    assert changed()
    (outside / "1.png").write_bytes(b"below a folder that is not ours to read")
    (outside / "train").mkdir()
    before = sources.compute_stamp(str(inside), roots)
    (outside / "train" / "2.png").write_bytes(b"deeper")
    assert sources.compute_stamp(str(inside), roots) == before


def test_a_stamp_follows_links_to_folders_inside_the_roots(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train").symlink_to(tmp_path / "store")
    roots = [str(tmp_path.resolve())]
    (tmp_path / "store" / "cats").mkdir()
    before = sources.compute_stamp(str(tmp_path / "mine"), roots)
    (tmp_path / "store" / "cats" / "1.png").write_bytes(b"one")
    assert sources.compute_stamp(str(tmp_path / "mine"), roots) != before


def test_a_stamp_of_what_is_not_there_is_another_than_once_it_is(tmp_path):
    path, roots = tmp_path / "data.npz", [str(tmp_path.resolve())]
    before = sources.compute_stamp(str(path), roots)
    path.write_bytes(b"")
    assert sources.compute_stamp(str(path), roots) != before


@pytest.mark.parametrize(("value", "called"), [(np.nan, "NaN"), (np.inf, "infinity")])
@pytest.mark.parametrize("part", ["train_x", "test_x", "train_y"])
def test_a_sample_that_is_not_finite_is_named(part, value, called):
    arrays = {name: np.ones((8, 3) if name.endswith("x") else 8, np.float32) for name in sources.ARRAY_NAMES}
    arrays[part][5] = value

    with pytest.raises(sources.BadSource, match=f"{part} with {called} in sample 5; finite numbers"):
        sources.check_data(sources.free_data(**arrays, classes=1), "mine")


def test_samples_of_double_precision_are_refused_with_what_converts_them():
    x, y = np.ones((8, 3)), np.ones(8, np.float32)

    with pytest.raises(sources.BadSource, match=r"train_x float64; use train_x\.astype\(np\.float32\)"):
        sources.check_data(sources.free_data(x, y, x, y, classes=1), "mine")
    with pytest.raises(sources.BadSource, match=r"train_y float64; .*train_y\.astype\(np\.int64\) for classes"):
        sources.check_data(sources.free_data(x.astype(np.float32), x[:, 0], x, y, classes=1), "mine")
