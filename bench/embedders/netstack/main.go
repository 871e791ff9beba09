// Command embed-netstack embeds wireguard-go with its netstack, as wireproxy does: TCP ends in the process, without a
// TUN device.
//
//	embed-netstack serve OURS THEIRS PORT PEER_KEY ENDPOINT
//	embed-netstack load  OURS THEIRS PORT PEER_KEY ENDPOINT STREAMS SECONDS there|back
//
// Both read the private key from standard input. One serves, and says "ready". The other sends streams to it, each of
// which it is told the length of at its end, or receives some, and meanwhile times how long one byte takes there and back on another
// connection. It says what it found in one line of JSON, and waits to be ended. adit-lab's `bench/src/embed/stacks.rs`
// has the other side of this.
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/netstack"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
)

const (
	mtu      = 1420
	sinkPort = 5201
	echoPort = 5202
	// Bytes come from it without an end.
	sourcePort = 5203
	// What iperf3 writes at once.
	block = 128 << 10
	// Between two bytes that are timed.
	interval = 5 * time.Millisecond
	// For connections, and for what is on its way at the end.
	patience = 10 * time.Second
)

func check(err error, what string) {
	if err != nil {
		log.Fatalf("%s: %v", what, err)
	}
}

// hexKey is a key as wireguard-go wants it.
func hexKey(text string) string {
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != 32 {
		log.Fatal("not a key of 32 bytes in base64")
	}
	return hex.EncodeToString(key)
}

// up brings up the tunnel.
func up(ours netip.Addr, port, peer, endpoint string) *netstack.Net {
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil && err != io.EOF {
		log.Fatalf("the private key: %v", err)
	}
	tun, net, err := netstack.CreateNetTUN([]netip.Addr{ours}, nil, mtu)
	check(err, "the network stack")
	dev := device.NewDevice(tun, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
	check(dev.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%s\npublic_key=%s\nendpoint=%s\nallowed_ip=0.0.0.0/0\n",
		hexKey(strings.TrimSpace(line)), port, hexKey(peer), endpoint)), "the tunnel")
	check(dev.Up(), "the tunnel")
	return net
}

func serve(net *netstack.Net, ours netip.Addr) {
	listen := func(port uint16, each func(*gonet.TCPConn)) {
		listener, err := net.ListenTCPAddrPort(netip.AddrPortFrom(ours, port))
		check(err, "listening")
		go func() {
			for {
				stream, err := listener.Accept()
				check(err, "accepting")
				go each(stream.(*gonet.TCPConn))
			}
		}()
	}
	listen(sinkPort, func(stream *gonet.TCPConn) {
		defer stream.Close()
		buffer, count := make([]byte, block), uint64(0)
		for {
			n, err := stream.Read(buffer)
			count += uint64(n)
			if err == io.EOF {
				stream.Write(binary.BigEndian.AppendUint64(nil, count))
				return
			}
			if err != nil {
				return
			}
		}
	})
	listen(echoPort, func(stream *gonet.TCPConn) {
		defer stream.Close()
		buffer := make([]byte, 1)
		for {
			if _, err := stream.Read(buffer); err != nil {
				return
			}
			if _, err := stream.Write(buffer); err != nil {
				return
			}
		}
	})
	listen(sourcePort, func(stream *gonet.TCPConn) {
		defer stream.Close()
		buffer := make([]byte, block)
		for {
			if _, err := stream.Write(buffer); err != nil {
				return
			}
		}
	})
	fmt.Println("ready")
	select {}
}

// receive receives until the end, and returns how many bytes came.
func receive(stream *gonet.TCPConn, end time.Time) uint64 {
	defer stream.Close()
	buffer, count := make([]byte, block), uint64(0)
	for time.Now().Before(end) {
		n, err := stream.Read(buffer)
		check(err, "receiving")
		count += uint64(n)
	}
	return count
}

// send sends until the end, and returns how many bytes arrived.
func send(stream *gonet.TCPConn, end time.Time) uint64 {
	defer stream.Close()
	buffer := make([]byte, block)
	for time.Now().Before(end) {
		_, err := stream.Write(buffer)
		check(err, "sending")
	}
	check(stream.CloseWrite(), "the end of a stream")
	count := make([]byte, 8)
	_, err := io.ReadFull(stream, count)
	check(err, "the length of a stream")
	return binary.BigEndian.Uint64(count)
}

// roundTrips times single bytes until the end, in microseconds.
func roundTrips(stream *gonet.TCPConn, end time.Time) []float64 {
	defer stream.Close()
	times, buffer := []float64{}, make([]byte, 1)
	for time.Now().Before(end) {
		sent := time.Now()
		_, err := stream.Write(buffer)
		check(err, "a byte")
		_, err = io.ReadFull(stream, buffer)
		check(err, "a byte's echo")
		times = append(times, float64(time.Since(sent).Nanoseconds())/1e3)
		time.Sleep(interval)
	}
	return times
}

func load(net *netstack.Net, theirs netip.Addr, streams int, seconds time.Duration, back bool) {
	port, carry := uint16(sinkPort), send
	if back {
		port, carry = sourcePort, receive
	}
	dial := func(port uint16) *gonet.TCPConn {
		stream, err := net.DialTCPAddrPort(netip.AddrPortFrom(theirs, port))
		check(err, "connecting")
		stream.SetDeadline(time.Now().Add(seconds + 2*patience))
		return stream
	}
	echo, all := dial(echoPort), []*gonet.TCPConn{}
	for range streams {
		all = append(all, dial(port))
	}
	begun := time.Now()
	end := begun.Add(seconds)
	counts, times := make(chan uint64), make(chan []float64, 1)
	for _, stream := range all {
		go func() { counts <- carry(stream, end) }()
	}
	go func() { times <- roundTrips(echo, end) }()
	bytes := uint64(0)
	for range all {
		bytes += <-counts
	}
	took := time.Since(begun)
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"bytes": bytes, "seconds": took.Seconds(), "round_trips": <-times,
	}), "the result")
	select {}
}

func main() {
	log.SetFlags(0)
	args := os.Args[1:]
	if len(args) < 6 || (args[0] == "load") != (len(args) == 9) {
		log.Print("usage: embed-netstack serve|load OURS THEIRS PORT PEER_KEY ENDPOINT [STREAMS SECONDS there|back]")
		os.Exit(2)
	}
	ours, err := netip.ParseAddr(args[1])
	check(err, "our address")
	theirs, err := netip.ParseAddr(args[2])
	check(err, "their address")
	net := up(ours, args[3], args[4], args[5])
	if args[0] == "serve" {
		serve(net, ours)
	}
	streams, err := strconv.Atoi(args[6])
	check(err, "streams")
	seconds, err := strconv.Atoi(args[7])
	check(err, "seconds")
	load(net, theirs, streams, time.Duration(seconds)*time.Second, args[8] == "back")
}
