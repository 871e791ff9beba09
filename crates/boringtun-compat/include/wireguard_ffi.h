/* boringtun's functions for C, over Adit: the library boringtun-compat, built with its feature ffi-bindings.
 *
 * A tunnel may be used by several threads: they wait for each other. Texts end with a zero byte. Keys as text are base64,
 * or 64 hexadecimal digits. No function keeps a pointer that it is passed, but for set_logging_function.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wireguard_tunnel;

enum {
  /* A buffer of this length is long enough for every packet and datagram. */
  MAX_WIREGUARD_PACKET_SIZE = 65536 + 64,
};

/* What the caller has to do. */
enum result_type {
  WIREGUARD_DONE = 0,
  /* Send the first `size` bytes of dst to the peer, as one datagram. */
  WRITE_TO_NETWORK = 1,
  /* Nothing: `size` is what went wrong, a value of wireguard_error. */
  WIREGUARD_ERROR = 2,
  /* Deliver the first `size` bytes of dst, an IP packet, if the peer may have its source address. */
  WRITE_TO_TUNNEL_IPV4 = 4,
  WRITE_TO_TUNNEL_IPV6 = 6,
};

/* What goes wrong; boringtun's own header has no names for these. */
enum wireguard_error {
  WIREGUARD_ERROR_BUFFER_TOO_SMALL = 0,
  WIREGUARD_ERROR_UNEXPECTED_PACKET = 2,
  WIREGUARD_ERROR_WRONG_KEY = 5,
  WIREGUARD_ERROR_WRONG_TIMESTAMP = 7,
  WIREGUARD_ERROR_INVALID_MAC = 8,
  WIREGUARD_ERROR_INVALID_TAG = 9,
  WIREGUARD_ERROR_DUPLICATE_COUNTER = 11,
  WIREGUARD_ERROR_INVALID_PACKET = 12,
  WIREGUARD_ERROR_NO_SESSION = 13,
  /* The tunnel is NULL, or a mistake in the library has happened to it: free it. */
  WIREGUARD_ERROR_LOCK_FAILED = 14,
  /* The peer does not answer: wireguard_write and wireguard_force_handshake begin a handshake. */
  WIREGUARD_ERROR_CONNECTION_EXPIRED = 15,
  WIREGUARD_ERROR_UNDER_LOAD = 16,
};

struct wireguard_result {
  enum result_type op;
  size_t size;
};

struct stats {
  /* Seconds; -1 if there is no session. */
  int64_t time_since_last_handshake;
  /* Bytes of packets. */
  size_t tx_bytes;
  size_t rx_bytes;
  /* The part of the peer's packets that was lost, from 0 to 1. */
  float estimated_loss;
  /* Milliseconds from the last initiation that was answered to its response; -1 if there is none. */
  int32_t estimated_rtt;
  uint8_t reserved[56];
};

struct x25519_key {
  uint8_t key[32];
};

/* A new private key; zeros, which are none, if the system has no random bytes. */
struct x25519_key x25519_secret_key(void);
/* The public key of a private key. */
struct x25519_key x25519_public_key(struct x25519_key private_key);
/* Keys as text, to be freed by x25519_key_to_str_free; NULL if there is no memory. */
const char *x25519_key_to_base64(struct x25519_key key);
const char *x25519_key_to_hex(struct x25519_key key);
/* Wipes and frees such a text. NULL is none. */
void x25519_key_to_str_free(const char *key_str);
/* 1 if this is a key in base64 other than zeros; else 0. */
int check_base64_encoded_x25519_key(const char *key);

/* Has `log_func` get a line for what happens in handshakes, on whichever thread it happens. The text is freed when it
 * returns. It must not use the tunnel that the line is about. False if one was set before. */
bool set_logging_function(void (*log_func)(const char *));

/* A new tunnel; NULL if a key is none. `preshared_key` may be NULL. `keep_alive` is in seconds; 0 is none. The lower 24
 * bits of `index` are the upper 24 bits of all indices that the peer sends to: a program with several tunnels on one
 * socket tells by them which one a datagram is for. */
struct wireguard_tunnel *new_tunnel(const char *static_private, const char *server_static_public,
                                    const char *preshared_key, uint16_t keep_alive, uint32_t index);

/* Frees a tunnel, which nobody may be using. NULL is none. */
void tunnel_free(struct wireguard_tunnel *tunnel);

/* Seals a packet. Without a session it waits, and the result is an initiation, if none is under way. `dst` is to have 32
 * bytes more than the packet, and 148 at least. An empty packet is a keepalive. */
struct wireguard_result wireguard_write(const struct wireguard_tunnel *tunnel, const uint8_t *src, uint32_t src_size,
                                        uint8_t *dst, uint32_t dst_size);

/* Looks at a datagram; `dst` is to be as long. After WRITE_TO_NETWORK, call it again with no bytes until it returns
 * WIREGUARD_DONE. */
struct wireguard_result wireguard_read(const struct wireguard_tunnel *tunnel, const uint8_t *src, uint32_t src_size,
                                       uint8_t *dst, uint32_t dst_size);

/* Does what is due. To be called each 100 ms; `dst` is to have 148 bytes. */
struct wireguard_result wireguard_tick(const struct wireguard_tunnel *tunnel, uint8_t *dst, uint32_t dst_size);

/* Begins a handshake, also where one is under way. `dst` is to have 148 bytes. */
struct wireguard_result wireguard_force_handshake(const struct wireguard_tunnel *tunnel, uint8_t *dst,
                                                  uint32_t dst_size);

struct stats wireguard_stats(const struct wireguard_tunnel *tunnel);

#ifdef __cplusplus
}
#endif
