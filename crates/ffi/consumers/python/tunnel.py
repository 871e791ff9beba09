"""A tunnel over a TUN device that this program makes, with one peer:

    wg genkey | tunnel.py INTERFACE PORT PEER_KEY ENDPOINT|- ALLOWED_IPS

It reads its private key from the first line of standard input, and ends when that is closed. The library is
libadit.so.0, as the loader finds it.
"""

import ctypes as c
import fcntl
import os
import struct
import sys

OK, SESSION, PLAIN, ENDED = 0, 1, 2, -6


class Error(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("code", c.c_int32), ("text", c.c_char * 244)]


class Peer(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("public_key", c.c_char_p),
        ("preshared_key", c.c_char_p),
        ("endpoint", c.c_char_p),
        ("allowed_ips", c.c_char_p),
        ("keepalive", c.c_uint16),
    ]


class Options(c.Structure):
    # Without the fields of ADIT_SOURCE_NET: as of a header before it, which goes on to work.
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("mtu", c.c_uint32),
        ("threads", c.c_uint32),
        ("priority", c.c_uint32),
        ("unmerged", c.c_uint32),
        ("source", c.c_uint32),
        ("fd", c.c_int32),
        ("pull", c.c_void_p),
        ("push", c.c_void_p),
        ("flush", c.c_void_p),
        ("on_socket", c.c_void_p),
        ("on_start", c.c_void_p),
        ("user", c.c_void_p),
    ]


class Address(c.Structure):
    _fields_ = [("family", c.c_uint16), ("port", c.c_uint16), ("scope", c.c_uint32), ("ip", c.c_uint8 * 16)]


class Event(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("kind", c.c_uint32),
        ("peer", c.c_uint8 * 32),
        ("address", Address),
        ("before", Address),
        ("count", c.c_uint64),
    ]


class Stats(c.Structure):
    _fields_ = [("struct_size", c.c_size_t)] + [
        (name, c.c_uint64) for name in ("pulled", "sent", "received", "pushed", "dropped", "refused_trains")
    ]


def sized(kind, **fields):
    return kind(struct_size=c.sizeof(kind), **fields)


adit = c.CDLL("libadit.so.0")
for function in (adit.adit_config_new, adit.adit_tunnel_start):
    function.restype = c.c_void_p
error = sized(Error)


def call(name, *arguments):
    """Calls a function that takes an error last; its result, if that is none."""
    result = getattr(adit, name)(*arguments, c.byref(error))
    if error.code < 0:
        sys.exit(f"{name}: {error.text.decode()} ({error.code})")
    return result


def key(text):
    read = c.create_string_buffer(32)
    call("adit_key_from_base64", text.encode(), read)
    return read.raw


def open_tun(name):
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    tunsetiff, iff_tun, iff_no_pi = 0x400454CA, 0x0001, 0x1000
    fcntl.ioctl(tun, tunsetiff, struct.pack("16sH22x", name.encode(), iff_tun | iff_no_pi))
    return tun


def main():
    interface, port, peer_key, endpoint, allowed_ips = sys.argv[1:]
    config = c.c_void_p(call("adit_config_new", key(sys.stdin.readline().strip())))
    call("adit_config_set_listen_port", config, c.c_uint16(int(port)))
    # A key may have zero bytes, so that the pointer is to a buffer.
    peer_key = c.create_string_buffer(key(peer_key), 32)
    peer = sized(
        Peer,
        public_key=c.cast(peer_key, c.c_char_p),
        endpoint=None if endpoint == "-" else endpoint.encode(),
        allowed_ips=allowed_ips.encode(),
    )
    call("adit_config_add_peer", config, c.byref(peer))
    tun = open_tun(interface)
    options = sized(Options, source=PLAIN, fd=tun)
    tunnel = c.c_void_p(call("adit_tunnel_start", config, c.byref(options)))
    adit.adit_config_free(config)
    os.close(tun)
    print("ready", flush=True)

    sys.stdin.read()
    event = sized(Event)
    while event.kind != SESSION:
        assert call("adit_tunnel_next_event", tunnel, c.c_int64(0), c.byref(event)) == OK, "no event of a session"
    assert bytes(event.peer) == peer_key.raw
    stats = sized(Stats)
    call("adit_tunnel_get_stats", tunnel, c.byref(stats))
    status = c.c_char_p()
    call("adit_tunnel_status", tunnel, c.byref(status))
    print(f"sent {stats.sent}\npushed {stats.pushed}\nstatus {status.value.decode()}")
    adit.adit_text_free(status)
    call("adit_tunnel_stop", tunnel)
    assert adit.adit_tunnel_rebind(tunnel, None) == ENDED
    adit.adit_tunnel_free(tunnel)


main()
