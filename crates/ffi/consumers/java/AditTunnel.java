import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/** A tunnel of Adit over the descriptor of a TUN device, as Android's VpnService has it. Any thread may use it. */
final class AditTunnel implements AutoCloseable {
    /** A handshake with a peer succeeded. */
    static final int EVENT_SESSION = 1;

    /** What the library says went wrong. */
    static final class Failure extends RuntimeException {
        private static final long serialVersionUID = 1;
        /** The tunnel was stopped, or has ended. */
        static final int ENDED = -6;

        final int code;

        Failure(int code, String text) {
            super(text);
            this.code = code;
        }
    }

    /** Is told of each UDP socket before it is bound; an app on Android calls VpnService.protect here. */
    interface Sockets {
        /** Whether the socket may be used. */
        boolean opened(int fd);
    }

    /** What a tunnel is to be. */
    static final class Config implements AutoCloseable {
        private final long config;

        /** The private key is not kept in Java. */
        Config(byte[] privateKey, int listenPort) {
            config = newConfig(privateKey, listenPort);
        }

        /** The endpoint may be null. */
        Config peer(byte[] publicKey, String endpoint, String allowedIps, int keepalive) {
            addPeer(config, publicKey, endpoint, allowedIps, keepalive);
            return this;
        }

        @Override
        public void close() {
            freeConfig(config);
        }
    }

    static {
        load();
    }

    private final ReadWriteLock lock = new ReentrantReadWriteLock();
    private long handle;

    /** It is up when this returns. The descriptor may be closed then. */
    AditTunnel(Config config, int fd, Sockets sockets) {
        handle = start(config.config, fd, sockets);
    }

    /** The 32 bytes of a key in base64. */
    static byte[] key(byte[] base64) {
        byte[] key = new byte[32];
        decode(base64, key);
        return key;
    }

    /** Waits for an event, for ever if the timeout is negative; 0 if none came. Its peer is written to 32 bytes. */
    int nextEvent(long timeoutMs, byte[] peer) {
        return call(handle -> nextEvent(handle, timeoutMs, peer));
    }

    /** Packets that were sent, and that were delivered. */
    long[] stats() {
        long[] counters = new long[2];
        call(handle -> {
            stats(handle, counters);
            return null;
        });
        return counters;
    }

    /** The status as JSON. */
    String status() {
        return call(AditTunnel::status);
    }

    /** The network is another one. */
    void rebind() {
        call(handle -> {
            rebind(handle);
            return null;
        });
    }

    /** Calls that wait return, and later ones fail. */
    void stop() {
        call(handle -> {
            stop(handle);
            return null;
        });
    }

    @Override
    public void close() {
        if (handle == 0) {
            return;
        }
        stop();
        // Nobody uses it any more once this lock is had.
        lock.writeLock().lock();
        try {
            long freed = handle;
            handle = 0;
            free(freed);
        } finally {
            lock.writeLock().unlock();
        }
    }

    private interface Call<T> {
        T on(long handle);
    }

    private <T> T call(Call<T> call) {
        Lock shared = lock.readLock();
        shared.lock();
        try {
            if (handle == 0) {
                throw new Failure(Failure.ENDED, "the tunnel is closed");
            }
            return call.on(handle);
        } finally {
            shared.unlock();
        }
    }

    @SuppressWarnings("restricted")
    private static void load() {
        System.loadLibrary("adit_jni");
    }

    private static native void decode(byte[] base64, byte[] key);

    private static native long newConfig(byte[] privateKey, int listenPort);

    private static native void addPeer(
            long config, byte[] publicKey, String endpoint, String allowedIps, int keepalive);

    private static native void freeConfig(long config);

    private static native long start(long config, int fd, Sockets sockets);

    private static native int nextEvent(long handle, long timeoutMs, byte[] peer);

    private static native void stats(long handle, long[] counters);

    private static native String status(long handle);

    private static native void rebind(long handle);

    private static native void stop(long handle);

    private static native void free(long handle);
}
