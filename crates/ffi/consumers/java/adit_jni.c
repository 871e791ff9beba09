/* What AditTunnel.java calls: the functions of adit.h with Java's types. Errors become exceptions. */
#include <adit.h>
#include <errno.h>
#include <fcntl.h>
#include <jni.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* A tunnel, and what its threads call. */
struct handle {
  adit_tunnel *tunnel;
  JavaVM *vm;
  jobject sockets; /* an AditTunnel.Sockets, or NULL */
  jmethodID opened;
};

static void throw_failure(JNIEnv *env, int code, const char *text) {
  jclass kind = (*env)->FindClass(env, "AditTunnel$Failure");
  jmethodID make = kind ? (*env)->GetMethodID(env, kind, "<init>", "(ILjava/lang/String;)V") : NULL;
  jstring message = make ? (*env)->NewStringUTF(env, text) : NULL;
  jobject failure = message ? (*env)->NewObject(env, kind, make, (jint)code, message) : NULL;
  if (failure) (*env)->Throw(env, failure);
}

/* A code of the library: an error is thrown. */
static int checked(JNIEnv *env, int code, const adit_error *error) {
  if (code < 0) throw_failure(env, code, error->text);
  return code;
}

static struct handle *of(jlong handle) { return (struct handle *)(intptr_t)handle; }

/* The bytes of a key, which are 32. */
static int key_of(JNIEnv *env, jbyteArray from, uint8_t key[ADIT_KEY_LEN]) {
  if (!from || (*env)->GetArrayLength(env, from) != ADIT_KEY_LEN) {
    throw_failure(env, ADIT_ERROR_ARGUMENT, "a key is 32 bytes");
    return 0;
  }
  (*env)->GetByteArrayRegion(env, from, 0, ADIT_KEY_LEN, (jbyte *)key);
  return 1;
}

/* A text, to be given back by release_text; NULL of null. */
static const char *text_of(JNIEnv *env, jstring from) {
  return from ? (*env)->GetStringUTFChars(env, from, NULL) : NULL;
}

static void release_text(JNIEnv *env, jstring from, const char *text) {
  if (text) (*env)->ReleaseStringUTFChars(env, from, text);
}

/* Writes a key to 32 bytes of `key`; `base64` has a zero byte at its end. */
JNIEXPORT void JNICALL Java_AditTunnel_decode(JNIEnv *env, jclass of_class, jbyteArray base64, jbyteArray key) {
  char text[ADIT_KEY_TEXT_LEN + 1] = {0};
  uint8_t read[ADIT_KEY_LEN];
  adit_error error = {.struct_size = sizeof error};
  jsize len = (*env)->GetArrayLength(env, base64);
  (void)of_class;
  if (len > ADIT_KEY_TEXT_LEN) len = ADIT_KEY_TEXT_LEN;
  (*env)->GetByteArrayRegion(env, base64, 0, len, (jbyte *)text);
  if (checked(env, adit_key_from_base64(text, read, &error), &error) == ADIT_OK)
    (*env)->SetByteArrayRegion(env, key, 0, ADIT_KEY_LEN, (jbyte *)read);
  explicit_bzero(text, sizeof text);
  explicit_bzero(read, sizeof read);
}

JNIEXPORT jlong JNICALL Java_AditTunnel_newConfig(JNIEnv *env, jclass of_class, jbyteArray private_key, jint port) {
  uint8_t key[ADIT_KEY_LEN];
  adit_error error = {.struct_size = sizeof error};
  (void)of_class;
  if (!key_of(env, private_key, key)) return 0;
  adit_config *config = adit_config_new(key, &error);
  explicit_bzero(key, sizeof key);
  if (config) adit_config_set_listen_port(config, (uint16_t)port, &error);
  if (checked(env, error.code, &error) < 0) {
    adit_config_free(config);
    config = NULL;
  }
  return (jlong)(intptr_t)config;
}

JNIEXPORT void JNICALL Java_AditTunnel_addPeer(JNIEnv *env, jclass of_class, jlong config, jbyteArray public_key,
                                               jstring endpoint, jstring allowed_ips, jint keepalive) {
  uint8_t key[ADIT_KEY_LEN];
  adit_error error = {.struct_size = sizeof error};
  (void)of_class;
  if (!key_of(env, public_key, key)) return;
  adit_peer peer = {
      .struct_size = sizeof peer,
      .public_key = key,
      .endpoint = text_of(env, endpoint),
      .allowed_ips = text_of(env, allowed_ips),
      .keepalive = (uint16_t)keepalive,
  };
  /* Without memory for a text an exception is thrown already. */
  if (!(*env)->ExceptionCheck(env))
    checked(env, adit_config_add_peer((adit_config *)(intptr_t)config, &peer, &error), &error);
  release_text(env, endpoint, peer.endpoint);
  release_text(env, allowed_ips, peer.allowed_ips);
}

JNIEXPORT void JNICALL Java_AditTunnel_freeConfig(JNIEnv *env, jclass of_class, jlong config) {
  (void)env, (void)of_class;
  adit_config_free((adit_config *)(intptr_t)config);
}

/* On a thread of the tunnel or of Java: an app's VpnService.protect(fd). */
static int32_t on_socket(void *user, int32_t fd, int32_t is_ipv6) {
  struct handle *handle = user;
  JNIEnv *env = NULL;
  int32_t refused = 0;
  int is_attached = (*handle->vm)->GetEnv(handle->vm, (void **)&env, JNI_VERSION_1_6) == JNI_OK;
  (void)is_ipv6;
  if (!is_attached && (*handle->vm)->AttachCurrentThreadAsDaemon(handle->vm, (void **)&env, NULL) != JNI_OK)
    return EPERM;
  jboolean accepted = (*env)->CallBooleanMethod(env, handle->sockets, handle->opened, (jint)fd);
  if ((*env)->ExceptionCheck(env)) {
    (*env)->ExceptionDescribe(env);
    (*env)->ExceptionClear(env);
    accepted = JNI_FALSE;
  }
  if (!accepted) refused = EPERM;
  if (!is_attached) (*handle->vm)->DetachCurrentThread(handle->vm);
  return refused;
}

static void free_handle(JNIEnv *env, struct handle *handle) {
  if (!handle) return;
  adit_tunnel_free(handle->tunnel);
  if (handle->sockets) (*env)->DeleteGlobalRef(env, handle->sockets);
  free(handle);
}

JNIEXPORT jlong JNICALL Java_AditTunnel_start(JNIEnv *env, jclass of_class, jlong config, jint fd, jobject sockets) {
  struct handle *handle = calloc(1, sizeof *handle);
  adit_error error = {.struct_size = sizeof error};
  adit_options options = {.struct_size = sizeof options, .source = ADIT_SOURCE_PLAIN, .fd = fd, .user = handle};
  (void)of_class;
  if (!handle) {
    throw_failure(env, ADIT_ERROR_HOST, "no memory for a tunnel");
    return 0;
  }
  if (sockets) {
    jclass kind = (*env)->GetObjectClass(env, sockets);
    handle->opened = (*env)->GetMethodID(env, kind, "opened", "(I)Z");
    handle->sockets = (*env)->NewGlobalRef(env, sockets);
    options.on_socket = on_socket;
  }
  if (!(*env)->ExceptionCheck(env) && (*env)->GetJavaVM(env, &handle->vm) == JNI_OK) {
    handle->tunnel = adit_tunnel_start((adit_config *)(intptr_t)config, &options, &error);
    checked(env, error.code, &error);
  }
  if (handle->tunnel) return (jlong)(intptr_t)handle;
  free_handle(env, handle);
  return 0;
}

/* The kind of the next event, whose peer is written to 32 bytes; 0 if none came in time. */
JNIEXPORT jint JNICALL Java_AditTunnel_nextEvent(JNIEnv *env, jclass of_class, jlong handle, jlong timeout_ms,
                                                 jbyteArray peer) {
  adit_event event = {.struct_size = sizeof event};
  adit_error error = {.struct_size = sizeof error};
  int code = checked(env, adit_tunnel_next_event(of(handle)->tunnel, timeout_ms, &event, &error), &error);
  (void)of_class;
  if (code != ADIT_OK) return 0;
  (*env)->SetByteArrayRegion(env, peer, 0, ADIT_KEY_LEN, (jbyte *)event.peer);
  return (jint)event.kind;
}

/* Writes the numbers of packets that were sent and that were delivered. */
JNIEXPORT void JNICALL Java_AditTunnel_stats(JNIEnv *env, jclass of_class, jlong handle, jlongArray counters) {
  adit_tunnel_stats stats = {.struct_size = sizeof stats};
  adit_error error = {.struct_size = sizeof error};
  (void)of_class;
  if (checked(env, adit_tunnel_get_stats(of(handle)->tunnel, &stats, &error), &error) != ADIT_OK) return;
  jlong read[2] = {(jlong)stats.sent, (jlong)stats.pushed};
  (*env)->SetLongArrayRegion(env, counters, 0, 2, read);
}

JNIEXPORT jstring JNICALL Java_AditTunnel_status(JNIEnv *env, jclass of_class, jlong handle) {
  char *json = NULL;
  adit_error error = {.struct_size = sizeof error};
  (void)of_class;
  if (checked(env, adit_tunnel_status(of(handle)->tunnel, &json, &error), &error) != ADIT_OK) return NULL;
  jstring status = (*env)->NewStringUTF(env, json);
  adit_text_free(json);
  return status;
}

JNIEXPORT void JNICALL Java_AditTunnel_rebind(JNIEnv *env, jclass of_class, jlong handle) {
  adit_error error = {.struct_size = sizeof error};
  (void)of_class;
  checked(env, adit_tunnel_rebind(of(handle)->tunnel, &error), &error);
}

JNIEXPORT void JNICALL Java_AditTunnel_stop(JNIEnv *env, jclass of_class, jlong handle) {
  adit_error error = {.struct_size = sizeof error};
  (void)of_class;
  checked(env, adit_tunnel_stop(of(handle)->tunnel, &error), &error);
}

JNIEXPORT void JNICALL Java_AditTunnel_free(JNIEnv *env, jclass of_class, jlong handle) {
  (void)of_class;
  free_handle(env, of(handle));
}

/* A TUN device of this name: on Android the descriptor comes from VpnService.Builder.establish(). */
JNIEXPORT jint JNICALL Java_Tunnel_openTun(JNIEnv *env, jclass of_class, jstring name) {
  struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
  const char *text = text_of(env, name);
  int fd = text ? open("/dev/net/tun", O_RDWR | O_CLOEXEC) : -1;
  (void)of_class;
  if (text) strncpy(request.ifr_name, text, sizeof request.ifr_name - 1);
  release_text(env, name, text);
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0) {
    int code = errno;
    if (fd >= 0) close(fd);
    if (text) throw_failure(env, ADIT_ERROR_DESCRIPTOR, strerror(code));
    return -1;
  }
  return fd;
}

JNIEXPORT void JNICALL Java_Tunnel_close(JNIEnv *env, jclass of_class, jint fd) {
  (void)env, (void)of_class;
  close(fd);
}
