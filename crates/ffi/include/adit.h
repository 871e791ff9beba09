/* Adit: WireGuard as a library. Made by cbindgen from crates/ffi/src; do not edit.
 *
 * Every function looks at its arguments first: NULL, a wrong struct_size or text that cannot be is
 * ADIT_ERROR_ARGUMENT. What it cannot see is the caller's: that lengths are right, that what is lent is not
 * used for longer than it says, and that an object that was freed is not used again.
 *
 * - A function returns ADIT_OK or an error (below 0), or of those that make an object the object or NULL.
 *   The last parameter, which may be NULL, is told the error as code and text.
 * - A struct that begins with struct_size is to be zeroed, and struct_size set to its sizeof, before it is passed.
 * - What a _new, _start or _listen returns is freed by the _free of its kind, once; NULL is freed by nothing. Texts that are
 *   returned in a char ** are freed by adit_text_free. Nothing else is to be freed.
 * - adit_tunnel may be used by all threads at the same time; adit_device, adit_config and adit_change by any thread,
 *   one at a time: a second one gets ADIT_ERROR_BUSY. Keys and texts by any thread.
 * - adit_room and adit_tunnel_ functions are there if the library was built with the feature `engine`, adit_tcp_ and
 *   adit_udp_ functions if it was with `net`. Both are defaults.
 * - No signal handler, no environment variable, no global state. A mistake in the library is caught as
 *   ADIT_ERROR_PANIC, and written to standard error.
 */

#ifndef ADIT_H
#define ADIT_H

#include <stddef.h>
#include <stdint.h>

/*
 It was done.
 */
#define ADIT_OK 0

/*
 Nothing is wrong, but there is nothing: no event came in time.
 */
#define ADIT_NOTHING 1

/*
 An argument is NULL, has a wrong size or is no such text.
 */
#define ADIT_ERROR_ARGUMENT -1

/*
 No tunnel can be configured so.
 */
#define ADIT_ERROR_CONFIG -2

/*
 The descriptor cannot be a source of packets.
 */
#define ADIT_ERROR_DESCRIPTOR -3

/*
 The system refused a thread, a descriptor, memory or random bytes.
 */
#define ADIT_ERROR_HOST -4

/*
 The UDP port cannot be had.
 */
#define ADIT_ERROR_BIND -5

/*
 The tunnel has ended, or was stopped.
 */
#define ADIT_ERROR_ENDED -6

/*
 A thread of the tunnel did not answer for ten seconds: a callback blocks it.
 */
#define ADIT_ERROR_NO_ANSWER -7

/*
 Another thread is using it, and only one may.
 */
#define ADIT_ERROR_BUSY -8

/*
 A mistake in the library: free what it happened to, and report it.
 */
#define ADIT_ERROR_PANIC -9

/*
 The other end inside the tunnel refused the connection: nothing listens there.
 */
#define ADIT_ERROR_REFUSED -10

/*
 A host inside the tunnel says that there is no way there.
 */
#define ADIT_ERROR_UNREACHABLE -11

/*
 Nothing inside the tunnel answered in time.
 */
#define ADIT_ERROR_TIMED_OUT -12

/*
 The DNS servers inside the tunnel know no address of that name.
 */
#define ADIT_ERROR_UNKNOWN_NAME -13

/*
 The budget has no memory left for another connection.
 */
#define ADIT_ERROR_NO_ROOM -14

/*
 The length of a key in bytes.
 */
#define ADIT_KEY_LEN 32

/*
 The length of a key in base64, with the zero byte behind it.
 */
#define ADIT_KEY_TEXT_LEN 45

/*
 A packet that stands for itself.
 */
#define ADIT_GSO_NONE 0

/*
 Segments of TCP over IPv4.
 */
#define ADIT_GSO_TCP4 1

/*
 Segments of TCP over IPv6.
 */
#define ADIT_GSO_TCP6 2

/*
 Datagrams of UDP, over either.
 */
#define ADIT_GSO_UDP 3

/*
 A handshake succeeded: `peer` has a new session, and is reached at `address`.
 */
#define ADIT_EVENT_SESSION 1

/*
 `peer` is reached at `address`, and was at `before`.
 */
#define ADIT_EVENT_ROAMED 2

/*
 `peer` answers again.
 */
#define ADIT_EVENT_REACHABLE 3

/*
 `peer` does not answer any more.
 */
#define ADIT_EVENT_UNREACHABLE 4

/*
 A handshake with `peer` was given up after `count` initiations.
 */
#define ADIT_EVENT_GIVEN_UP 5

/*
 `count` events were not told, because nobody took those before.
 */
#define ADIT_EVENT_MISSED 6

/*
 Something that this version of the header has no name for.
 */
#define ADIT_EVENT_OTHER 7

/*
 Packets come from `fd`, a TUN device with IFF_VNET_HDR and IFF_NO_PI: those of one flow as one.
 */
#define ADIT_SOURCE_VNET 1

/*
 Packets come from `fd`, one a read and a write and nothing before it: a TUN device with IFF_NO_PI alone,
 as Android's, or a datagram socket.
 */
#define ADIT_SOURCE_PLAIN 2

/*
 Packets come from `pull`, and go to `push`.
 */
#define ADIT_SOURCE_CALLBACKS 3

/*
 TCP and UDP end in this process: adit_tcp_connect, adit_tcp_listen, adit_udp_bind.
 */
#define ADIT_SOURCE_NET 4

/*
 The threads have the priority of the process.
 */
#define ADIT_PRIORITY_NEVER 0

/*
 The threads have a nice value of -10, if the process may.
 */
#define ADIT_PRIORITY_IF_ALLOWED 1

/*
 A change of a tunnel or device, all of which happens, or nothing: adit_change_new makes one,
 adit_change_free frees it. It may be used several times.
 */
typedef struct adit_change adit_change;

/*
 What a tunnel is to be: adit_config_new makes one, adit_config_free frees it. Tunnels and devices take
 a copy, so that it may be freed once they have begun.
 */
typedef struct adit_config adit_config;

/*
 A device without I/O: adit_device_new makes one, adit_device_free frees it.
 */
typedef struct adit_device adit_device;

/*
 Room for packets that a tunnel takes at once. It is there while `pull` runs, and belongs to the thread
 that has called it.
 */
typedef struct adit_room adit_room;

/*
 A TCP port inside a tunnel: adit_tcp_listen makes one, adit_tcp_listener_free ends it.
 */
typedef struct adit_tcp_listener adit_tcp_listener;

/*
 A tunnel that runs: adit_tunnel_start begins one, adit_tunnel_free ends it.
 */
typedef struct adit_tunnel adit_tunnel;

/*
 Why a call failed. The caller has it where it likes, sets `struct_size`, and passes it to any
 function; NULL where it does not want to know.
 */
typedef struct adit_error {
  /*
   `sizeof(adit_error)`, set by the caller. Nothing is written beyond it.
   */
  size_t struct_size;
  /*
   What the function returned: ADIT_OK, or one of ADIT_ERROR_….
   */
  int32_t code;
  /*
   What happened and what to do, in one line of UTF-8 that ends with a zero byte. Empty without an
   error.
   */
  char text[244];
} adit_error;

/*
 A peer. What it points to is read during the call only.
 */
typedef struct adit_peer {
  /*
   `sizeof(adit_peer)`, set by the caller.
   */
  size_t struct_size;
  /*
   32 bytes.
   */
  const uint8_t *public_key;
  /*
   32 bytes, or NULL for none.
   */
  const uint8_t *preshared_key;
  /*
   Where it is, as `192.0.2.1:51820` or `[2001:db8::1]:51820`; NULL if it is not known. No name.
   */
  const char *endpoint;
  /*
   The addresses behind it, as `10.0.0.0/24, 2001:db8::/64`; NULL for none.
   */
  const char *allowed_ips;
  /*
   A packet is sent to it when none was for so many seconds; 0 is never.
   */
  uint16_t keepalive;
} adit_peer;

/*
 An IP packet, or a GSO packet, which stands for several of one flow.
 */
typedef struct adit_packet {
  /*
   From the IP header on.
   */
  const uint8_t *bytes;
  /*
   How many; at most 65,535.
   */
  size_t len;
  /*
   One of ADIT_GSO_….
   */
  uint32_t gso_kind;
  /*
   Bytes of payload in each packet but the last that it stands for; 0 with ADIT_GSO_NONE.
   */
  uint32_t gso_segment;
} adit_packet;
/*
 No packet: a caller's array has to begin with something.
 */
#define adit_packet_NONE (adit_packet){ .bytes = (null){  }, .len = 0, .gso_kind = ADIT_GSO_NONE, .gso_segment = 0 }

/*
 An address and a port, the same on every system.
 */
typedef struct adit_address {
  /*
   4 or 6; 0 is no address.
   */
  uint16_t family;
  /*
   The port, in the host's byte order.
   */
  uint16_t port;
  /*
   The network interface of a link-local IPv6 address; otherwise 0.
   */
  uint32_t scope;
  /*
   The address as in an IP header; of IPv4 the first 4 bytes.
   */
  uint8_t ip[16];
} adit_address;

/*
 Datagrams that came from one address: one, or several that the system has merged (UDP_GRO).
 */
typedef struct adit_datagram {
  /*
   UDP payload.
   */
  const uint8_t *bytes;
  /*
   How many; at most 65,535.
   */
  size_t len;
  /*
   Of merged ones, the length of each but the last; 0 for a single one.
   */
  size_t stride;
  /*
   Where they came from.
   */
  struct adit_address from;
  /*
   The two bits for congestion marks of the IP header; 0 if they are not known.
   */
  uint8_t ecn;
} adit_datagram;

/*
 Datagrams for one address that are to be sent, at most 64: by one call where the system has UDP_SEGMENT,
 or one by one.
 */
typedef struct adit_train {
  /*
   The datagrams, one behind the other.
   */
  const uint8_t *bytes;
  /*
   How many bytes.
   */
  size_t len;
  /*
   The length of each datagram but the last, which may be shorter.
   */
  size_t stride;
  /*
   Where to.
   */
  struct adit_address to;
  /*
   The two bits for congestion marks of the IP header.
   */
  uint8_t ecn;
} adit_train;

/*
 Something that happened. Nothing in it is secret.
 */
typedef struct adit_event {
  /*
   `sizeof(adit_event)`, set by the caller.
   */
  size_t struct_size;
  /*
   One of ADIT_EVENT_….
   */
  uint32_t kind;
  /*
   The public key of the peer; zeros where there is none.
   */
  uint8_t peer[32];
  /*
   Where the peer is reached; of family 0 where that is not told.
   */
  struct adit_address address;
  /*
   Where it was before.
   */
  struct adit_address before;
  /*
   How many.
   */
  uint64_t count;
} adit_event;

/*
 Counters of a device since it was made. Once all trains are taken, no packet is lost without one:
 `packets` = `sealed_packets` + `waiting_packets` + `unsealed`, and
 `datagrams` = `opened_packets` + `keepalives` + `handshake_messages` + `unopened`.
 */
typedef struct adit_device_stats {
  /*
   `sizeof(adit_device_stats)`, set by the caller.
   */
  size_t struct_size;
  /*
   Packets that were taken to be sealed; each that a GSO packet is cut to counts.
   */
  uint64_t packets;
  /*
   Of these, those that were sealed.
   */
  uint64_t sealed_packets;
  /*
   Bytes of UDP payload that these became.
   */
  uint64_t sealed_bytes;
  /*
   Of these, those that wait for a session now.
   */
  uint64_t waiting_packets;
  /*
   Of these, those that were dropped.
   */
  uint64_t unsealed;
  /*
   Datagrams that were taken to be opened.
   */
  uint64_t datagrams;
  /*
   Of these, those that had a packet.
   */
  uint64_t opened_packets;
  /*
   Bytes of UDP payload of these.
   */
  uint64_t opened_bytes;
  /*
   Of these, those that were authentic and without a packet.
   */
  uint64_t keepalives;
  /*
   Of these, messages of handshakes that were looked at.
   */
  uint64_t handshake_messages;
  /*
   Of these, those that were dropped.
   */
  uint64_t unopened;
  /*
   Handshakes that led to a session.
   */
  uint64_t handshakes;
  /*
   Handshakes that were given up.
   */
  uint64_t given_up;
  /*
   Messages of handshakes that were refused.
   */
  uint64_t refused;
  /*
   Cookie replies that were sent, because too many handshakes came.
   */
  uint64_t cookies;
  /*
   Events that were dropped, because nobody took them.
   */
  uint64_t missed_events;
} adit_device_stats;

/*
 Puts the packets that wait into the room, by adit_room_put: all, or as many as fit. It is called after
 adit_tunnel_ring, and again without if the room was full; by several threads, one at a time.
 */
typedef void (*adit_pull)(void *user, struct adit_room *room);

/*
 A part of a packet; as struct iovec.
 */
typedef struct adit_piece {
  /*
   Where it is.
   */
  const uint8_t *bytes;
  /*
   How many.
   */
  size_t len;
} adit_piece;

/*
 Takes a packet that came out of the tunnel, in `count` pieces, which may be read until it returns. Other
 than 0 is: no room, the packet is dropped. Called by several threads at the same time.
 */
typedef int32_t (*adit_push)(void *user,
                             const struct adit_piece *pieces,
                             size_t count,
                             uint32_t gso_kind,
                             uint32_t gso_segment);

/*
 Called with `user`.
 */
typedef void (*adit_call)(void *user);

/*
 Called with a UDP socket before it is bound; `is_ipv6` is 0 or 1. It returns 0, or an errno.
 */
typedef int32_t (*adit_on_socket)(void *user, int32_t fd, int32_t is_ipv6);

/*
 How a tunnel begins. Zeros are the defaults of all but `struct_size` and `source`.

 Callbacks are called on threads of the tunnel, and none may block or throw. In them every function may be
 called but adit_tunnel_free, and `set`, `status` and `stop` only if nobody waits for the callback. `user`
 and what it points to has to be there, and fit for several threads, until adit_tunnel_free has returned.
 */
typedef struct adit_options {
  /*
   `sizeof(adit_options)`, set by the caller.
   */
  size_t struct_size;
  /*
   The MTU of the inner network; 0 is 1420.
   */
  uint32_t mtu;
  /*
   How many threads carry packets, at most; 0 is 1.
   */
  uint32_t threads;
  /*
   One of ADIT_PRIORITY_….
   */
  uint32_t priority;
  /*
   Other than 0: packets of one flow are not delivered as one.
   */
  uint32_t unmerged;
  /*
   One of ADIT_SOURCE_….
   */
  uint32_t source;
  /*
   The descriptor of the source, if it has one. The tunnel has a duplicate: this one stays the caller's, who
   may close it at once, and whose file status flags become non-blocking.
   */
  int32_t fd;
  /*
   With ADIT_SOURCE_CALLBACKS.
   */
  adit_pull pull;
  /*
   With ADIT_SOURCE_CALLBACKS.
   */
  adit_push push;
  /*
   What was received at once has all been pushed; or NULL.
   */
  adit_call flush;
  /*
   Binds a UDP socket to a device, or keeps it out of a VPN (Android's protect); or NULL.
   */
  adit_on_socket on_socket;
  /*
   Called by each thread when it begins; or NULL.
   */
  adit_call on_start;
  /*
   Passed to all callbacks.
   */
  void *user;
  /*
   With ADIT_SOURCE_NET: the inner addresses of this end, with commas, as "10.0.0.2, fd00::2".
   */
  const char *addresses;
  /*
   With ADIT_SOURCE_NET: the DNS servers inside the tunnel, with commas; or NULL.
   */
  const char *dns;
  /*
   With ADIT_SOURCE_NET: bytes that all connections together may have for their buffers; 0 is 64 MiB.
   */
  size_t budget;
} adit_options;

/*
 Counters of a tunnel since it began. Packets that stand for several count as these.
 */
typedef struct adit_tunnel_stats {
  /*
   `sizeof(adit_tunnel_stats)`, set by the caller.
   */
  size_t struct_size;
  /*
   Packets that its source had for it.
   */
  uint64_t pulled;
  /*
   Of these, packets that were sent to peers.
   */
  uint64_t sent;
  /*
   Datagrams that came to its sockets, of all kinds.
   */
  uint64_t received;
  /*
   Packets that it delivered.
   */
  uint64_t pushed;
  /*
   Packets and datagrams that were dropped.
   */
  uint64_t dropped;
  /*
   Trains of packets that the kernel refused to send at once.
   */
  uint64_t refused_trains;
} adit_tunnel_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Frees a text that a function returned in a `char **`. NULL is none. Any thread.
 */
void adit_text_free(char *text);

/*
 The version of the library, as "0.1.0". It is static. Any thread.
 */
const char *adit_version(void);

/*
 Makes a private key of the system's random bytes, and writes its 32 bytes to `private_key`.
 */
int32_t adit_private_key_generate(uint8_t *private_key, struct adit_error *error);

/*
 Writes the public key of a private key, 32 bytes each.
 */
int32_t adit_public_key(const uint8_t *private_key, uint8_t *public_key, struct adit_error *error);

/*
 Reads a key of any kind in base64, as wg(8) writes it, and writes its 32 bytes to `key`.
 */
int32_t adit_key_from_base64(const char *text, uint8_t *key, struct adit_error *error);

/*
 Writes the 32 bytes of a key of any kind in base64: 44 characters and a zero byte.
 */
int32_t adit_key_to_base64(const uint8_t *key, char *text, struct adit_error *error);

/*
 Makes a configuration with this private key, 32 bytes, and no peers; NULL on error.
 */
struct adit_config *adit_config_new(const uint8_t *private_key, struct adit_error *error);

/*
 Sets the UDP port that a tunnel listens on; 0, as without this, is any.
 */
int32_t adit_config_set_listen_port(struct adit_config *config,
                                    uint16_t port,
                                    struct adit_error *error);

/*
 Adds a peer.
 */
int32_t adit_config_add_peer(struct adit_config *config,
                             const struct adit_peer *peer,
                             struct adit_error *error);

/*
 Frees a configuration. NULL is none.
 */
void adit_config_free(struct adit_config *config);

/*
 Makes a change that changes nothing yet.
 */
struct adit_change *adit_change_new(struct adit_error *error);

/*
 Makes the change after which all is as in `config`: peers that it does not have go.
 */
struct adit_change *adit_change_to(const struct adit_config *config, struct adit_error *error);

/*
 Adds a peer, or makes the one with its key this.
 */
int32_t adit_change_add_peer(struct adit_change *change,
                             const struct adit_peer *peer,
                             struct adit_error *error);

/*
 Removes the peer with this public key, 32 bytes, if there is one.
 */
int32_t adit_change_remove_peer(struct adit_change *change,
                                const uint8_t *public_key,
                                struct adit_error *error);

/*
 The peer with this public key, 32 bytes, is at `endpoint` from now on, if there is one.
 */
int32_t adit_change_set_endpoint(struct adit_change *change,
                                 const uint8_t *public_key,
                                 const char *endpoint,
                                 struct adit_error *error);

/*
 Frees a change. NULL is none.
 */
void adit_change_free(struct adit_change *change);

/*
 Makes a device of this configuration; NULL on error. An MTU of 0 is 1420.
 */
struct adit_device *adit_device_new(const struct adit_config *config,
                                    size_t mtu,
                                    struct adit_error *error);

/*
 Seals packets for the peers that have their destinations. Without a session they wait in the device,
 bounded. `*taken` is how many were taken: if fewer than `count`, take the trains and call again with the
 others. What the array points to is read during the call only.
 */
int32_t adit_device_seal_batch(struct adit_device *device,
                               const struct adit_packet *packets,
                               size_t count,
                               size_t *taken,
                               struct adit_error *error);

/*
 Opens datagrams that came. `*taken` is how many array elements were taken: if fewer than `count`, take
 packets and trains and call again with the others. What the array points to is copied during the call.
 Packets of an earlier batch that were not taken are lost. With `merged` other than 0, packets of one flow
 are handed out as one, at the price of a copy.
 */
int32_t adit_device_open_batch(struct adit_device *device,
                               const struct adit_datagram *datagrams,
                               size_t count,
                               int32_t merged,
                               size_t *taken,
                               struct adit_error *error);

/*
 Does what is due: handshakes begin and are repeated, keepalives leave. Harmless at any time.
 */
int32_t adit_device_handle_timeout(struct adit_device *device, struct adit_error *error);

/*
 Writes how many microseconds there are until adit_device_handle_timeout is to be called: 0 is now, -1 is
 not before a packet or a datagram comes.
 */
int32_t adit_device_next_deadline(struct adit_device *device,
                                  int64_t *microseconds,
                                  struct adit_error *error);

/*
 Takes up to `max` trains that are to be sent, oldest first; `*count` is how many. Their bytes may be read
 until the next call of seal_batch, open_batch, handle_timeout or free.
 */
int32_t adit_device_take_trains(struct adit_device *device,
                                struct adit_train *trains,
                                size_t max,
                                size_t *count,
                                struct adit_error *error);

/*
 Takes up to `max` packets that were opened, oldest first; `*count` is how many. Their bytes may be read
 until the next call of open_batch or free. The transport checksum of a GSO packet is only the sum of its
 pseudo-header, as the kernel has it where a device computes checksums.
 */
int32_t adit_device_take_packets(struct adit_device *device,
                                 struct adit_packet *packets,
                                 size_t max,
                                 size_t *count,
                                 struct adit_error *error);

/*
 Changes the configuration, whole or not at all.
 */
int32_t adit_device_set(struct adit_device *device,
                        const struct adit_change *change,
                        struct adit_error *error);

/*
 Writes the oldest event that was not taken, or returns ADIT_NOTHING.
 */
int32_t adit_device_next_event(struct adit_device *device,
                               struct adit_event *event,
                               struct adit_error *error);

/*
 Writes the counters of a device.
 */
int32_t adit_device_get_stats(struct adit_device *device,
                              struct adit_device_stats *stats,
                              struct adit_error *error);

/*
 Writes the status of a device as JSON, as adit_tunnel_status has it. adit_text_free frees it.
 */
int32_t adit_device_status(struct adit_device *device, char **json, struct adit_error *error);

/*
 Frees a device. NULL is none. What it lent is gone.
 */
void adit_device_free(struct adit_device *device);

/*
 Copies packets into the room of a `pull`. `*taken` is how many fit: keep the others for the next call of
 `pull`, which comes without a ring then. Only within `pull`, on its thread.
 */
int32_t adit_room_put(struct adit_room *room,
                      const struct adit_packet *packets,
                      size_t count,
                      size_t *taken,
                      struct adit_error *error);

/*
 Begins a tunnel; NULL on error. It is up when this returns: its port is bound.
 */
struct adit_tunnel *adit_tunnel_start(const struct adit_config *config,
                                      const struct adit_options *options,
                                      struct adit_error *error);

/*
 Packets wait: `pull` is called soon. To be called after they are where `pull` finds them. Several rings
 are one, and cost next to nothing.
 */
int32_t adit_tunnel_ring(const struct adit_tunnel *tunnel,
                         struct adit_error *error);

/*
 Changes a tunnel, whole or not at all, and returns when that is in force. After ADIT_ERROR_NO_ANSWER it may
 still happen.
 */
int32_t adit_tunnel_set(const struct adit_tunnel *tunnel,
                        const struct adit_change *change,
                        struct adit_error *error);

/*
 Closes the sockets of a tunnel, soon: until resume nothing is sent, received or timed. Sessions stay.
 */
int32_t adit_tunnel_suspend(const struct adit_tunnel *tunnel,
                            struct adit_error *error);

/*
 Opens the sockets of a tunnel again, on the same port if that is free.
 */
int32_t adit_tunnel_resume(const struct adit_tunnel *tunnel, struct adit_error *error);

/*
 Replaces the sockets of a tunnel, because the network is another one. Sessions stay.
 */
int32_t adit_tunnel_rebind(const struct adit_tunnel *tunnel, struct adit_error *error);

/*
 Writes the status of a tunnel as JSON: "schema", which is 1, "public_key", "listen_port", and of each of
 "peers" "public_key", "endpoint", "last_handshake" (seconds since the Unix epoch), "rx_bytes", "tx_bytes",
 "keepalive" and "allowed_ips". What is not known is null. Keys may be added. adit_text_free frees it.
 */
int32_t adit_tunnel_status(const struct adit_tunnel *tunnel,
                           char **json,
                           struct adit_error *error);

/*
 Writes the counters of a tunnel. It waits for nobody.
 */
int32_t adit_tunnel_get_stats(const struct adit_tunnel *tunnel,
                              struct adit_tunnel_stats *stats,
                              struct adit_error *error);

/*
 Writes the next event of a tunnel, for which it waits up to `timeout_ms`, or for as long as it takes if
 that is negative. ADIT_NOTHING if none came, ADIT_ERROR_ENDED with the reason if none will.
 */
int32_t adit_tunnel_next_event(const struct adit_tunnel *tunnel,
                               int64_t timeout_ms,
                               struct adit_event *event,
                               struct adit_error *error);

/*
 Stops a tunnel, and returns when its threads have ended and its descriptors are closed: some milliseconds,
 or as long as callbacks and other calls take. Called in a callback, it returns before. The tunnel is still
 to be freed.
 */
int32_t adit_tunnel_stop(const struct adit_tunnel *tunnel,
                         struct adit_error *error);

/*
 Stops a tunnel and frees it. NULL is none. No other thread may be in a call with it, and it must not be
 called in a callback.
 */
void adit_tunnel_free(struct adit_tunnel *tunnel);

/*
 Connects to `target` inside a tunnel: "name:port", "address:port", an IPv6 address in brackets. A name is looked up
 inside the tunnel, too. Waits for `timeout_ms` at most. `fd` is then a stream socket, which is the caller's
 to close: closed, or shut down for writing, it ends the stream as TCP does. One that the other end resets reads as
 if it had ended. ADIT_ERROR_REFUSED,
 ADIT_ERROR_UNREACHABLE, ADIT_ERROR_TIMED_OUT, ADIT_ERROR_UNKNOWN_NAME and ADIT_ERROR_NO_ROOM say why not.
 */
int32_t adit_tcp_connect(const struct adit_tunnel *tunnel,
                         const char *target,
                         uint32_t timeout_ms,
                         int32_t *fd,
                         struct adit_error *error);

/*
 Listens on a TCP port inside a tunnel, on all its inner addresses; 0 is any. NULL on error.
 */
struct adit_tcp_listener *adit_tcp_listen(const struct adit_tunnel *tunnel,
                                          uint16_t port,
                                          struct adit_error *error);

/*
 The port of a listener; 0 if it is NULL. Any thread.
 */
uint16_t adit_tcp_listener_port(const struct adit_tcp_listener *listener);

/*
 The next connection, for which it waits up to `timeout_ms`, or for as long as it takes if that is negative.
 `fd` is then a stream socket, as of adit_tcp_connect. ADIT_NOTHING if none came, ADIT_ERROR_ENDED once the
 tunnel has ended. Any thread.
 */
int32_t adit_tcp_accept(const struct adit_tcp_listener *listener,
                        int64_t timeout_ms,
                        int32_t *fd,
                        struct adit_error *error);

/*
 Closes a TCP port, and resets the connections that were not accepted. NULL is none. No other thread may be
 in a call with it.
 */
void adit_tcp_listener_free(struct adit_tcp_listener *listener);

/*
 Has a UDP port inside a tunnel, on all its inner addresses; 0 is any, and is written to `port`. `fd` is then a
 socket that keeps messages apart (SOCK_SEQPACKET), which is the caller's to close. A message that is
 written or read is a datagram behind 19 bytes: a zero, the port of the other end in network order, and its
 address as IPv6; IPv4 is ::ffff:a.b.c.d. One that does not fit the MTU or its queue is lost. At the end of the
 tunnel a read returns 0.
 */
int32_t adit_udp_bind(const struct adit_tunnel *tunnel,
                      uint16_t *port,
                      int32_t *fd,
                      struct adit_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ADIT_H */
