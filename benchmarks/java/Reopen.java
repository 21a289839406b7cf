import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Loads a store that a killed writer left, in each round a fresh one: java Reopen FOLDER LOG_FILE_SIZE.
 *
 * <p>Round 7 finds its store in FOLDER/7. The check is where the log ends.
 */
final class Reopen extends Peer.Task {
    private final Path folder;
    private final int fileSize;
    private DefaultMessageStore store;

    private Reopen(Path folder, int fileSize) {
        this.folder = folder;
        this.fileSize = fileSize;
    }

    public static void main(String[] args) throws Exception {
        Peer.serve(Map.of("load", new Reopen(Path.of(args[0]), Integer.parseInt(args[1]))));
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
            config.setMappedFileSizeCommitLog(fileSize);
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
