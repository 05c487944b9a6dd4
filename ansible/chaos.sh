#!/bin/sh
# A fault of `fedge chaos` on this board. What could outlast the command has a timer here that undoes it whatever becomes of the
# command and of the network; and nothing of a fault is on the disk, so that a restart of the board ends all of them.
#   chaos.sh begin OWNER FAULT SECONDS    chaos.sh undo OWNER    chaos.sh restore FAULT (what the timer calls)
# Only the command that began a fault, its owner, undoes it.
set -eu
UNIT=fedge-chaos
ROOT=${CHAOS_ROOT:-} # another one in tests
OWN=$ROOT/run/$UNIT

list_server_addresses() {
    host=$(sed -n 's/.*--superlink[ =]\([^ ]*\):[0-9]*.*/\1/p' "$ROOT/etc/systemd/system/fedge-supernode.service" | tr -d '[]')
    getent ahosts "$host" | cut -d' ' -f1 | sort -u
}

begin_fault() {
    case $1 in
    kill-worker | kill-powerd | kill-supernode) systemctl kill --signal=KILL "fedge-${1#kill-}" ;;
    kill-client) systemctl kill --signal=KILL fedge-ready fedge-superexec ;;
    stop-worker | stop-supernode) systemctl kill --signal=STOP "fedge-${1#stop-}" ;;
    cut-link)
        list_server_addresses > "$OWN/addresses"
        [ -s "$OWN/addresses" ]
        while read -r address; do ip route add blackhole "$address"; done < "$OWN/addresses"
        ;;
    *)
        echo "$1 is no fault of this board" >&2
        exit 2
        ;;
    esac
}

restore() {
    case $1 in
    kill-client) systemctl start fedge-ready fedge-superexec ;;
    kill-*) systemctl start "fedge-${1#kill-}" ;;
    stop-*) systemctl kill --signal=CONT "fedge-${1#stop-}" || systemctl start "fedge-${1#stop-}" ;;
    cut-link) while read -r address; do ip route del blackhole "$address" || true; done < "$OWN/addresses" ;;
    esac
}

case $1 in
begin)
    if systemctl is-failed --quiet $UNIT.service; then # what is to be put back may lie in $OWN
        echo "an earlier fault was not undone: journalctl -u $UNIT; then systemctl reset-failed $UNIT" >&2
        exit 1
    fi
    if systemctl is-active --quiet $UNIT.timer; then
        echo "another fedge chaos works on this board" >&2
        exit 1
    fi
    rm -rf "$OWN"
    mkdir -m 0700 "$OWN"
    cp "$0" "$OWN/chaos.sh"
    echo "$2" > "$OWN/owner"
    systemd-run --quiet --unit=$UNIT --on-active="$4" --timer-property=AccuracySec=100ms --property=Type=oneshot \
        /bin/sh "$OWN/chaos.sh" restore "$3"
    begin_fault "$3"
    ;;
restore) restore "$2" ;;
undo)
    [ "$(cat "$OWN/owner" 2> /dev/null)" = "$2" ] || exit 0
    # Before the timer, which holds the unit. Without a unit there is nothing left to undo.
    if ! systemctl start $UNIT.service 2> /dev/null && systemctl is-failed --quiet $UNIT.service; then
        echo "the fault was not undone: journalctl -u $UNIT" >&2
        exit 1
    fi
    systemctl stop $UNIT.timer 2> /dev/null || true
    rm -rf "$OWN"
    ;;
esac
