/* Two tunnels in memory, by boringtun's functions for C: a handshake, packets both ways, keys and mistakes. */
#include <wireguard_ffi.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(void *) != 8 || sizeof(struct stats) == 88, "boringtun's layout");
_Static_assert(sizeof(void *) != 8 || sizeof(struct wireguard_result) == 16, "boringtun's layout");

static int lines;

static void on_line(const char *line) {
  assert(line[0] && !strchr(line, '\n'));
  lines++;
}

/* An IPv4 packet of `len` bytes. */
static void make_packet(uint8_t *packet, uint16_t len) {
  memset(packet, len & 0xff, len);
  packet[0] = 0x45;
  packet[2] = len >> 8;
  packet[3] = len & 0xff;
}

/* A packet from one to the other. */
static void pass(struct wireguard_tunnel *from, struct wireguard_tunnel *to, uint16_t len) {
  uint8_t packet[2048], sealed[2048 + 32], opened[2048 + 32];
  make_packet(packet, len);
  struct wireguard_result result = wireguard_write(from, packet, len, sealed, sizeof sealed);
  assert(result.op == WRITE_TO_NETWORK && result.size >= (size_t)len + 32);
  result = wireguard_read(to, sealed, (uint32_t)result.size, opened, sizeof opened);
  assert(result.op == WRITE_TO_TUNNEL_IPV4 && result.size == len);
  assert(!memcmp(packet, opened, len));
}

static void expect_error(struct wireguard_result result, enum wireguard_error error) {
  assert(result.op == WIREGUARD_ERROR && result.size == error);
}

static void check_keys(void) {
  struct x25519_key key = x25519_secret_key(), other = x25519_secret_key();
  assert(memcmp(&key, &other, sizeof key));
  const char *base64 = x25519_key_to_base64(key), *hex = x25519_key_to_hex(key);
  assert(strlen(base64) == 44 && strlen(hex) == 64);
  assert(check_base64_encoded_x25519_key(base64) == 1);
  assert(check_base64_encoded_x25519_key(hex) == 0);
  assert(check_base64_encoded_x25519_key("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=") == 0);
  assert(check_base64_encoded_x25519_key("") == 0 && check_base64_encoded_x25519_key(NULL) == 0);
  x25519_key_to_str_free(base64);
  x25519_key_to_str_free(hex);
  x25519_key_to_str_free(NULL);
  /* RFC 7748, 6.1. */
  static const uint8_t alice[32] = {0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1,
                                    0x72, 0x51, 0xb2, 0x66, 0x45, 0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0,
                                    0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a};
  static const char *of_alice = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
  memcpy(key.key, alice, sizeof alice);
  hex = x25519_key_to_hex(x25519_public_key(key));
  assert(!strcmp(hex, of_alice));
  x25519_key_to_str_free(hex);
}

static void check_mistakes(const char *private_key, const char *public_key) {
  uint8_t buffer[256] = {0};
  assert(!new_tunnel(NULL, public_key, NULL, 0, 0));
  assert(!new_tunnel(private_key, "no key", NULL, 0, 0));
  assert(!new_tunnel(private_key, public_key, "no key", 0, 0));
  expect_error(wireguard_write(NULL, buffer, 20, buffer, sizeof buffer), WIREGUARD_ERROR_LOCK_FAILED);
  expect_error(wireguard_tick(NULL, buffer, sizeof buffer), WIREGUARD_ERROR_LOCK_FAILED);
  assert(wireguard_stats(NULL).time_since_last_handshake == -1);
  tunnel_free(NULL);
  struct wireguard_tunnel *tunnel = new_tunnel(private_key, public_key, NULL, 0, 0);
  expect_error(wireguard_read(tunnel, buffer, 100, buffer, sizeof buffer), WIREGUARD_ERROR_INVALID_PACKET);
  expect_error(wireguard_write(tunnel, buffer, 100, buffer, sizeof buffer), WIREGUARD_ERROR_INVALID_PACKET);
  expect_error(wireguard_force_handshake(tunnel, NULL, 1000), WIREGUARD_ERROR_BUFFER_TOO_SMALL);
  assert(wireguard_read(tunnel, NULL, 1000, NULL, 1000).op == WIREGUARD_ERROR);
  tunnel_free(tunnel);
}

int main(void) {
  struct x25519_key keys[2] = {x25519_secret_key(), x25519_secret_key()};
  const char *private_keys[2], *public_keys[2];
  uint8_t datagram[2048], answer[2048];

  check_keys();
  assert(!set_logging_function(NULL) && set_logging_function(on_line) && !set_logging_function(on_line));
  for (int n = 0; n < 2; n++) {
    private_keys[n] = x25519_key_to_base64(keys[n]);
    public_keys[n] = x25519_key_to_hex(x25519_public_key(keys[n]));
  }
  const char *preshared_key = private_keys[0];
  struct wireguard_tunnel *one = new_tunnel(private_keys[0], public_keys[1], preshared_key, 25, 0x123456);
  struct wireguard_tunnel *two = new_tunnel(private_keys[1], public_keys[0], preshared_key, 0, 0x654321);
  assert(one && two);

  struct wireguard_result result = wireguard_force_handshake(one, datagram, sizeof datagram);
  assert(result.op == WRITE_TO_NETWORK && result.size == 148);
  /* The index of the sender. */
  assert(datagram[5] == 0x56 && datagram[6] == 0x34 && datagram[7] == 0x12);
  result = wireguard_read(two, datagram, 148, answer, sizeof answer);
  assert(result.op == WRITE_TO_NETWORK && result.size == 92);
  /* In place: a source that is the destination is read first. */
  result = wireguard_read(one, answer, 92, answer, sizeof answer);
  assert(result.op == WRITE_TO_NETWORK && result.size == 32);
  assert(wireguard_read(one, NULL, 0, datagram, sizeof datagram).op == WIREGUARD_DONE);
  assert(wireguard_read(two, answer, 32, datagram, sizeof datagram).op == WIREGUARD_DONE);
  expect_error(wireguard_read(two, answer, 32, datagram, sizeof datagram), WIREGUARD_ERROR_DUPLICATE_COUNTER);

  for (uint16_t len = 20; len < 1500; len += 7) {
    pass(one, two, len);
    pass(two, one, len);
  }
  assert(wireguard_tick(two, datagram, sizeof datagram).op == WIREGUARD_DONE);
  struct stats stats = wireguard_stats(one);
  assert(stats.time_since_last_handshake >= 0 && stats.estimated_rtt >= 0);
  assert(stats.tx_bytes == stats.rx_bytes && stats.tx_bytes > 100000);
  assert(stats.estimated_loss < 0.01f);
  assert(lines >= 3);

  check_mistakes(private_keys[0], public_keys[1]);
  for (int n = 0; n < 2; n++) {
    x25519_key_to_str_free(private_keys[n]);
    x25519_key_to_str_free(public_keys[n]);
  }
  tunnel_free(one);
  tunnel_free(two);
  puts("well");
  return 0;
}
