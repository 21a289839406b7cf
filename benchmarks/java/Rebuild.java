import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Loads a store that has a log and nothing else, so that RocketMQ dispatches all of it: java Rebuild FOLDER LOG...
 *
 * <p>It does so to copies of the log's files, for it opens them to write to them.
 */
final class Rebuild extends Peer.Task {
    private final List<Path> log;
    private final Path folder;
    private DefaultMessageStore store;

    private Rebuild(List<Path> log, Path folder) {
        this.log = log;
        this.folder = folder;
    }

    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[0]);
        Files.createDirectories(folder);
        List<Path> log = new ArrayList<>();
        for (String file : List.of(args).subList(1, args.length)) {
            log.add(Files.copy(Path.of(file), folder.resolve(Path.of(file).getFileName())));
        }
        Peer.serve(Map.of("load", new Rebuild(log, folder.resolve("store"))));
    }

    /** A store whose log is links, which RocketMQ may delete. */
    @Override
    void prepare(int round) {
        try {
            if (store != null) {
                store.destroy();
            }
            if (Files.exists(folder)) {
                try (var paths = Files.walk(folder)) {
                    paths.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
                }
            }
            Files.createDirectories(folder.resolve("commitlog"));
            for (Path file : log) {
                Files.createSymbolicLink(folder.resolve("commitlog").resolve(file.getFileName()), file);
            }
            var config = new MessageStoreConfig();
            config.setStorePathRootDir(folder.toString());
            config.setStorePathCommitLog(folder.resolve("commitlog").toString());
            config.setMappedFileSizeCommitLog((int) Files.size(log.get(0)));
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
        long entries = 0;
        for (var queues : store.getConsumeQueueTable().values()) {
            for (var queue : queues.values()) {
                entries += queue.getMaxOffsetInQueue();
            }
        }
        return entries;
    }
}
