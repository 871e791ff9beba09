// A coordination server for one node, with a relay and STUN: what tailscaled needs before it has a tunnel. Its only
// peer knows WireGuard and nothing else.
//
//	embed-tailscale-control ADDRESS KEY ENDPOINT PEER NODE    serves http://ADDRESS:8080, until it is killed
//
// KEY is the peer's public key in hexadecimal digits, at ENDPOINT outside and PEER inside the tunnel. NODE is what the
// peer knows the node as.
package main

import (
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"time"

	"tailscale.com/derp/derpserver"
	"tailscale.com/net/stun"
	"tailscale.com/tailcfg"
	"tailscale.com/tstest/integration/testcontrol"
	"tailscale.com/types/key"
	"tailscale.com/types/logger"
)

func main() {
	address, endpoint := os.Args[1], netip.MustParseAddrPort(os.Args[3])
	inside, masquerade := netip.MustParseAddr(os.Args[4]), netip.MustParseAddr(os.Args[5])
	var peer key.NodePublic
	if err := peer.UnmarshalText([]byte("nodekey:" + os.Args[2])); err != nil {
		log.Fatal(err)
	}
	relay := derpserver.New(key.NewNode(), logger.Discard)
	tcp, err := net.Listen("tcp", net.JoinHostPort(address, "8443"))
	if err != nil {
		log.Fatal(err)
	}
	https := httptest.NewUnstartedServer(derpserver.Handler(relay))
	https.Listener.Close()
	https.Listener = tcp
	https.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	https.StartTLS()
	udp, err := net.ListenPacket("udp", net.JoinHostPort(address, "3478"))
	if err != nil {
		log.Fatal(err)
	}
	go serveSTUN(udp.(*net.UDPConn))
	node := &tailcfg.DERPNode{
		Name: "1", RegionID: 1, HostName: address, IPv4: address, IPv6: "none", STUNPort: 3478, DERPPort: 8443,
		InsecureForTests: true, STUNTestIP: address,
	}
	region := &tailcfg.DERPRegion{RegionID: 1, RegionCode: "lab", Nodes: []*tailcfg.DERPNode{node}}
	control := &testcontrol.Server{
		Logf:             logger.Discard,
		DERPMap:          &tailcfg.DERPMap{Regions: map[int]*tailcfg.DERPRegion{1: region}},
		AllNodesSameUser: true,
		AllOnline:        true,
		ExplicitBaseURL:  "http://" + net.JoinHostPort(address, "8080"),
	}
	block := []netip.Prefix{netip.PrefixFrom(inside, 32)}
	only := &tailcfg.Node{
		ID: 99, StableID: "peer", Name: "peer.lab.", Key: peer, Machine: key.NewMachine().Public(), MachineAuthorized: true,
		Addresses: block, AllowedIPs: block, Endpoints: []netip.AddrPort{endpoint}, IsWireGuardOnly: true,
		SelfNodeV4MasqAddrForThisPeer: &masquerade, Hostinfo: (&tailcfg.Hostinfo{}).View(),
	}
	go func() {
		// Before the first node there is no room for another.
		for control.NumNodes() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		control.UpdateNode(only)
	}()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "8080"))
	if err != nil {
		log.Fatal(err)
	}
	log.Print("ready")
	log.Fatal(http.Serve(listener, control))
}

func serveSTUN(socket *net.UDPConn) {
	buffer := make([]byte, 1500)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		if err != nil {
			continue
		}
		if id, err := stun.ParseBindingRequest(buffer[:n]); err == nil {
			socket.WriteToUDPAddrPort(stun.Response(id, from), from)
		}
	}
}
