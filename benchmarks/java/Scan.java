import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Scans a CommitLog file with RocketMQ's CommitLog: java Scan FILE EMPTY_FOLDER. */
final class Scan extends Peer.Task {
    private final CommitLog commitLog;
    private final ByteBuffer log;
    private final boolean checkCrc;

    private Scan(CommitLog commitLog, ByteBuffer log, boolean checkCrc) {
        this.commitLog = commitLog;
        this.log = log;
        this.checkCrc = checkCrc;
    }

    public static void main(String[] args) throws Exception {
        var config = new MessageStoreConfig();
        config.setStorePathRootDir(args[1]);
        var broker = new BrokerConfig();
        var store = new DefaultMessageStore(
                config, new BrokerStatsManager(broker), null, broker, new ConcurrentHashMap<>());
        ByteBuffer log;
        try (var channel = FileChannel.open(Path.of(args[0]))) {
            log = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
        }
        Peer.serve(Map.of(
                "plain", new Scan(store.getCommitLog(), log, false),
                "crc", new Scan(store.getCommitLog(), log, true)));
    }

    /** As dispatch reads the log (no CRC, bodies are skipped), or as recovery does (CRC, bodies are read). */
    @Override
    long run() {
        long check = 0;
        ByteBuffer buffer = log.duplicate();
        while (true) {
            DispatchRequest request = commitLog.checkMessageAndReturnSize(buffer, checkCrc, false, checkCrc);
            if (!request.isSuccess() || request.getMsgSize() == 0) {
                return check;
            }
            check += request.getMsgSize() + request.getTagsCode();
        }
    }
}
