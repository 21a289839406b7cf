import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.store.index.IndexFile;

/** Looks keys up with RocketMQ's IndexFile: java IndexLookup FILE SLOTS ITEMS KEYS_A_ROUND. */
final class IndexLookup extends Peer.Task {
    private static final long MISS = 1L << 40;

    private final IndexFile file;
    private final int itemCapacity;
    private final int count;
    private final long firstKey;
    private String[] texts;

    private IndexLookup(IndexFile file, int itemCapacity, int count, long firstKey) {
        this.file = file;
        this.itemCapacity = itemCapacity;
        this.count = count;
        this.firstKey = firstKey;
    }

    public static void main(String[] args) throws Exception {
        int slots = Integer.parseInt(args[1]);
        int items = Integer.parseInt(args[2]);
        int count = Integer.parseInt(args[3]);
        var file = new IndexFile(args[0], slots, items, 0, 0);
        file.load();
        Peer.serve(Map.of(
                "hit", new IndexLookup(file, items, count, 0),
                "miss", new IndexLookup(file, items, count, MISS)));
    }

    /** Makes new strings, for a string keeps its hash once it was asked for it. */
    @Override
    void prepare(int round) {
        texts = new String[count];
        for (int i = 0; i < count; i++) {
            long number = 1 + Long.remainderUnsigned(mix((long) round * count + i), itemCapacity - 1);
            String digits = Long.toHexString(mix(number + firstKey));
            texts[i] = "orders#" + "0".repeat(16 - digits.length()) + digits;
        }
    }

    @Override
    long run() {
        long check = 0;
        List<Long> found = new ArrayList<>();
        for (String text : texts) {
            found.clear();
            file.selectPhyOffset(found, text, 64, 0, Long.MAX_VALUE);
            for (int i = 0; i < found.size(); i++) {
                check += found.get(i);
            }
        }
        return check;
    }

    /** The same as _mix in data.py. */
    static long mix(long number) {
        long z = number + 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }
}
