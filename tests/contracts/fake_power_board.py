"""A board for the power daemon's tests: the four knobs in memory, every change counted, every fault on demand."""

from fedge.powerd.mode_records import KnobTables, Mode, PowerdRefusal, Preset

TABLES = KnobTables((1, 2, 3, 4), (102000, 408000, 1479000), (76800000, 921600000), (204000000, 1600000000))
MAXN = Preset(0, "MAXN", Mode(4, None, None, None), needs_reboot=False, default=True)
LOW = Preset(1, "5W", Mode(2, 408000, 76800000, 204000000), needs_reboot=False, default=False)
TOP = Mode(4, 1479000, 921600000, 1600000000)


def nothing(*found):
    pass


class FakeBoard:
    """Like ``fedge.powerd.board_control.BoardControl``, without a machine; ``events`` has every change in order."""

    def __init__(self):
        self.now, self.id = TOP, 0
        self.fan = 30
        self.events = []
        self.snapshots = []  # one entry each: whether nvpmodel was asked
        self.sticks = True
        self.undoes = True
        self.tells_preset = True
        self.readable = True
        self.puts_back = True
        self.celsius = {"CPU-therm": 40.0, "GPU-therm": 38.0}

    def identity(self):
        return {"model": "a fake board", "compatible": ["nvidia,fake"], "l4t": "32.7.1"}

    def tables(self):
        return TABLES

    def allowed_tables(self):
        return TABLES._replace(cores=(2, 3, 4), cpu_khz=(408000, 1479000))

    def emc_control(self):
        return "lock"

    def presets(self):
        return [MAXN, LOW]

    def preset(self):
        return self.presets()[self.id]

    def mode(self):
        if not self.readable:
            raise PowerdRefusal("failed", "the board's state cannot be read: min_freq is gone")
        return self.now

    def limits(self):
        return {"cpu0": [102000, self.now.cpu_khz]}

    def snapshot(self, with_preset: bool = True):
        self.snapshots.append(with_preset)
        return {"mode": list(self.mode()), "nvpmodel": self.id if with_preset and self.tells_preset else None}

    def set_mode(self, mode, lock_min: bool = False, first=nothing):
        for knob, value in mode.to_wire().items():
            if value not in getattr(TABLES, knob):
                raise PowerdRefusal("off-table", f"got {knob} {value}")
            if value not in getattr(self.allowed_tables(), knob):
                raise PowerdRefusal("below-floor", f"got {knob} {value}")
        if self.now == self.now._replace(**mode.to_wire()):
            return self.now
        first(self.now, {})
        if not self.sticks:
            raise PowerdRefusal("did-not-stick", "the clock did not stick", 1, [] if self.undoes else ["gpu: it is 1"])
        self.events.append(("set", mode, lock_min))
        self.now = self.now._replace(**mode.to_wire())
        return self.now

    def set_preset(self, name_or_id, first=nothing):
        for preset in self.presets():
            if name_or_id in {preset.name, preset.id}:
                first(self.now, {"nvpmodel": self.id})
                self.events.append(("preset", preset.name))
                self.id = preset.id
                self.now = TOP._replace(**preset.mode.to_wire())
                return self.now
        raise PowerdRefusal("off-table", f"got preset {name_or_id}")

    def put_back(self, snapshot):
        if not self.puts_back:
            return ["gpu max_freq reads 1"]
        self.events.append(("put back",))
        wished = snapshot.get("nvpmodel")
        if wished not in (None, self.id):
            self.events.append(("nvpmodel", wished))
            self.id, self.now = wished, TOP._replace(**self.presets()[wished].mode.to_wire())
        self.now = Mode(*snapshot.get("mode", self.now))
        self.fan = self.fan if snapshot.get("fan") is None else snapshot["fan"]
        return []

    def temperatures(self):
        if self.celsius is None:
            raise PowerdRefusal("sensor-lost", "CPU-therm cannot be read")
        return dict(self.celsius)

    def drop_caches(self):
        self.events.append(("drop caches",))

    def set_fan(self, percent, first=nothing):
        if self.fan is None:
            raise PowerdRefusal("not-allowed", "this board has no fan that can be set")
        if percent == self.fan:
            return
        first({"fan": self.fan})
        self.events.append(("fan", percent))
        self.fan = percent
