"""What is done to boards and undone, on stand-ins for them; and a run that is a process of its own."""

import json
import sys
import time
from dataclasses import dataclass, field, replace

import pytest
from contracts.launching import Launcher
from contracts.processes import wait_for

from experiments.fleet import chaos_attack
from experiments.fleet.chaos_attack import attack_fleet, finish_outcomes, follow_run, inject_fault, inspect_start
from experiments.fleet.chaos_faults import PlannedFault, RunProgress
from experiments.fleet.status_records import BoardStatus, make_problem
from fedge.errors import BadInput, RunFailed

WELL = BoardStatus("nano-1", "up", services={"fedge-worker": "active"}, node="online", mode={"cores": 4.0})
RESTARTED = replace(WELL, services={"fedge-worker": "activating"})


@dataclass
class StandIn:
    """A fleet whose boards answer what was given, the last of it from then on; every call is noted."""

    looks: list[BoardStatus | type[BaseException]]
    begins: str = ""
    undoes: str = ""
    hold_s: float = 0.01
    calls: list[tuple[str, ...]] = field(default_factory=list)
    at_s: float = 0.0

    def now_s(self) -> float:
        self.at_s += 1.0
        return self.at_s

    def call_board(self, board: str, verb: str, fault: str = "", undo_s: float = 0.0) -> str:
        self.calls.append((verb, fault))
        return self.begins if verb == "begin" else self.undoes

    def inspect_boards(self, boards):
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(found, type):
            raise found
        return dict.fromkeys(boards, found)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(chaos_attack, "POLL_S", 0.0)


def inject(target, fault="kill-worker"):
    outcomes = []
    inject_fault(target, PlannedFault(0.0, "nano-1", fault), WELL, outcomes)
    return outcomes[0]


def test_a_board_is_back_when_two_looks_in_a_row_find_it_as_before():
    target = StandIn([RESTARTED, WELL, RESTARTED, WELL, WELL])
    outcome = inject(target)

    assert (outcome.verdict, outcome.power_kept) == ("held", True)
    assert outcome.back_s == 6.0  # at the fourth look: only some ask for the time
    assert target.calls == [("begin", "kill-worker"), ("undo", "")]


def test_a_fault_that_lasts_is_undone_before_the_board_is_waited_for():
    target = StandIn([WELL])
    inject(target, "stop-worker")

    assert target.calls == [("begin", "stop-worker"), ("undo", ""), ("undo", "")]


@pytest.mark.parametrize(
    ("looks", "undoes", "problems"),
    [
        ([RESTARTED], "", ("the board did not come back",)),
        ([replace(WELL, findings=(make_problem("too hot"),))], "", ("the board did not come back",)),
        ([replace(WELL, mode={"cores": 2.0})], "", ("another power mode",)),
        ([WELL], "no answer", ("its undoing failed",)),
    ],
)
def test_what_is_left_of_a_fault_is_told(looks, undoes, problems):
    assert inject(StandIn(looks, undoes=undoes)).problems == problems


class UnansweredQuery(RunFailed):
    def __init__(self) -> None:
        super().__init__("no host could be queried")


def test_a_status_that_cannot_be_asked_for_is_one_that_is_not_good():
    target = StandIn([UnansweredQuery, WELL, UnansweredQuery, WELL, WELL])
    outcome = inject(target)

    assert (outcome.problems, outcome.back_s) == ((), 6.0)
    assert finish_outcomes(target, [replace(outcome, power_kept=None)], {"nano-1": WELL}, None)[0].power_kept


def test_a_fault_that_a_board_refuses_is_not_tried_and_undone_all_the_same():
    target = StandIn([WELL], begins="no room")

    assert inject(target).verdict == "not tried: no room"
    assert target.calls == [("begin", "kill-worker"), ("undo", "")]


def test_ctrl_c_undoes_the_fault_and_keeps_what_is_known_of_it():
    target = StandIn([KeyboardInterrupt])
    planned = [PlannedFault(0.0, "nano-1", "cut-link"), PlannedFault(0.0, "nano-1", "kill-worker")]

    outcomes, interrupted = attack_fleet(target, planned, {"nano-1": WELL}, None, lambda _: None)

    assert interrupted
    assert [(one.verdict, one.undone) for one in outcomes] == [("not tried: interrupted", True)]
    assert target.calls[-1] == ("undo", "")


def test_no_fault_begins_once_the_run_is_over():
    target = StandIn([WELL])
    planned = [PlannedFault(1e9, "nano-1", "kill-worker")]

    assert attack_fleet(target, planned, {"nano-1": WELL}, lambda: RunProgress((), 0), lambda _: None) == ([], False)
    assert target.calls == []


def test_a_mode_that_the_run_had_set_is_compared_once_the_board_is_free():
    held = replace(WELL, holder="run-7", mode={"cores": 2.0})
    outcome = inject(StandIn([held]))
    assert outcome.power_kept is None

    for mode, kept in ((WELL.mode, True), ({"cores": 2.0}, False)):
        target = StandIn([held, replace(WELL, mode=mode)])
        (done,) = finish_outcomes(target, [outcome], {"nano-1": WELL}, RunProgress((1e6,), 0))
        assert (done.power_kept, done.run) == (kept, "went on")


@pytest.mark.parametrize(
    "board", [replace(WELL, holder="run-7"), replace(WELL, findings=(make_problem("is stopped"),))]
)
def test_a_board_that_works_or_is_not_well_is_not_disturbed(board):
    target = StandIn([board])
    target.fleet = type("Fleet", (), {"boards": ("nano-1",)})

    with pytest.raises(BadInput, match=r"nano-1: got .*(run-7|is stopped).*boards that are well and free"):
        inspect_start(target)


PROGRAM = """
import sys, time
print("round 1/3  accuracy 0.5", flush=True)
print("fedge: no board is left", file=sys.stderr, flush=True)
{then}
"""


def test_the_progress_of_a_run_is_read_as_it_comes_and_its_cause_at_the_end(tmp_path):
    command = [sys.executable, "-c", PROGRAM.format(then="sys.exit(1)")]
    with follow_run(command, tmp_path / "run.log", lambda: 7.0) as observe:
        wait_for(lambda: observe().code is not None)
        progress = observe()

    assert progress == RunProgress((7.0,), 1, "no board is left")
    assert "round 1/3" in (tmp_path / "run.log").read_text(encoding="utf-8")


def test_a_run_that_still_goes_on_ends_with_the_faults(tmp_path):
    command = [sys.executable, "-c", PROGRAM.format(then="time.sleep(300)")]
    began_s = time.monotonic()
    with follow_run(command, tmp_path / "run.log", lambda: 7.0) as observe:
        wait_for(lambda: observe().rounds_at_s)
        assert observe().code is None

    assert observe().code == -15
    assert time.monotonic() - began_s < 60.0


FACTS = {
    "kind": "board",
    "services": {
        f"fedge-{name}": {"state": "active"} for name in ("powerd", "worker", "supernode", "ready", "superexec")
    },
    "powerd": {"mode": {"cores": 4}},
    "worker": {"state": "idle"},
}
STATUS = """
- name: What hosts say of themselves
  hosts: server:boards
  gather_facts: false
  tasks:
    - name: Write it
      ansible.builtin.copy:
        content: "{{ {'facts': status_facts | combine({'board': inventory_hostname})} | to_json }}"
        dest: "{{ status_to }}/{{ inventory_hostname }}.json"
        mode: "0600"
"""


@pytest.mark.slow
def test_the_command_disturbs_a_board_and_reports(tmp_path, monkeypatch, capsys):
    """The playbook and the script on a board that is this machine, with processes in place of services."""
    pytest.importorskip("ansible_runner", reason="the extra `fleet` is not installed")
    import shutil

    from contracts.chaos_board import SCRIPT, ChaosBoard

    board, playbooks = ChaosBoard(tmp_path / "board"), tmp_path / "playbooks"
    playbooks.mkdir()
    shutil.copytree(SCRIPT.parent / "tasks", playbooks / "tasks")
    for name in ("chaos.yml", "chaos.sh"):
        shutil.copy(SCRIPT.parent / name, playbooks)
    (playbooks / "status.yml").write_text(STATUS, encoding="utf-8")
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    nodes = {"kind": "server", "services": {}, "nodes": [{"node_id": "1", "name": "nano-1", "status": "online"}]}
    fleet = {
        "all": {"vars": local},
        "server": {"hosts": {"hub": {"status_facts": nodes}}},
        "boards": {"vars": {"chaos": "allowed"}, "hosts": {"nano-1": {"status_facts": FACTS}}},
    }
    (tmp_path / "fleet.json").write_text(json.dumps(fleet), encoding="utf-8")
    for name, value in board.environment.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "out"
    words = ["chaos", tmp_path / "fleet.json", "--playbooks", playbooks, "--folder", out, "--yes"]

    done = Launcher(monkeypatch, capsys)(
        *words, "--faults", "stop-worker,kill-client", "--every", "1", "--for", "2", "--hold", "1"
    )
    record = json.loads((out / "chaos.json").read_text(encoding="utf-8"))

    assert done.code == 0, done.output
    assert sorted(one["fault"] for one in record["faults"]) == ["kill-client", "stop-worker"]
    assert [(one["verdict"], one["undone"], one["power_kept"]) for one in record["faults"]] == [
        ("held", True, True)
    ] * 2
    assert [(one["tried"], one["held"]) for one in record["summary"]] == [(1, 1)] * 2
    assert (board.state("worker"), board.state("ready")) == ("S", "Z")
    assert "held" in (out / "chaos.html").read_text(encoding="utf-8")
    board.end()
