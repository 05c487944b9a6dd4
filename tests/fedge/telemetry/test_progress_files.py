"""What a board does is told in one file that is always whole, and read again only when it changed."""

import pytest

from fedge.json_reader import MalformedJson
from fedge.telemetry import progress_files
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import ProgressReporter, read_progress, write_progress

T0 = 1_790_000_000.0
TRAINING = BoardProgress("nano-1", T0, "training", "orin-nano", "run", 3, 40, 7, "4c/1/2/3 MHz", 7.5, 44.0)


def test_what_was_told_is_read(tmp_path):
    write_progress(tmp_path / "live", TRAINING)
    write_progress(tmp_path / "live", BoardProgress("tx2", T0, "idle"))
    assert read_progress(tmp_path / "live") == {"nano-1": TRAINING, "tx2": BoardProgress("tx2", T0, "idle")}
    write_progress(tmp_path / "live", BoardProgress("nano-1", T0 + 1, "done"))
    assert read_progress(tmp_path / "live")["nano-1"].state == "done"


def test_a_folder_that_is_not_there_tells_nothing(tmp_path):
    assert read_progress(tmp_path / "none") == {}


def test_a_file_that_did_not_change_is_not_read_again(tmp_path, monkeypatch):
    write_progress(tmp_path, TRAINING)
    first = read_progress(tmp_path)
    monkeypatch.setattr(progress_files, "decode_json", None)
    assert read_progress(tmp_path) == first


def test_broken_strange_and_foreign_files_are_left_out(tmp_path):
    write_progress(tmp_path, TRAINING)
    (tmp_path / "half.json").write_text('{"board":"half","at_s":1')
    (tmp_path / "huge.json").write_text('{"board":"huge","at_s":1,"state":"idle","error":"' + "x" * 99_999)
    (tmp_path / "liar.json").write_bytes((tmp_path / "nano-1.json").read_bytes())
    (tmp_path / ".nano-1.77.77").write_text("{")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    assert read_progress(tmp_path) == {"nano-1": TRAINING}


def test_a_board_whose_name_is_no_files_name_is_refused(tmp_path):
    with pytest.raises(MalformedJson, match="board"):
        write_progress(tmp_path, BoardProgress("../x", T0, "idle"))


class Clock:
    def __init__(self) -> None:
        self.now_s = T0

    def __call__(self) -> float:
        return self.now_s


def test_changes_of_state_are_told_at_once_and_steps_seldom(tmp_path):
    clock = Clock()
    teller = ProgressReporter(tmp_path, BoardProgress("nano-1", 0.0, "fetching", steps=100), clock, every_s=0.5)
    teller.report()
    assert read_progress(tmp_path)["nano-1"].state == "fetching"
    seen = []
    for _ in range(20):
        clock.now_s += 0.1
        teller.report("training")
        teller.add_steps(5)
        seen.append(read_progress(tmp_path)["nano-1"].steps_done)
    assert read_progress(tmp_path)["nano-1"].state == "training"
    assert len(set(seen)) in {4, 5}
    assert seen[-1] >= 75
    teller.finish("failed", error="a\nb" + "x" * 5000)
    last = read_progress(tmp_path)["nano-1"]
    assert (last.state, last.steps_done, last.error[:4], last.at_s) == ("failed", 100, "a bx", clock.now_s)


def test_rounds_of_milliseconds_are_told_of_seldom_and_leave_nothing_stale(tmp_path):
    clock, writes = Clock(), 0
    last_s, before = float("-inf"), b""
    for number in range(1, 101):
        begun = BoardProgress("nano-1", 0.0, "fetching", round=number, steps=10)
        teller = ProgressReporter(tmp_path, begun, clock, every_s=0.2, states_at_once=False, last_s=last_s)
        for state in ("fetching", "probing", "training", "sending"):
            clock.now_s += 0.0025
            teller.report(state)
        teller.finish("done")
        last_s = teller.told_s
        now = (tmp_path / "nano-1.json").read_bytes()
        writes += now != before
        before = now
        assert read_progress(tmp_path)["nano-1"].state == "done"
    assert writes <= 6  # 100 rounds of 10 ms
    assert read_progress(tmp_path)["nano-1"].round > 70


def test_a_round_of_milliseconds_is_told_of_once(tmp_path):
    teller = ProgressReporter(tmp_path, BoardProgress("nano-1", 0.0, "fetching"), Clock(), states_at_once=False)
    teller.report("training")
    assert not read_progress(tmp_path)
    teller.finish("done")
    assert read_progress(tmp_path)["nano-1"].state == "done"


def test_what_cannot_be_told_stops_nobody(tmp_path):
    (tmp_path / "file").write_text("")
    teller = ProgressReporter(tmp_path / "file", BoardProgress("nano-1", 0.0, "idle"), Clock())
    teller.report("training", power_w=float("nan"))
    teller.finish("done")
    ProgressReporter(None, BoardProgress("nano-1", 0.0, "idle"), Clock()).report("training")
