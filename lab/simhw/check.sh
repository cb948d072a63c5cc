#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs in a guest, as root: is the simulated hardware what /etc/simhw.conf says, and does it
# follow /proc/simhw?
# usage: check.sh [--tools] [--reload]
#   --tools   also look through lspci, ibstat, ibv_devinfo and rdma, which must be installed
#   --reload  also unload and load the module twice (nothing may use the devices)
# Leaves the devices as /etc/simhw.conf describes them. Exit status: 0 all right, 1 something is not.
set -u

CONF=/etc/simhw.conf
CONTROL=/proc/simhw
PCI=/sys/bus/pci/devices
tools='' reload=''
for option; do
	case $option in
	--tools) tools=1 ;;
	--reload) reload=1 ;;
	*) echo "check.sh: unknown option $option" >&2; exit 2 ;;
	esac
done

failures=0 checks=0
fail() { echo "FAIL $*"; failures=$((failures + 1)); }
want() { # WHAT WANTED HAVE
	checks=$((checks + 1))
	[[ $2 == "$3" ]] || fail "$1: want $2, have ${3:-nothing}"
}
truth() { # WHAT COMMAND...
	local what=$1; shift
	checks=$((checks + 1))
	"$@" || fail "$what: $* is not so"
}
value() { cat "$1" 2>/dev/null || echo unreadable; }
eventually() { # WHAT WANTED COMMAND...; udev and the stack's work queues need their time
	local what=$1 wanted=$2 have i; shift 2
	for ((i = 0; i < 40; i++)); do
		have=$("$@" 2>/dev/null)
		[[ $have == "$wanted" ]] && break
		sleep 0.5
	done
	want "$what" "$wanted" "$have"
}
control() { echo "$*" >$CONTROL || fail "$CONTROL refused '$*'"; }
refused() { # COMMAND...
	checks=$((checks + 1))
	if { echo "$*" >$CONTROL; } 2>/dev/null; then fail "$CONTROL accepted '$*'"; fi
}
get() { # KEY LINE
	local word
	for word in $2; do [[ $word == "$1="* ]] && echo "${word#*=}"; done
}
ibdev() { ls "$PCI/$1/infiniband" 2>/dev/null; }
netdev() { ls "$PCI/$1/net" 2>/dev/null; }
port() { value "/sys/class/infiniband/$(ibdev "$1")/ports/1/$2"; }
has() { # BDF KIND...; prints those character devices of the HCA that exist
	local bdf=$1 kind name; shift
	for kind; do
		name=$(ls "$PCI/$bdf/$kind" 2>/dev/null | grep -v '^issm' | head -n 1)
		[[ -c /dev/infiniband/$name ]] && echo -n "$kind "
	done
}

# vendor device class speed, independent of the module's own table
ids() {
	case $1 in
	T4) echo 0x10de 0x1eb8 0x030200 8.0 ;;
	A100-SXM4-40GB) echo 0x10de 0x20b0 0x030200 16.0 ;;
	A100-SXM4-80GB) echo 0x10de 0x20b2 0x030200 16.0 ;;
	H100-SXM5-80GB) echo 0x10de 0x2330 0x030200 32.0 ;;
	ConnectX-6) echo 0x15b3 0x101b 0x020700 16.0 ;;
	ConnectX-7) echo 0x15b3 0x1021 0x020700 32.0 ;;
	*) echo ? ? ? ? ;;
	esac
}
signal() { # LINK_LAYER RATE, as the kernel's "rate" file prints it
	case $1.$2 in
	infiniband.100 | ethernet.100) echo "100 Gb/sec (4X EDR)" ;;
	infiniband.200 | ethernet.200) echo "200 Gb/sec (4X HDR)" ;;
	infiniband.400 | ethernet.400) echo "400 Gb/sec (4X NDR)" ;;
	ethernet.50) echo "50 Gb/sec (2X EDR)" ;;
	ethernet.25) echo "25 Gb/sec (1X EDR)" ;;
	*) echo ? ;;
	esac
}
number() { case $1 in active) echo '4: ACTIVE' ;; armed) echo '3: ARMED' ;; init) echo '2: INIT' ;; *) echo '1: DOWN' ;; esac; }
physical() { case $1 in down) echo '2: Polling' ;; disabled) echo '3: Disabled' ;; *) echo '5: LinkUp' ;; esac; }

[[ -e $CONTROL ]] || { echo "FAIL $CONTROL: want it, have nothing; is the module simhw loaded?"; exit 1; }
truth "description says simulated" grep -qi simulated <(modinfo -F description simhw)
truth "$CONTROL says simulated" grep -q simulated $CONTROL
mark="simhw check $$ $RANDOM"
echo "$mark" >/dev/kmsg
log() { dmesg | sed "1,/$mark/d"; }

mapfile -t lines < <(grep -E '^(gpu|hca) model=' $CONF)
want "devices in $CONF and $CONTROL" ${#lines[@]} "$(grep -cE '^(gpu|hca) ' $CONTROL)"
gpus=() hcas=()
for i in "${!lines[@]}"; do
	bdf=$(printf '0001:%02x:00.0' $((0x41 + i)))
	case ${lines[i]} in gpu*) gpus+=("$bdf ${lines[i]}") ;; *) hcas+=("$bdf ${lines[i]}") ;; esac
done

for module in ib_uverbs ib_umad rdma_ucm ib_ipoib; do truth "modprobe $module" modprobe $module; done

check_pci() { # BDF LINE
	local vendor device class speed port
	read -r vendor device class speed <<<"$(ids "$(get model "$2")")"
	[[ $(get link_layer "$2") == ethernet ]] && class=0x020000
	want "$1 vendor" "$vendor" "$(value $PCI/$1/vendor)"
	want "$1 device" "$device" "$(value $PCI/$1/device)"
	want "$1 class" "$class" "$(value $PCI/$1/class)"
	for link in current max; do
		want "$1 ${link}_link_speed" "$speed GT/s PCIe" "$(value $PCI/$1/${link}_link_speed)"
		want "$1 ${link}_link_width" 16 "$(value $PCI/$1/${link}_link_width)"
	done
	want "$1 numa_node" "$(get numa "$2")" "$(value $PCI/$1/numa_node)"
	port=$(basename "$(dirname "$(readlink -f $PCI/$1)")")
	want "$1 parent's class" 0x060400 "$(value $PCI/$port/class)"
	truth "$1 BAR 0 assigned" grep -qv '^0x0* 0x0* ' <(head -n 1 $PCI/$1/resource)
}
check_hca() { # BDF LINE
	local layer state
	layer=$(get link_layer "$2") state=$(get state "$2")
	want "$1 driver" mlx5_core "$(basename "$(readlink $PCI/$1/driver)")"
	eventually "$1 character devices" "infiniband_verbs infiniband_mad " has "$1" infiniband_verbs infiniband_mad
	want "$1 netdevs" 1 "$(netdev "$1" | wc -l)"
	if [[ $layer == ethernet ]]; then
		want "$1 link layer" Ethernet "$(port "$1" link_layer)"
		ip link set "$(netdev "$1")" up || fail "$1: cannot set its interface up"
	else
		want "$1 link layer" InfiniBand "$(port "$1" link_layer)"
		want "$1 phys_state" "$(physical "$state")" "$(port "$1" phys_state)"
	fi
	want "$1 state" "$(number "$state")" "$(port "$1" state)"
	if [[ $state != down && $state != disabled ]]; then
		want "$1 rate" "$(signal "$layer" "$(get rate_gbps "$2")")" "$(port "$1" rate)"
	fi
}
check_all() {
	local entry
	for entry in "${gpus[@]}" "${hcas[@]}"; do check_pci "${entry%% *}" "${entry#* }"; done
	for entry in "${hcas[@]}"; do check_hca "${entry%% *}" "${entry#* }"; done
	[[ ${#hcas[@]} == 0 ]] || truth "rdma_cm" test -c /dev/infiniband/rdma_cm
	want "node GUIDs, distinct" ${#hcas[@]} "$(cat /sys/class/infiniband/*/node_guid 2>/dev/null | sort -u | wc -l)"
}
check_all

if [[ $tools ]]; then
	for entry in "${gpus[@]}"; do
		truth "lspci ${entry%% *}" grep -q '^3D controller: NVIDIA' <(lspci -D -s "${entry%% *}" | cut -d' ' -f2-)
	done
	for entry in "${hcas[@]}"; do
		bdf=${entry%% *}
		truth "lspci -k $bdf" grep -q 'driver in use: mlx5_core' <(lspci -D -k -s "$bdf")
		want "ibstat $bdf rate" "$(port "$bdf" rate | cut -d' ' -f1)" "$(ibstat "$(ibdev "$bdf")" 1 | sed -n 's/^\s*Rate: //p')"
		truth "ibv_devinfo $bdf" grep -q 'vendor_id:.*0x02c9' <(ibv_devinfo -d "$(ibdev "$bdf")")
		truth "rdma link $bdf" grep -q "$(ibdev "$bdf")/1 " <(rdma link)
	done
fi

# Ports
n=0
for entry in "${hcas[@]}"; do
	bdf=${entry%% *} line=${entry#* } name=mlx5_$n
	n=$((n + 1))
	layer=$(get link_layer "$line") rate=$(get rate_gbps "$line")
	net=$(netdev "$bdf")
	ip link set "$net" up || fail "$bdf: cannot set $net up"
	control port $name state active
	eventually "$bdf ACTIVE" '4: ACTIVE' port "$bdf" state
	eventually "$net carrier" 1 value "/sys/class/net/$net/carrier"
	downed=$(port "$bdf" counters/link_downed)
	control port $name state down
	eventually "$bdf DOWN" '1: DOWN' port "$bdf" state
	eventually "$net no carrier" 0 value "/sys/class/net/$net/carrier"
	want "$bdf link_downed" $((downed + 1)) "$(port "$bdf" counters/link_downed)"
	if [[ $layer == infiniband ]]; then
		want "$bdf polling" '2: Polling' "$(port "$bdf" phys_state)"
		control port $name state init
		eventually "$bdf INIT" '2: INIT' port "$bdf" state
		want "$bdf link up" '5: LinkUp' "$(port "$bdf" phys_state)"
		want "$bdf LID without a subnet manager" 0xffff "$(port "$bdf" lid)"
	fi
	control port $name state active
	control port $name rate 100
	eventually "$bdf lower rate" "$(signal "$layer" 100)" port "$bdf" rate
	control port "$(ibdev "$bdf")" rate "$rate"
	eventually "$bdf rate again" "$(signal "$layer" "$rate")" port "$bdf" rate
	control port $name counter symbol_error 17
	want "$bdf symbol_error" 17 "$(port "$bdf" counters/symbol_error)"
	eventually "$net carrier again" 1 value "/sys/class/net/$net/carrier"
	ip link set "$net" down || fail "$bdf: cannot set $net down"
	refused port $name rate 123
	refused port $name state fine
done

# PCI Express links, loss, removal
faults() { # KIND INDEX BDF
	local port speed
	port=$(basename "$(dirname "$(readlink -f $PCI/$3)")")
	speed=$(value $PCI/$3/max_link_speed)
	control "$1" "$2" width 8
	control "$1" "$2" speed 2.5
	want "$3 degraded width" 8 "$(value $PCI/$3/current_link_width)"
	want "$3 degraded speed" "2.5 GT/s PCIe" "$(value $PCI/$3/current_link_speed)"
	want "$3 maximum width" 16 "$(value $PCI/$3/max_link_width)"
	refused "$1" "$2" width 32
	refused "$1" "$2" speed 64
	control "$1" "$2" acs on
	want "$3 ACS control of its port" 1d "$(od -An -tx1 -j 262 -N 1 $PCI/$port/config | tr -d ' ')"
	control "$1" "$2" acs off
	control "$1" "$2" lost
	want "$3 lost: ID" "ff ff ff ff" "$(od -An -tx1 -N 4 $PCI/$3/config | sed 's/^ *//')"
	control "$1" "$2" restore
	eventually "$3 restored: width" 16 value $PCI/$3/current_link_width
	control "$1" "$2" remove
	truth "$3 removed" test ! -e $PCI/$3
	echo 1 >/sys/bus/pci/rescan
	truth "$3 stays away from a rescan" test ! -e $PCI/$3
	control "$1" "$2" restore
	want "$3 back: speed" "$speed" "$(value $PCI/$3/current_link_speed)"
}
for i in "${!gpus[@]}"; do faults gpu "$i" "${gpus[i]%% *}"; done
for i in "${!hcas[@]}"; do
	bdf=${hcas[i]%% *}
	faults hca "$i" "$bdf"
	eventually "$bdf back: RDMA device" 1 eval "ibdev $bdf | wc -l"
done
if [[ ${#gpus[@]} != 0 ]]; then
	bus=$(cut -d: -f2 <<<"${gpus[0]}")
	control xid 0 79
	truth "Xid in the kernel log" grep -qF "NVRM: Xid (PCI:0001:$bus:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus." <(log)
	control xid 0 31 MMU Fault: made up
	truth "Xid with a text" grep -qF "name=<unknown>, MMU Fault: made up" <(log)
	refused gpu 99 remove
	refused xid 0 12345
fi
refused gpu model=None numa=0
refused nonsense

# As at boot again
again() { control reset; cat $CONF >$CONTROL || fail "$CONF was refused"; udevadm settle; check_all; }
again
if [[ $reload ]]; then
	for ((i = 0; i < 2; i++)); do
		truth "rmmod simhw" rmmod simhw
		truth "devices are gone" test ! -e $PCI/0001:40:00.0
		truth "modprobe simhw" modprobe simhw
		cat $CONF >$CONTROL || fail "$CONF was refused"
		udevadm settle
		check_all
	done
fi

# A guest that the host gives no CPU time to complains of soft lockups, whatever runs in it.
trouble=$(log | grep -E 'BUG:|WARNING:|Oops|general protection|refcount|timing out|transmit timeout' | grep -v 'soft lockup')
want "complaints of the kernel" "" "$trouble"
echo "simhw: $checks checks, $failures failures"
((failures == 0))
