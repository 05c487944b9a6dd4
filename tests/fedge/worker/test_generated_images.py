"""Images made on the spot: the same for the same numbers, of the size that was asked for, never half a data set."""

import io
import json

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")

from fedge.worker import generated_images  # noqa: E402  Pillow first
from fedge.worker.generated_images import BadImages, ImageSetSpec  # noqa: E402

TINY = ImageSetSpec(32, 32, 24)


def counts(place):
    """Number and bytes of the images of a complete data set."""
    return json.loads((place / generated_images.COMPLETE).read_text(encoding="ascii"))


def contents(place):
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_the_same_numbers_give_the_same_files_anywhere(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = (generated_images.make_images(str(tmp_path / name), TINY) for name in ("a", "b"))
    assert contents(one) == contents(other)
    assert one.name == other.name == TINY.key
    assert len(generated_images.list_image_files(str(one))) == 32
    assert len(set(contents(one).values())) == 33  # all unlike, and the marker


def test_another_number_gives_another_folder():
    others = [TINY._replace(**{name: 3}) for name in ("images", "width", "height", "seed", "kb")]
    assert len({other.key for other in [TINY, TINY._replace(in_memory=True), TINY._replace(channels=1), *others]}) == 8


def test_an_image_has_its_size_and_decodes_to_its_pixels(tmp_path):
    for channels, mode in ((3, "RGB"), (1, "L")):
        place = generated_images.make_images(str(tmp_path), TINY._replace(channels=channels))
        path, label = generated_images.list_image_files(str(place))[5]
        with Image.open(path) as image:
            assert (image.size, image.mode) == ((32, 24), mode)
            assert np.asarray(image).std() > 10
        assert label == 1  # four files of each class, in the order of the classes


def test_files_are_as_large_as_photographs_unless_a_size_is_asked_for(tmp_path):
    photo = ImageSetSpec(4, 240, 160)
    made = counts(generated_images.make_images(str(tmp_path), photo))
    assert 0.25e6 <= made["bytes"] / (4 * 0.0384) <= 0.4e6
    for kb in (4.0, 12.0, 40.0):
        asked = counts(generated_images.make_images(str(tmp_path), photo._replace(kb=kb)))
        assert asked["bytes"] / 4 == pytest.approx(1000 * kb, rel=0.1)


def test_a_making_that_was_killed_is_made_again_from_its_beginning_and_a_complete_one_is_not(tmp_path):
    class Killed(BaseException):
        pass

    def kill(done, of):
        if done == 20:
            raise Killed

    with pytest.raises(Killed):
        generated_images.make_images(str(tmp_path), TINY, kill)
    place = generated_images.image_set_folder(str(tmp_path), TINY)
    assert not generated_images.is_complete(place)
    heard = []
    assert generated_images.make_images(str(tmp_path), TINY, lambda done, of: heard.append((done, of))) == place
    assert heard[0] == (1, 32)
    assert heard[-1] == (32, 32)
    assert [path.name for path in place.parent.iterdir()] == [TINY.key]
    before = (place / generated_images.COMPLETE).stat().st_mtime_ns
    generated_images.make_images(str(tmp_path), TINY, lambda done, of: pytest.fail("made again"))
    assert (place / generated_images.COMPLETE).stat().st_mtime_ns == before


def test_without_room_nothing_is_made(tmp_path, monkeypatch):
    class Usage:
        free = 1e7

    monkeypatch.setattr(generated_images.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(BadImages, match="10 MB free; 32 images and a reserve need 67 MB"):
        generated_images.make_images(str(tmp_path), TINY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"), [("images", 0), ("width", 0), ("height", 30000), ("channels", 2), ("kb", 0.1)]
)
def test_numbers_that_make_no_images_are_refused_by_name(tmp_path, field, value):
    with pytest.raises(BadImages, match="images." + field.replace("images", "count")):
        generated_images.make_images(str(tmp_path), TINY._replace(**{field: value}))
    assert list(tmp_path.iterdir()) == []


def test_images_in_memory_are_one_plain_array(tmp_path):
    wanted = ImageSetSpec(100, 28, 20, 1, in_memory=True)
    place = generated_images.make_images(str(tmp_path), wanted)
    array = np.load(str(place / generated_images.ARRAY), allow_pickle=False)
    assert (array.shape, array.dtype) == ((100, 20, 28, 1), np.uint8)
    assert counts(place)["images"] == 100


def test_a_users_folder_gives_its_images_with_their_class(tmp_path):
    content = io.BytesIO()
    Image.new("RGB", (4, 4)).save(content, "JPEG")
    for name in ("dog/b.jpg", "cat/a.JPEG", "cat/notes.txt", ".hidden/x.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content.getvalue())
    found = generated_images.list_image_files(str(tmp_path))
    assert found == [(str(tmp_path / "cat/a.JPEG"), 0), (str(tmp_path / "dog/b.jpg"), 1)]
    with pytest.raises(BadImages, match="got 2 images; at least the 3"):
        generated_images.choose_image_files(found, 3, str(tmp_path))


def test_fewer_images_than_there_are_come_from_all_classes():
    files = [(str(k), k // 10) for k in range(80)]
    assert [label for _, label in generated_images.choose_image_files(files, 8, "")] == list(range(8))


@pytest.mark.parametrize(("name", "reason"), [("gone", "no such folder"), ("", "without images")])
def test_a_folder_that_is_none_of_images_says_so(tmp_path, name, reason):
    with pytest.raises(BadImages, match=reason):
        generated_images.list_image_files(str(tmp_path / name))
