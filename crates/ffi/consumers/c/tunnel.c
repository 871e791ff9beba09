/* A tunnel over a TUN device that this program makes, with one peer:
 *
 *   wg genkey | tunnel INTERFACE PORT PEER_KEY ENDPOINT|- ALLOWED_IPS
 *
 * It reads its private key from the first line of standard input, and ends when that is closed.
 */
#include <adit.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static adit_error error = {.struct_size = sizeof(adit_error)};

static void check(int is_right, const char *what) {
  if (!is_right) {
    fprintf(stderr, "%s: %s (%d)\n", what, error.text, error.code);
    exit(1);
  }
}

static int open_tun(const char *name) {
  struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
  int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0) {
    perror("a TUN device");
    exit(1);
  }
  return fd;
}

static void on_start(void *user) { __atomic_add_fetch((int *)user, 1, __ATOMIC_RELAXED); }

int main(int argc, char **argv) {
  uint8_t private_key[ADIT_KEY_LEN], peer_key[ADIT_KEY_LEN];
  char line[64];
  int threads = 0;
  if (argc != 6 || !fgets(line, sizeof line, stdin)) {
    fprintf(stderr, "usage: tunnel INTERFACE PORT PEER_KEY ENDPOINT|- ALLOWED_IPS < PRIVATE_KEY\n");
    return 2;
  }
  line[strcspn(line, "\n")] = 0;
  check(adit_key_from_base64(line, private_key, &error) == ADIT_OK, "the private key");
  check(adit_key_from_base64(argv[3], peer_key, &error) == ADIT_OK, "the peer's key");

  adit_config *config = adit_config_new(private_key, &error);
  check(config != NULL, "a configuration");
  adit_peer peer = {
      .struct_size = sizeof peer,
      .public_key = peer_key,
      .endpoint = strcmp(argv[4], "-") ? argv[4] : NULL,
      .allowed_ips = argv[5],
  };
  check(adit_config_set_listen_port(config, (uint16_t)atoi(argv[2]), &error) == ADIT_OK, "the port");
  check(adit_config_add_peer(config, &peer, &error) == ADIT_OK, "the peer");

  int tun = open_tun(argv[1]);
  adit_options options = {
      .struct_size = sizeof options,
      .source = ADIT_SOURCE_VNET,
      .fd = tun,
      .on_start = on_start,
      .user = &threads,
  };
  adit_tunnel *tunnel = adit_tunnel_start(config, &options, &error);
  check(tunnel != NULL, "the tunnel");
  adit_config_free(config);
  close(tun);
  puts("ready");
  fflush(stdout);

  while (fgets(line, sizeof line, stdin)) {
  }
  adit_event event = {.struct_size = sizeof event};
  do {
    check(adit_tunnel_next_event(tunnel, 0, &event, &error) == ADIT_OK, "an event of a session");
  } while (event.kind != ADIT_EVENT_SESSION);
  check(!memcmp(event.peer, peer_key, sizeof peer_key), "a session with the peer");
  adit_tunnel_stats stats = {.struct_size = sizeof stats};
  check(adit_tunnel_get_stats(tunnel, &stats, &error) == ADIT_OK, "the counters");
  char *status = NULL;
  check(adit_tunnel_status(tunnel, &status, &error) == ADIT_OK, "the status");
  printf("sent %llu\npushed %llu\nstatus %s\n", (unsigned long long)stats.sent,
         (unsigned long long)stats.pushed, status);
  adit_text_free(status);

  check(adit_tunnel_stop(tunnel, &error) == ADIT_OK, "the end");
  check(adit_tunnel_suspend(tunnel, &error) == ADIT_ERROR_ENDED, "a use after the end");
  check(threads >= 2, "the threads");
  adit_tunnel_free(tunnel);
  return 0;
}
