"""The recorded boards and their kernel: what the other tests of real boards rely on."""

import errno

import pytest
from contracts import jetsons
from contracts.jetsons.kernel import KernelMachine

CPU = "/sys/devices/system/cpu"
POLICY = CPU + "/cpufreq/policy{}/{}"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc/"


@pytest.fixture
def xavier(roots):
    """An AGX Xavier in its default preset: cores 0 to 3 are on, policies 4 and 6 are gone."""
    return KernelMachine(str(roots.root("agx-xavier")))


@pytest.fixture
def nano(roots):
    return KernelMachine(str(roots.root("nano")))


def refusal(machine, path, text):
    with pytest.raises(OSError) as caught:
        machine.write(path, text)
    return errno.errorcode[caught.value.errno]


def test_no_link_leaves_a_root_and_every_link_leads_somewhere(machine):
    for path, content in jetsons.contents(machine.root).items():
        if content.startswith(b"-> "):
            assert not content.startswith(b"-> /")
            assert machine.exists(path), path
            machine.resolve(path)


def test_a_minimum_above_the_maximum_is_refused_and_so_is_the_reverse(machine):
    policy = POLICY.format(0, "scaling_{}_freq")
    table = [int(word) for word in machine.read(POLICY.format(0, "scaling_available_frequencies")).split()]
    machine.write(policy.format("min"), str(table[0]))
    machine.write(policy.format("max"), str(table[3]))

    assert refusal(machine, policy.format("min"), str(table[4])) == "EINVAL"
    machine.write(policy.format("min"), str(table[3]))
    assert refusal(machine, policy.format("max"), str(table[2])) == "EINVAL"
    assert machine.read(policy.format("max")) == str(table[3])


@pytest.mark.parametrize("name", ["nano", "xavier-nx"])
def test_a_drifting_memory_clock_reads_otherwise_each_time_in_any_process_until_it_is_locked(name, roots):
    truth, machine = jetsons.board(name), KernelMachine(str(roots.root(name)))
    folder = EMC if truth.emc.bpmp else "/sys/kernel/debug/clk/override.emc/"
    rate, lock = ("rate", "mrq_rate_locked") if truth.emc.bpmp else ("clk_rate", "clk_state")
    before = jetsons.contents(machine.root)
    assert len({machine.read(folder + rate) for _ in range(4)}) == 1
    machine.drift()
    read = [one.read(folder + rate) for one in (machine, KernelMachine(machine.root)) for _ in range(2)]
    assert all(read[n] != read[n + 1] for n in range(3))
    assert {int(rate_hz) for rate_hz in read} <= set(truth.emc_hz)
    assert jetsons.contents(machine.root) == before
    machine.write(folder + lock, "1")
    assert len({machine.read(folder + rate) for _ in range(4)}) == 1


def test_a_policy_goes_with_its_last_core_and_comes_back_reset_with_its_first(xavier):
    assert not xavier.exists(POLICY.format(4, ""))
    assert not xavier.exists(CPU + "/cpu5/cpufreq")

    xavier.write(CPU + "/cpu5/online", "1")

    assert xavier.read(POLICY.format(4, "affected_cpus")) == "5"
    assert xavier.read(POLICY.format(4, "scaling_max_freq")) == "2265600"
    assert xavier.read(POLICY.format(4, "scaling_min_freq")) == "115200"
    assert xavier.read(CPU + "/online") == "0-3,5"
    xavier.write(POLICY.format(4, "scaling_max_freq"), "1190400")
    xavier.write(CPU + "/cpu4/online", "1")
    assert xavier.read(POLICY.format(4, "scaling_max_freq")) == "1190400"
    xavier.write(CPU + "/cpu4/online", "0")
    xavier.write(CPU + "/cpu5/online", "0")
    xavier.write(CPU + "/cpu5/online", "1")
    assert xavier.read(POLICY.format(4, "scaling_max_freq")) == "2265600"


def test_core_0_stays_on_and_files_that_only_tell_cannot_be_written(xavier, nano):
    assert refusal(xavier, CPU + "/cpu0/online", "0") == "EBUSY"
    assert refusal(nano, CPU + "/cpu0/online", "0") == "ENOENT"
    assert refusal(xavier, POLICY.format(0, "cpuinfo_max_freq"), "1") == "EACCES"
    assert refusal(xavier, "/sys/class/thermal/thermal_zone0/temp", "1") == "EACCES"
