#!/bin/sh
# A fault of `fedge chaos` on this board. What could outlast the command has a timer here that undoes it whatever becomes of the
# command and of the network; and nothing of a fault is on the disk, so that a restart of the board ends all of them.
#   chaos.sh begin OWNER FAULT SECONDS    chaos.sh undo OWNER    chaos.sh restore FAULT (what the timer calls)
# Only the command that began a fault, its owner, undoes it.
set -eu
UNIT=fedge-chaos
ROOT=${CHAOS_ROOT:-} # another one in tests
OWN=$ROOT/run/$UNIT
FOLDER=$ROOT/var/lib/fedge/node
# A copy of the folder is held in memory, of which a Nano has 4 GB for everything.
MOST_KB=65536

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
    fill-disk)
        used=$(du -sk "$FOLDER" | cut -f1)
        if [ "$used" -gt $MOST_KB ]; then
            echo "$FOLDER holds $used kB, more than the $MOST_KB kB of which memory takes a copy" >&2
            exit 1
        fi
        cp -a "$FOLDER" "$OWN/kept"
        mount -t tmpfs -o "size=$((used + 64))k,mode=2750,uid=$(stat -c %u "$FOLDER"),gid=$(stat -c %g "$FOLDER")" tmpfs "$FOLDER"
        cp -a "$OWN/kept/." "$FOLDER/"
        rm -rf "$OWN/kept"
        dd if=/dev/zero of="$FOLDER/.full" bs=1k 2> /dev/null || true # until there is no room
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
    fill-disk) restore_disk ;;
    esac
}

# What was written while the disk was full stays, and what was deleted stays deleted.
restore_disk() {
    mountpoint -q "$FOLDER" || return 0
    rm -f "$FOLDER/.full"
    cp -a "$FOLDER" "$OWN/kept"
    umount "$FOLDER" || umount --lazy "$FOLDER"
    cd "$FOLDER"
    find . -mindepth 1 -depth | while read -r name; do [ -e "$OWN/kept/$name" ] || rm -rf "$name"; done
    cp -a "$OWN/kept/." "$FOLDER/"
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
