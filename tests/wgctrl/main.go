// Command wgctrl-check configures a WireGuard device through wgctrl-go, the library of most Go programs that manage
// WireGuard, and fails if what it reads back is not what it set.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

func check(err error, what string) {
	if err != nil {
		log.Fatalf("%s: %v", what, err)
	}
}

func require(ok bool, format string, args ...any) {
	if !ok {
		log.Fatalf(format, args...)
	}
}

func cidr(text string) net.IPNet {
	_, block, err := net.ParseCIDR(text)
	check(err, text)
	return *block
}

func key() wgtypes.Key {
	k, err := wgtypes.GeneratePrivateKey()
	check(err, "a key")
	return k
}

func blocks(peer wgtypes.Peer) []string {
	var all []string
	for _, block := range peer.AllowedIPs {
		all = append(all, block.String())
	}
	slices.Sort(all)
	return all
}

func main() {
	log.SetFlags(0)
	name := os.Args[1]
	client, err := wgctrl.New()
	check(err, "wgctrl")
	defer client.Close()

	// It takes every file beside the socket for a device, and fails if one is not.
	devices, err := client.Devices()
	check(err, "listing devices")
	require(len(devices) == 1 && devices[0].Name == name, "devices: %v", devices)
	require(devices[0].Type == wgtypes.Userspace, "type %v", devices[0].Type)

	private, psk := key(), key()
	one, two := key().PublicKey(), key().PublicKey()
	port, mark, keepalive := 23456, 77, 25*time.Second
	endpoint := &net.UDPAddr{IP: net.ParseIP("192.0.2.7").To4(), Port: 700}
	check(client.ConfigureDevice(name, wgtypes.Config{
		PrivateKey:   &private,
		ListenPort:   &port,
		FirewallMark: &mark,
		ReplacePeers: true,
		Peers: []wgtypes.PeerConfig{
			{
				PublicKey: one, PresharedKey: &psk, Endpoint: endpoint, PersistentKeepaliveInterval: &keepalive,
				ReplaceAllowedIPs: true, AllowedIPs: []net.IPNet{cidr("10.0.0.0/8"), cidr("fd00::/8")},
			},
			{PublicKey: two, AllowedIPs: []net.IPNet{cidr("10.2.0.0/16")}},
		},
	}), "configuring")

	device, err := client.Device(name)
	check(err, "reading")
	require(device.PrivateKey == private && device.PublicKey == private.PublicKey(), "keys")
	require(device.ListenPort == port, "port %d", device.ListenPort)
	require(device.FirewallMark == mark, "mark %d", device.FirewallMark)
	peers := map[wgtypes.Key]wgtypes.Peer{}
	for _, peer := range device.Peers {
		peers[peer.PublicKey] = peer
	}
	require(len(peers) == 2, "peers %v", device.Peers)
	first := peers[one]
	require(first.PresharedKey == psk, "preshared key")
	require(first.Endpoint.String() == endpoint.String(), "endpoint %v", first.Endpoint)
	require(first.PersistentKeepaliveInterval == keepalive, "keepalive %v", first.PersistentKeepaliveInterval)
	require(first.LastHandshakeTime.IsZero(), "handshake %v", first.LastHandshakeTime)
	require(first.ProtocolVersion == 1, "version %d", first.ProtocolVersion)
	require(slices.Equal(blocks(first), []string{"10.0.0.0/8", "fd00::/8"}), "allowed IPs %v", blocks(first))

	// UpdateOnly, which wg(8) never sends: no new peer.
	check(client.ConfigureDevice(name, wgtypes.Config{Peers: []wgtypes.PeerConfig{
		{PublicKey: key().PublicKey(), UpdateOnly: true, AllowedIPs: []net.IPNet{cidr("10.9.0.0/16")}},
		{PublicKey: two, UpdateOnly: true, AllowedIPs: []net.IPNet{cidr("10.3.0.0/16")}},
		{PublicKey: one, Remove: true},
	}}), "updating")
	device, err = client.Device(name)
	check(err, "reading again")
	require(len(device.Peers) == 1 && device.Peers[0].PublicKey == two, "peers %v", device.Peers)
	require(slices.Equal(blocks(device.Peers[0]), []string{"10.2.0.0/16", "10.3.0.0/16"}), "allowed IPs %v", blocks(device.Peers[0]))

	// An error comes through as one, and changes nothing.
	bad := 70000
	require(client.ConfigureDevice(name, wgtypes.Config{ListenPort: &bad, ReplacePeers: true}) != nil, "a port of 70000")
	device, err = client.Device(name)
	check(err, "reading after an error")
	require(len(device.Peers) == 1 && device.ListenPort == port, "device after an error: %+v", device)
	_, err = client.Device("doesnotexist")
	require(os.IsNotExist(err), "a device that does not exist: %v", err)
	fmt.Println("wgctrl: listed, configured and verified")
}
