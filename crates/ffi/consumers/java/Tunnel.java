import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A tunnel over a TUN device that this program makes, with one peer:
 *
 * <pre>wg genkey | java Tunnel INTERFACE PORT PEER_KEY ENDPOINT|- ALLOWED_IPS</pre>
 *
 * It reads its private key from the first line of standard input, and ends when that is closed. A second thread waits
 * for events, as an app does to show its state.
 */
final class Tunnel {
    private static native int openTun(String name);

    private static native void close(int fd);

    public static void main(String[] args) throws Exception {
        if (args.length != 5) {
            System.err.println("usage: Tunnel INTERFACE PORT PEER_KEY ENDPOINT|- ALLOWED_IPS < PRIVATE_KEY");
            System.exit(2);
        }
        try {
            run(args[0], Integer.parseInt(args[1]), args[2], args[3], args[4]);
        } catch (AditTunnel.Failure failure) {
            System.err.println(failure.getMessage() + " (" + failure.code + ")");
            System.exit(1);
        }
    }

    private static void run(String name, int port, String peer, String endpoint, String allowedIps) throws Exception {
        byte[] peerKey = AditTunnel.key(peer.getBytes(StandardCharsets.US_ASCII));
        byte[] privateKey = readKey();
        AtomicInteger sockets = new AtomicInteger();
        AditTunnel tunnel;
        int tun = openTun(name);
        try (AditTunnel.Config config = new AditTunnel.Config(privateKey, port)) {
            Arrays.fill(privateKey, (byte) 0);
            config.peer(peerKey, endpoint.equals("-") ? null : endpoint, allowedIps, 0);
            tunnel = new AditTunnel(config, tun, fd -> fd >= 0 && sockets.incrementAndGet() > 0);
        } finally {
            close(tun);
        }
        CountDownLatch session = new CountDownLatch(1);
        Thread events = new Thread(() -> watch(tunnel, peerKey, session));
        events.setDaemon(true);
        events.start();
        System.out.println("ready");

        while (System.in.read() >= 0) {}
        if (!session.await(10, TimeUnit.SECONDS)) {
            throw new IllegalStateException("there is no event of a session");
        }
        long[] stats = tunnel.stats();
        System.out.println("sent " + stats[0] + "\npushed " + stats[1] + "\nstatus " + tunnel.status());
        // New sockets, of which the app is told as well, on a thread of the tunnel.
        int before = sockets.get();
        tunnel.rebind();
        while (sockets.get() == before) {
            Thread.sleep(1);
        }
        System.out.println("sockets " + before);
        // The thread that waits for events returns, so that nobody uses the tunnel when it is freed.
        tunnel.close();
        events.join();
        try {
            tunnel.status();
        } catch (AditTunnel.Failure ended) {
            if (ended.code == AditTunnel.Failure.ENDED) {
                return;
            }
            throw ended;
        }
        throw new IllegalStateException("a tunnel that is closed has a status");
    }

    /** Until the tunnel ends. */
    private static void watch(AditTunnel tunnel, byte[] peerKey, CountDownLatch session) {
        byte[] peer = new byte[32];
        try {
            while (true) {
                int kind = tunnel.nextEvent(-1, peer);
                if (kind == AditTunnel.EVENT_SESSION && Arrays.equals(peer, peerKey)) {
                    session.countDown();
                }
            }
        } catch (AditTunnel.Failure ended) {
            if (ended.code != AditTunnel.Failure.ENDED) {
                throw ended;
            }
        }
    }

    /** The key of the first line, of which no String is made: those stay in memory. */
    private static byte[] readKey() throws IOException {
        byte[] line = new byte[64];
        int len = 0;
        for (int next = System.in.read(); next >= 0 && next != '\n' && len < line.length; next = System.in.read()) {
            line[len++] = (byte) next;
        }
        byte[] base64 = Arrays.copyOf(line, len);
        try {
            return AditTunnel.key(base64);
        } finally {
            Arrays.fill(line, (byte) 0);
            Arrays.fill(base64, (byte) 0);
        }
    }
}
