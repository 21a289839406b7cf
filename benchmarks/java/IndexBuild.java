import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.apache.rocketmq.store.index.IndexFile;

/** Fills an IndexFile with RocketMQ's IndexFile.putKey and flushes it: java IndexBuild FOLDER SLOTS ITEMS. */
final class IndexBuild extends Peer.Task {
    private static final long START_MS = 1_794_789_730_000L;
    private static final int BLOCK = 1 << 16;

    private final String path;
    private final int slots;
    private final int items;

    private IndexBuild(String path, int slots, int items) {
        this.path = path;
        this.slots = slots;
        this.items = items;
    }

    public static void main(String[] args) throws Exception {
        Files.createDirectories(Path.of(args[0]));
        int slots = Integer.parseInt(args[1]);
        int items = Integer.parseInt(args[2]);
        Peer.serve(Map.of("build", new IndexBuild(args[0] + "/20261115120000000", slots, items)));
    }

    @Override
    void prepare(int round) {
        new File(path).delete();
    }

    /** Texts are made a block at a time, and the time that takes is not counted: see {@link #uncounted}. */
    @Override
    long run() throws Exception {
        var file = new IndexFile(path, slots, items, 0, 0);
        var texts = new String[BLOCK];
        for (int first = 1; first < items; first += BLOCK) {
            int count = Math.min(BLOCK, items - first);
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                String digits = Long.toHexString(IndexLookup.mix(first + i));
                texts[i] = "orders#" + "0".repeat(16 - digits.length()) + digits;
            }
            uncounted += System.nanoTime() - start;
            for (int i = 0; i < count; i++) {
                long number = first + i;
                file.putKey(texts[i], 550 * number, START_MS + number / 2);
            }
        }
        file.flush();
        long check = file.getEndPhyOffset();
        file.destroy(0);
        return check;
    }
}
