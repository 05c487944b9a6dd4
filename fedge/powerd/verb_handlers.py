"""Leases and the handlers of the verbs: requests are validated, changes made one at a time, the state found kept."""

import hmac
import logging
import math
import secrets
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from fedge.powerd import PROTOCOL, line_protocol, thermal_guard
from fedge.powerd.board_control import BoardControl
from fedge.powerd.config import CONFIG, Config
from fedge.powerd.line_protocol import Fields
from fedge.powerd.mode_records import KnobTables, Mode, PowerdRefusal
from fedge.powerd.state_keeper import StateKeeper

logger = logging.getLogger(__name__)

VERSION = "0.1.0"
CACHE_S = 5.0
"""Seconds for which an answer of nvpmodel is cached: a query is slow, but the mode may be set by hand at any time."""
RETRY_S = 10.0
"""Seconds between attempts to restore what could not be restored."""
LONGEST_S = 300.0
"""Longest lease in seconds."""
SLOW_S = 1.0
"""Work of at least this many seconds extends the lease; shorter work must not, or a flood of requests could keep it
alive.
"""


class PowerdLease(NamedTuple):
    """Who alone may change the mode, by which secret, and until when on the daemon's monotonic clock."""

    name: str
    token: str
    ends_s: float


def remaining_s(lease: PowerdLease, now_s: float) -> float:
    """Return the seconds until the lease ends, at least 0."""
    return max(0.0, lease.ends_s - now_s)


def check_holder(lease: Optional[PowerdLease], token: Optional[str], now_s: float) -> None:
    """Check that a change is permitted: the holder's, or anybody's while there is no lease.

    Raises:
        PowerdRefusal: Of kind not-holder or held.
    """
    if lease is None:
        if token is not None:
            raise PowerdRefusal("not-holder", "this lease has ended and the state found was put back; hold a new one")
        return
    if token is None:
        text = f"{lease.name} holds the board for {remaining_s(lease, now_s):.0f} s more; wait, or ask them"
        raise PowerdRefusal("held", text)
    if not hmac.compare_digest(token.encode("utf-8", "replace"), lease.token.encode("ascii")):
        text = f"this token is not that of {lease.name}, who holds the board now"
        raise PowerdRefusal("not-holder", f"{text}; hold a new lease when theirs has ended")


def begin_or_renew(
    lease: Optional[PowerdLease], name: str, seconds: float, token: Optional[str], new_token: str, now_s: float
) -> Optional[PowerdLease]:
    """Begin, renew or end a lease.

    ``seconds`` count from now, at most ``LONGEST_S``; 0 gives the lease back. ``token`` is the holder's, None to begin
    a lease, which gets ``new_token``; a renewed one keeps its name and token.

    Returns:
        The lease, or None if it was given back.

    Raises:
        PowerdRefusal: Of kind bad-request, not-holder or held.
    """
    if not 0 <= seconds <= LONGEST_S:
        text = f"got seconds={seconds:g}; from 0 (give back) to {LONGEST_S:g}, renewed in time"
        raise PowerdRefusal("bad-request", text)
    check_holder(lease, token, now_s)
    if lease is None:
        if seconds == 0:
            raise PowerdRefusal("bad-request", "got seconds=0 without a lease to give back; hold one with more seconds")
        return PowerdLease(name, new_token, now_s + seconds)
    return lease._replace(ends_s=now_s + seconds) if seconds > 0 else None


class Daemon:
    """State and verbs of the daemon; one request at a time. ``uid`` is the requesting user's, for the log only."""

    def __init__(
        self,
        board: BoardControl,
        keeper: StateKeeper,
        config: Config,
        clock: Callable[[], float] = time.monotonic,
        new_token: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._board, self._keeper, self._config = board, keeper, config
        self._clock, self._new_token = clock, new_token
        self._lease: Optional[PowerdLease] = None
        self._stop: Optional[thermal_guard.GuardStop] = None
        self._hottest_c: Optional[float] = None
        self._owed: List[str] = []
        self._retry_s = 0.0
        self._answers: Dict[str, Tuple[float, Any]] = {}

    def start(self) -> None:
        """Recover from a daemon that died, record the state found, and check the temperatures."""
        self._owed = self._keeper.start()
        self._retry_s = self._clock() + RETRY_S
        self.tick()

    def tick(self) -> None:
        """Do the periodic work, once a second: end expired leases, check temperatures, retry failed restores."""
        held, began_s = self._lease, self._clock()
        try:
            self._end_expired_lease()
            self._check_temperatures()
            if self._owed and self._clock() >= self._retry_s:
                self._put_back("what was left is tried again")
        except Exception:
            # The process edge: the temperature guard must still run in the next second.
            logger.exception("a look at the board failed")
        finally:
            self._extend_lease(held, began_s)

    def end(self) -> bool:
        """Restore everything for good; return False if something could not be restored."""
        self._lease = None
        return not self._keeper.changed or self._put_back("the daemon ends")

    def answer(self, line: bytes, uid: int) -> bytes:
        """Return the reply to one request line; never raises."""
        held, began_s = self._lease, self._clock()
        try:
            request = line_protocol.decode_request(line)
            verb = line_protocol.parse_verb(request)
            self._end_expired_lease()
            handle: Callable[[Fields, int], Fields] = getattr(self, "_" + verb.replace("-", "_"))
            return line_protocol.encode_reply(handle(request, uid))
        except PowerdRefusal as refused:
            return line_protocol.encode_refusal(refused)
        except OSError as error:
            logger.warning("a request by uid %d failed: %s", uid, error)
            return line_protocol.encode_refusal(PowerdRefusal("failed", f"{error}; see journalctl -u fedge-powerd"))
        except Exception:
            # The process edge: a bug in one verb must not stop the daemon for all clients.
            logger.exception("a request by uid %d failed", uid)
            mistake = PowerdRefusal("failed", "the daemon made a mistake; see journalctl -u fedge-powerd")
            return line_protocol.encode_refusal(mistake)
        finally:
            self._extend_lease(held, began_s)

    # The verbs

    def _describe(self, request: Fields, uid: int) -> Fields:
        board, config = self._board, self._config
        presets = self._get_cached_answer("presets", board.presets)
        return {
            "protocol": PROTOCOL,
            "version": VERSION,
            "board": board.identity(),
            "knobs": _tables_to_wire(board.tables()),
            "allowed": _tables_to_wire(board.allowed_tables()),
            "floor": {"cores": config.floor_cores, "cpu_khz": config.floor_cpu_khz},
            "emc": board.emc_control(),
            "presets": [dict(preset._asdict(), mode=preset.mode.to_wire()) for preset in presets],
            "extras": list(config.extras),
            "hottest_c": config.hottest_c,
        }

    def _get(self, request: Fields, uid: int) -> Fields:
        preset = self._get_cached_answer("preset", self._board.preset)
        held = self._lease
        mode, limits, unread = self._read_present()
        return {
            "mode": mode,
            "limits": limits,
            "preset": {"id": preset.id, "name": preset.name} if preset else None,
            "lease": {"name": held.name, "left_s": self._lease_left_s(held)} if held else None,
            "changed": self._keeper.changed,
            "temperature_c": self._hottest_c,
            "stopped": self._stop_reason() or unread,
        }

    def _read_present(self) -> Tuple[Fields, Fields, Optional[str]]:
        """Return mode and limits, or why they are unreadable: a missing file must not hide the rest of the reply."""
        try:
            return self._board.mode().to_wire(), self._board.limits(), None
        except PowerdRefusal as refused:
            return {}, {}, refused.text

    def _set(self, request: Fields, uid: int) -> Fields:
        if ("mode" in request) == ("preset" in request):
            raise PowerdRefusal("bad-request", 'got both or none of them; a set has either "mode" or "preset"')
        lock_min = line_protocol.parse_flag(request, "lock_min")
        mode = line_protocol.parse_mode(request) if "mode" in request else None
        preset = line_protocol.parse_text(request, "preset") if mode is None else ""
        self._check_holder(request)
        if lock_min:
            self._require_extra("lock-min")
        if lock_min and mode is None:
            raise PowerdRefusal("bad-request", "got lock_min with a preset; it goes with a mode")
        self._require_can_set()
        return self._apply_change(mode, preset, lock_min, uid)

    def _apply_change(self, mode: Optional[Mode], preset: str, lock_min: bool, uid: int) -> Fields:
        """Apply a change; nothing is saved for one that is refused or already in effect."""
        before: List[Mode] = []

        def first(found: Mode, beside: Fields) -> None:
            if mode is None:
                self._answers.clear()
            self._keeper.store_before_change(beside)
            before.append(found)

        began_s = self._clock()
        try:
            now = self._board.set_preset(preset, first) if mode is None else self._board.set_mode(mode, lock_min, first)
        except PowerdRefusal as refused:
            who, wished = self._caller_name(uid), preset if mode is None else mode.to_wire()
            logger.info("set by %s: to %s, refused as %s: %s", who, wished, refused.kind, refused.text)
            self._note_owed(refused.left)
            if before and not refused.left:
                self._settle_change(None)
            raise
        took_s = self._clock() - began_s
        if before:
            self._settle_change(now)
            logger.info("set by %s: from %s to %s", self._caller_name(uid), before[0].to_wire(), now.to_wire())
        return {"mode": now.to_wire(), "took_s": round(took_s, 6)}

    def _restore(self, request: Fields, uid: int) -> Fields:
        self._check_holder(request)
        if not self._put_back(f"restore by {self._caller_name(uid)}"):
            raise PowerdRefusal("failed", self._stop_reason() or "")
        return {"mode": self._board.mode().to_wire()}

    def _hold(self, request: Fields, uid: int) -> Fields:
        name, token = line_protocol.parse_text(request, "name"), line_protocol.parse_token(request)
        seconds = line_protocol.parse_number(request, "seconds")
        before = self._lease
        self._lease = begin_or_renew(
            before, name=name, seconds=seconds, token=token, new_token=self._new_token(), now_s=self._clock()
        )
        if self._lease is None:
            logger.info("hold by uid %d: %s gave the board back", uid, name)
            if self._keeper.changed and not self._put_back(f"{name} gave the board back"):
                raise PowerdRefusal("failed", self._stop_reason() or "")
            return {"token": token, "left_s": 0}
        if before is None:
            logger.info("hold by uid %d: %s holds the board for %g s", uid, name, seconds)
        return {"token": self._lease.token, "left_s": self._lease_left_s(self._lease)}

    def _drop_caches(self, request: Fields, uid: int) -> Fields:
        self._require_extra("drop-caches")
        self._check_holder(request)
        self._board.drop_caches()
        logger.info("drop-caches by %s", self._caller_name(uid))
        return {}

    def _fan(self, request: Fields, uid: int) -> Fields:
        self._require_extra("fan")
        percent = line_protocol.parse_number(request, "percent")
        if not 0 <= percent <= 100:
            raise PowerdRefusal("bad-request", f"got percent={percent:g}; it must be from 0 to 100")
        self._check_holder(request)
        self._require_can_set()
        try:
            self._board.set_fan(int(percent), self._keeper.store_before_change)
        except PowerdRefusal as refused:
            self._note_owed(refused.left)
            raise
        logger.info("fan by %s: %d %%", self._caller_name(uid), percent)
        return {"percent": int(percent)}

    # Shared by the verbs

    def _lease_left_s(self, held: PowerdLease) -> float:
        return round(remaining_s(held, self._clock()), 3)

    def _check_holder(self, request: Fields) -> None:
        check_holder(self._lease, line_protocol.parse_token(request), self._clock())

    def _get_cached_answer(self, what: str, ask: Callable[[], Any]) -> Any:
        """Return a cached answer of nvpmodel, which is slow; changes of the stock mode clear the cache."""
        at_s, answer = self._answers.get(what, (-math.inf, None))
        if self._clock() - at_s >= CACHE_S:
            answer = ask()
            self._answers[what] = (self._clock(), answer)
        return answer

    def _caller_name(self, uid: int) -> str:
        return f"uid {uid} ({self._lease.name})" if self._lease else f"uid {uid}"

    def _require_extra(self, name: str) -> None:
        if name not in self._config.extras:
            text = f'{name} is off on this board; to turn it on add "{name}" to "extras" in {CONFIG} and restart'
            raise PowerdRefusal("not-allowed", text)

    def _stop_reason(self) -> Optional[str]:
        if self._stop is not None:
            return self._stop.text
        if self._owed:
            left = "; ".join(self._owed)
            return f"not all could be put back: {left}; the state found is tried every {RETRY_S:g} s and at restore"
        return None

    def _require_can_set(self) -> None:
        text = self._stop_reason()
        if text is not None:
            raise PowerdRefusal(self._stop.kind if self._stop else "failed", text)

    def _put_back(self, why: str) -> bool:
        self._answers.clear()
        self._owed = self._keeper.put_back(keep_fan=self._stop is not None)
        self._retry_s = self._clock() + RETRY_S
        if self._owed:
            logger.error("%s: not all could be put back: %s", why, "; ".join(self._owed))
            return False
        logger.info("%s: the state found is set again%s", why, ", but for the fan" if self._keeper.changed else "")
        return True

    def _note_owed(self, left: Sequence[str]) -> None:
        """Schedule what a failed change left behind for restoring."""
        if left:
            self._owed, self._retry_s = list(left), self._clock() + RETRY_S

    def _settle_change(self, mode: Optional[Mode]) -> None:
        """Discard the saved state if it is in effect again; if the board cannot be read, it stays to be restored."""
        try:
            self._keeper.forget_if_unchanged(mode)
        except (PowerdRefusal, OSError) as error:
            logger.warning("whether the board is as it was found cannot be told, so it is put back later: %s", error)

    def _extend_lease(self, held: Optional[PowerdLease], began_s: float) -> None:
        """Extend the lease by the time that the daemon was busy and could not receive a renewal."""
        spent_s = self._clock() - began_s
        if held is not None and self._lease is held and spent_s >= SLOW_S:
            self._lease = held._replace(ends_s=held.ends_s + spent_s)

    def _end_expired_lease(self) -> None:
        if self._lease is None or self._clock() < self._lease.ends_s:
            return
        name, self._lease = self._lease.name, None
        logger.warning("the lease of %s ended without renewal", name)
        if self._keeper.changed:
            self._put_back(f"the lease of {name} ended")

    def _check_temperatures(self) -> None:
        before, lost = self._stop, ""
        temperatures_c: Optional[Dict[str, float]] = None
        try:
            temperatures_c = self._board.temperatures()
        except (PowerdRefusal, OSError) as error:
            lost = error.text if isinstance(error, PowerdRefusal) else str(error)
        self._hottest_c = max((temperatures_c or {}).values(), default=None)
        self._stop = thermal_guard.check_temperatures(before, temperatures_c, self._config.hottest_c, lost)
        if self._stop is not None:
            self._set_full_fan(told=before is not None)
        if before is None and self._stop is not None:
            logger.warning("%s", self._stop.text)
            if self._keeper.changed:
                self._put_back(self._stop.kind)
        elif before is not None and self._stop is None:
            logger.info("modes are set again")
            if self._keeper.changed:
                self._put_back("the board is cool enough again")

    def _set_full_fan(self, told: bool) -> None:
        """Set the fan to full speed while modes are not set, if permitted; ``told``: a failure was reported before."""
        if "fan" not in self._config.extras:
            return
        try:
            self._board.set_fan(100, self._store_fan_state)
        except PowerdRefusal as refused:
            logger.log(logging.DEBUG if told else logging.WARNING, "the fan is not at full speed: %s", refused.text)

    def _store_fan_state(self, beside: Fields) -> None:
        """Save the state found; a full disk must not keep the fan from running."""
        try:
            self._keeper.store_before_change(beside)
        except PowerdRefusal as refused:
            logger.warning("the fan will stay at full speed: %s", refused.text)


def _tables_to_wire(tables: KnobTables) -> Dict[str, List[int]]:
    return {knob: list(values) for knob, values in zip(tables._fields, tables)}
