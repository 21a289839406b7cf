import java.io.File;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Puts messages into a new store: java Append FOLDER COUNT SYNC_COUNT THREADS.
 *
 * <p>A message is made of its parts and encoded within the time that counts, as the other side does it. RocketMQ
 * dispatches what is put in its own thread.
 */
final class Append extends Peer.Task {
    private static final SocketAddress BORN = new InetSocketAddress("127.0.0.1", 0);
    private static final SocketAddress STORE = new InetSocketAddress("127.0.0.1", 10911);
    private static final byte[] BODY = new byte[300];
    private static final String UNIQ_KEY = MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX;
    private static List<String>[] keys;

    private final Path folder;
    private final int count;
    private final int threads;
    private final boolean isSync;
    private DefaultMessageStore store;

    private Append(Path folder, int count, int threads, boolean isSync) {
        this.folder = folder;
        this.count = count;
        this.threads = threads;
        this.isSync = isSync;
    }

    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[0]);
        int count = Integer.parseInt(args[1]);
        int syncCount = Integer.parseInt(args[2]);
        int threads = Integer.parseInt(args[3]);
        for (int i = 0; i < BODY.length; i++) {
            BODY[i] = (byte) (31 * i);
        }
        keys = newLists(Math.max(count, syncCount) + 1);
        for (int i = 0; i < keys.length; i++) {
            keys[i] = List.of("order-" + (1_000_000_000 + i), "buyer-" + (1_000_000_000 + i));
        }
        Peer.serve(Map.of(
                "append", new Append(folder, count, 1, false),
                "sync", new Append(folder, syncCount, threads, true)));
    }

    @Override
    void prepare(int round) {
        try {
            if (Files.exists(folder)) {
                try (var paths = Files.walk(folder)) {
                    paths.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
                }
            }
            var config = new MessageStoreConfig();
            config.setStorePathRootDir(folder.toString());
            config.setStorePathCommitLog(folder.resolve("commitlog").toString());
            config.setFlushDiskType(isSync ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
            config.setHaListenPort(0);
            var broker = new BrokerConfig();
            store = new DefaultMessageStore(
                    config, new BrokerStatsManager(broker), null, broker, new ConcurrentHashMap<>());
            if (!store.load()) {
                throw new IllegalStateException("RocketMQ cannot make the store");
            }
            store.start();
            put(0); // makes the first file
            new ProcessBuilder("sync").start().waitFor(); // what other rounds wrote and removed is not this one's:
            Thread.sleep(500); // a file system tells the disk what room is free a moment later
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    long run() throws Exception {
        if (threads == 1) {
            for (int number = 1; number <= count; number++) {
                put(number);
            }
        } else {
            var next = new AtomicLong(1);
            var done = new CountDownLatch(threads);
            for (int i = 0; i < threads; i++) {
                new Thread(() -> {
                    for (long number = next.getAndIncrement(); number <= count; number = next.getAndIncrement()) {
                        put((int) number);
                    }
                    done.countDown();
                }).start();
            }
            done.await();
        }
        return store.getMaxPhyOffset();
    }

    /** Its threads shall not run beside the next peer. */
    @Override
    void finish() {
        store.shutdown();
    }

    private void put(int number) {
        var message = new MessageExtBrokerInner();
        message.setTopic("orders");
        message.setBody(BODY);
        message.setKeys(keys[number]);
        message.setTags("paid");
        message.setQueueId(0);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(BORN);
        message.setStoreHost(STORE);
        // Where the machine has an IPv6 address only, an id is longer than that of the other side.
        String id = MessageClientIDSetter.createUniqID();
        MessageAccessor.putProperty(message, UNIQ_KEY, id.substring(id.length() - 32));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        if (store.putMessage(message).getPutMessageStatus() != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("RocketMQ did not take message " + number);
        }
    }

    @SuppressWarnings("unchecked")
    private static List<String>[] newLists(int count) {
        return new List[count];
    }
}
