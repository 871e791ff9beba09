// A tunnel without threads of the library: a device over batches, between a TUN device that this program makes and
// a UDP socket.
//
//	wg genkey | tunnel INTERFACE PORT PEER_KEY ENDPOINT|- ALLOWED_IPS
//
// It reads its private key from the first line of standard input, and ends when that is closed.
package main

/*
#cgo pkg-config: adit
#include <adit.h>
#include <stdlib.h>
*/
import "C"

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// Packets of a batch.
const batch = 64

// The longest packet of the TUN device, and the longest datagram.
const room = 2048

// buffers is memory of C, so that batches may point to it.
type buffers struct {
	bytes   []byte
	lengths [batch]int
	from    [batch]netip.AddrPort
	count   int
}

func newBuffers() *buffers {
	memory := C.malloc(batch * room)
	return &buffers{bytes: unsafe.Slice((*byte)(memory), batch*room)}
}

func (b *buffers) slot(n int) []byte { return b.bytes[n*room : (n+1)*room] }

func (b *buffers) pointer(n int) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(&b.bytes[n*room])) }

// device has the batches that cross to C, which are memory of C, too.
type device struct {
	handle    *C.adit_device
	packets   []C.adit_packet
	datagrams []C.adit_datagram
	trains    []C.adit_train
	taken     *C.size_t
	deadline  *C.int64_t
	err       *C.adit_error
	tun       *os.File
	udp       *net.UDPConn
	calls     int
	moved     int
}

func fail(what string, err any) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	os.Exit(1)
}

func (d *device) check(code C.int32_t, what string) {
	if code < 0 {
		fail(what, C.GoString(&d.err.text[0]))
	}
}

func array[T any](count int) []T {
	var one T
	return unsafe.Slice((*T)(C.calloc(C.size_t(count), C.size_t(unsafe.Sizeof(one)))), count)
}

func newDevice() *device {
	d := &device{
		packets:   array[C.adit_packet](batch),
		datagrams: array[C.adit_datagram](batch),
		trains:    array[C.adit_train](batch),
		taken:     &array[C.size_t](1)[0],
		deadline:  &array[C.int64_t](1)[0],
		err:       &array[C.adit_error](1)[0],
	}
	d.err.struct_size = C.size_t(unsafe.Sizeof(*d.err))
	return d
}

func (d *device) key(text string) *C.uint8_t {
	key := &array[C.uint8_t](C.ADIT_KEY_LEN)[0]
	cText := C.CString(strings.TrimSpace(text))
	defer C.free(unsafe.Pointer(cText))
	d.check(C.adit_key_from_base64(cText, key, d.err), "a key")
	return key
}

// seal sends a batch of packets from the TUN device.
func (d *device) seal(b *buffers) {
	for n := 0; n < b.count; n++ {
		d.packets[n] = C.adit_packet{bytes: b.pointer(n), len: C.size_t(b.lengths[n])}
	}
	d.moved += b.count
	for from := 0; from < b.count; from += int(*d.taken) {
		d.calls++
		left := C.size_t(b.count - from)
		d.check(C.adit_device_seal_batch(d.handle, &d.packets[from], left, d.taken, d.err), "seal")
		d.send()
	}
}

// open delivers a batch of datagrams from the socket.
func (d *device) open(b *buffers) {
	for n := 0; n < b.count; n++ {
		datagram := &d.datagrams[n]
		*datagram = C.adit_datagram{bytes: b.pointer(n), len: C.size_t(b.lengths[n])}
		datagram.from.family = 4
		datagram.from.port = C.uint16_t(b.from[n].Port())
		for i, octet := range b.from[n].Addr().Unmap().As4() {
			datagram.from.ip[i] = C.uint8_t(octet)
		}
	}
	d.moved += b.count
	for from := 0; from < b.count; from += int(*d.taken) {
		d.calls++
		left := C.size_t(b.count - from)
		d.check(C.adit_device_open_batch(d.handle, &d.datagrams[from], left, 0, d.taken, d.err), "open")
		opened := *d.taken
		d.deliver()
		d.send()
		*d.taken = opened
	}
}

func (d *device) deliver() {
	for {
		d.check(C.adit_device_take_packets(d.handle, &d.packets[0], batch, d.taken, d.err), "packets")
		for _, packet := range d.packets[:*d.taken] {
			bytes := unsafe.Slice((*byte)(packet.bytes), int(packet.len))
			if _, err := d.tun.Write(bytes); err != nil {
				fmt.Fprintln(os.Stderr, "a packet is lost:", err)
			}
		}
		if *d.taken < batch {
			return
		}
	}
}

func (d *device) send() {
	taken := *d.taken
	defer func() { *d.taken = taken }()
	for {
		d.check(C.adit_device_take_trains(d.handle, &d.trains[0], batch, d.taken, d.err), "trains")
		for _, train := range d.trains[:*d.taken] {
			var ip [4]byte
			for i := range ip {
				ip[i] = byte(train.to.ip[i])
			}
			to := netip.AddrPortFrom(netip.AddrFrom4(ip), uint16(train.to.port))
			bytes := unsafe.Slice((*byte)(train.bytes), int(train.len))
			for len(bytes) > 0 {
				datagram := bytes[:min(int(train.stride), len(bytes))]
				// One that cannot be sent is lost, as in any network.
				_, _ = d.udp.WriteToUDPAddrPort(datagram, to)
				bytes = bytes[len(datagram):]
			}
		}
		if *d.taken < batch {
			return
		}
	}
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

// timeout does what is due, and says how long to wait.
func (d *device) timeout() time.Duration {
	d.check(C.adit_device_next_deadline(d.handle, d.deadline, d.err), "a deadline")
	if *d.deadline == 0 {
		d.check(C.adit_device_handle_timeout(d.handle, d.err), "a timeout")
		d.send()
		d.check(C.adit_device_next_deadline(d.handle, d.deadline, d.err), "a deadline")
	}
	if *d.deadline < 0 {
		return time.Hour
	}
	return time.Duration(*d.deadline) * time.Microsecond
}

func openTun(name string) *os.File {
	fd, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		fail("/dev/net/tun", err)
	}
	var request [40]byte
	copy(request[:15], name)
	*(*uint16)(unsafe.Pointer(&request[16])) = syscall.IFF_TUN | syscall.IFF_NO_PI
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TUNSETIFF, uintptr(unsafe.Pointer(&request[0])))
	if errno != 0 {
		fail("TUNSETIFF", errno)
	}
	return os.NewFile(uintptr(fd), "tun")
}

// fill reads what waits into batches: one read blocks, and more follow while the reader is faster than the device.
func fill(full chan<- *buffers, free <-chan *buffers, read func([]byte) (int, netip.AddrPort, error)) {
	type packet struct {
		bytes []byte
		from  netip.AddrPort
	}
	waiting := make(chan packet, 4*batch)
	go func() {
		for {
			bytes := make([]byte, room)
			n, from, err := read(bytes)
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			waiting <- packet{bytes[:n], from}
		}
	}()
	for first := range waiting {
		b := <-free
		b.count = 0
		for next, more := first, true; more; {
			b.lengths[b.count] = copy(b.slot(b.count), next.bytes)
			b.from[b.count] = next.from
			b.count++
			more = false
			if b.count < batch {
				select {
				case next = <-waiting:
					more = true
				default:
				}
			}
		}
		full <- b
	}
}

func start(args []string, stdin *bufio.Reader) *device {
	d := newDevice()
	line, err := stdin.ReadString('\n')
	if err != nil {
		fail("the private key", err)
	}
	config := C.adit_config_new(d.key(line), d.err)
	d.check(d.err.code, "a configuration")
	peer := &array[C.adit_peer](1)[0]
	peer.struct_size = C.size_t(unsafe.Sizeof(*peer))
	peer.public_key = d.key(args[2])
	peer.allowed_ips = C.CString(args[4])
	if args[3] != "-" {
		peer.endpoint = C.CString(args[3])
	}
	d.check(C.adit_config_add_peer(config, peer, d.err), "the peer")
	d.handle = C.adit_device_new(config, 0, d.err)
	d.check(d.err.code, "the device")
	C.adit_config_free(config)
	port, err := strconv.Atoi(args[1])
	if err != nil {
		fail("the port", err)
	}
	if d.udp, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port}); err != nil {
		fail("the socket", err)
	}
	d.tun = openTun(args[0])
	return d
}

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: tunnel INTERFACE PORT PEER_KEY ENDPOINT|- ALLOWED_IPS < PRIVATE_KEY")
		os.Exit(2)
	}
	stdin := bufio.NewReader(os.Stdin)
	d := start(os.Args[1:], stdin)
	packets, freePackets := make(chan *buffers), make(chan *buffers, 2)
	datagrams, freeDatagrams := make(chan *buffers), make(chan *buffers, 2)
	for n := 0; n < 2; n++ {
		freePackets <- newBuffers()
		freeDatagrams <- newBuffers()
	}
	go fill(packets, freePackets, func(to []byte) (int, netip.AddrPort, error) {
		n, err := d.tun.Read(to)
		return n, netip.AddrPort{}, err
	})
	go fill(datagrams, freeDatagrams, d.udp.ReadFromUDPAddrPort)
	closed := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		close(closed)
	}()
	fmt.Println("ready")
	for {
		select {
		case b := <-packets:
			d.seal(b)
			freePackets <- b
		case b := <-datagrams:
			d.open(b)
			freeDatagrams <- b
		case <-time.After(d.timeout()):
		case <-closed:
			d.end()
			return
		}
	}
}

func (d *device) end() {
	event := &array[C.adit_event](1)[0]
	event.struct_size = C.size_t(unsafe.Sizeof(*event))
	for event.kind != C.ADIT_EVENT_SESSION {
		code := C.adit_device_next_event(d.handle, event, d.err)
		d.check(code, "an event")
		if code != C.ADIT_OK {
			fail("an event", "there is none of a session")
		}
	}
	stats := &array[C.adit_device_stats](1)[0]
	stats.struct_size = C.size_t(unsafe.Sizeof(*stats))
	d.check(C.adit_device_get_stats(d.handle, stats, d.err), "the counters")
	status := &array[*C.char](1)[0]
	d.check(C.adit_device_status(d.handle, status, d.err), "the status")
	fmt.Printf("sent %d\npushed %d\nstatus %s\n", stats.sealed_packets, stats.opened_packets, C.GoString(*status))
	fmt.Printf("batches %d of %d packets and datagrams\n", d.calls, d.moved)
	C.adit_text_free(*status)
	C.adit_device_free(d.handle)
}
