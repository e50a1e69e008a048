#!/usr/bin/env bash
# A Ceph cluster of one machine, with its S3 gateway, for as long as standard input stays open:
#
#     tests/support/ceph.sh FOLDER PORT MONITOR_PORT
#
# FOLDER is for its files and must not exist; everything is kept in memory. Prints "ready" when the gateway answers on
# http://127.0.0.1:PORT with the key pair testing/testing. Needs Debian's ceph-mon, ceph-osd, ceph-common and radosgw.
set -euo pipefail
folder=$1 port=$2 monitor=[v2:127.0.0.1:$3]
mkdir -p "$folder"/{mon,osd,rgw}
export CEPH_CONF=$folder/ceph.conf
osd=$(cat /proc/sys/kernel/random/uuid)
daemons=()
trap 'kill "${daemons[@]}" 2>/dev/null || true; wait' EXIT

cat >"$CEPH_CONF" <<END
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
public addr = 127.0.0.1
mon host = $monitor
auth cluster required = none
auth service required = none
auth client required = none
keyring = $folder/keyring
run dir = $folder
log file = $folder/\$name.log
admin socket = $folder/\$name.\$pid.asok
pid file =
# No data of anybody's pass here: neither copies nor signatures of messages.
ms mon cluster mode = crc
ms mon service mode = crc
ms mon client mode = crc
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
mon max pg per osd = 1000
mon data = $folder/mon
mon data avail crit = 1
osd data = $folder/osd
osd objectstore = memstore
rgw data = $folder/rgw
rgw frontends = beast endpoint=127.0.0.1:$port tcp_nodelay=1
END

daemon() {  # run one in the background, with its output in a file
  local name=$1
  shift
  "$@" >"$folder/$name.out" 2>&1 <&- &
  daemons+=($!)
}

until_true() {  # ask every fifth of a second, for a minute
  local left=300
  until "$@" >"$folder/last.out" 2>&1; do
    if ((left-- == 0)); then
      printf 'gave up waiting for: %s\n' "$*" >&2
      tail -n 5 "$folder"/*.out >&2
      exit 1
    fi
    sleep 0.2
  done
}

osd_is_up() { ceph osd stat | grep -q '1 up'; }
gateway_answers() { curl --silent --output /dev/null "http://127.0.0.1:$port/"; }

monmaptool --create --fsid "$(sed -n 's/^fsid = //p' "$CEPH_CONF")" \
  --addv a "$monitor" "$folder/monmap" >/dev/null
ceph-mon --mkfs -i a --monmap "$folder/monmap" >"$folder/mkfs.out" 2>&1
daemon mon ceph-mon -i a -f
ceph osd new "$osd" >/dev/null
ceph-osd -i 0 --mkfs --osd-uuid "$osd" >>"$folder/mkfs.out" 2>&1
daemon osd ceph-osd -i 0 -f
until_true osd_is_up
daemon gateway radosgw -n client.rgw -f
until_true gateway_answers
radosgw-admin -n client.rgw user create --uid=testing --display-name=testing --access-key=testing --secret=testing \
  >"$folder/user.out" 2>&1
echo ready
cat >/dev/null
