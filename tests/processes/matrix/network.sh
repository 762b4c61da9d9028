#!/bin/sh
# Runs a command in a network namespace whose only network is a bad one: what ranks send each other
# by TCP goes through a tunnel, and there through the relay, although they are on one machine.
# network.sh RELAY DELAY_MS LOSS_PERMILLE BYTES_PER_SECOND COMMAND...
set -e
relay=$1; delay=$2 loss=$3 rate=$4; shift 4
ip link set lo up
ip tuntap add dev impaired mode tun
ip addr add 10.213.0.1/32 dev impaired
ip link set impaired up
# What is sent from here to the address goes out; what comes in from the tunnel is for us.
ip rule add pref 1000 lookup local
ip rule del pref 0
ip rule add pref 10 iif lo to 10.213.0.1 lookup 100
ip route add 10.213.0.1 dev impaired table 100
echo 1 > /proc/sys/net/ipv4/conf/impaired/accept_local
"$relay" impaired "$delay" "$loss" "$rate" &
relay=$!
code=0
"$@" || code=$?
kill "$relay"
exit "$code"
