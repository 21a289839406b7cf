import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Loads a store that a killed writer left, in each round a fresh one: java Reopen FOLDER FILE_SIZE SLOTS ITEMS.
 *
 * <p>Round 7 finds its store in FOLDER/7. The check is where the log ends.
 */
final class Reopen extends Peer.Task {
    private final Path folder;
    private final int[] sizes;
    private DefaultMessageStore store;

    private Reopen(Path folder, int[] sizes) {
        this.folder = folder;
        this.sizes = sizes;
    }

    public static void main(String[] args) throws Exception {
        int[] sizes = Arrays.stream(args).skip(1).mapToInt(Integer::parseInt).toArray();
        Peer.serve(Map.of("load", new Reopen(Path.of(args[0]), sizes)));
    }

    @Override
    void prepare(int round) {
        try {
            if (store != null) {
                store.destroy(); // so that it lets go of its maps
            }
            Path root = folder.resolve(String.valueOf(round));
            if (!Files.exists(root.resolve("abort"))) {
                throw new IllegalStateException(root + " was not left by a killed writer");
            }
            var config = new MessageStoreConfig();
            config.setStorePathRootDir(root.toString());
            config.setStorePathCommitLog(root.resolve("commitlog").toString());
            config.setMappedFileSizeCommitLog(sizes[0]);
            config.setMaxHashSlotNum(sizes[1]);
            config.setMaxIndexNum(sizes[2]);
            var broker = new BrokerConfig();
            store = new DefaultMessageStore(
                    config, new BrokerStatsManager(broker), null, broker, new ConcurrentHashMap<>());
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    long run() {
        if (!store.load()) {
            throw new IllegalStateException("RocketMQ cannot load the store");
        }
        return store.getMaxPhyOffset();
    }
}
