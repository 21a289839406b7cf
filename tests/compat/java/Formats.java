import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.Compressor;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.timer.TimerCheckpoint;
import org.apache.rocketmq.store.timer.TimerLog;
import org.apache.rocketmq.store.timer.TimerWheel;

/** RocketMQ's own classes, a request a line. Bytes and texts go in and out as hex; texts out as UTF-16 units. */
public class Formats {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.US_ASCII);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            answers.println(answer(words[0], words));
        }
        System.exit(0);  // RocketMQ's classes leave threads behind
    }

    private static String answer(String what, String[] words) throws Exception {
        switch (what) {
            case "record":
                return record(MessageDecoder.decode(ByteBuffer.wrap(HEX.parseHex(words[1])), true, true));
            case "properties":
                return properties(MessageDecoder.string2messageProperties(text(words[1])));
            case "topic":
                return TopicValidator.validateTopic(text(words[1])).isValid()
                    + " " + TopicValidator.isSystemTopic(text(words[1]));
            case "offset-id":
                MessageId id = MessageDecoder.decodeMessageId(words[1]);
                return host((InetSocketAddress) id.getAddress()) + " " + id.getOffset() + " "
                    + MessageDecoder.createMessageId(id.getAddress(), id.getOffset());
            case "unique-id":
                return HEX.formatHex(MessageClientIDSetter.getIPFromID(words[1])) + " "
                    + MessageClientIDSetter.getPidFromID(words[1]);
            case "compress":
                return HEX.formatHex(compressor(words[1]).compress(HEX.parseHex(words[2]), 5));
            case "decompress":
                return HEX.formatHex(compressor(words[1]).decompress(HEX.parseHex(words[2])));
            case "batch":
                StringBuilder items = new StringBuilder();
                for (Message message : MessageDecoder.decodeMessages(ByteBuffer.wrap(HEX.parseHex(words[1])))) {
                    items.append(message.getFlag() + " " + HEX.formatHex(message.getBody()) + " "
                        + properties(message.getProperties()) + ";");
                }
                return items.toString();
            case "timer":
                return timer(words[1]);
            default:
                return ext(words[1]);
        }
    }

    private static String record(MessageExt message) {
        return String.join(" ", units(message.getTopic()), "" + message.getQueueId(), "" + message.getQueueOffset(),
            "" + message.getCommitLogOffset(), "" + message.getFlag(), "" + message.getBornTimestamp(),
            host((InetSocketAddress) message.getBornHost()), "" + message.getStoreTimestamp(),
            host((InetSocketAddress) message.getStoreHost()), "" + message.getReconsumeTimes(),
            "" + message.getPreparedTransactionOffset(), "" + message.getBodyCRC(), "" + message.getStoreSize(),
            HEX.formatHex(message.getBody()), properties(message.getProperties()));
    }

    private static String properties(Map<String, String> properties) {
        StringBuilder answer = new StringBuilder();
        new TreeMap<>(properties).forEach((name, value) -> answer.append(units(name) + "=" + units(value) + ","));
        return answer.toString();
    }

    private static String host(InetSocketAddress host) {
        return HEX.formatHex(host.getAddress().getAddress()) + ":" + host.getPort();
    }

    private static Compressor compressor(String type) {
        return CompressorFactory.getCompressor(CompressionType.findByValue(Integer.parseInt(type)));
    }

    private static String text(String hex) {
        return new String(HEX.parseHex(hex), StandardCharsets.UTF_8);
    }

    private static String units(String text) {
        return HEX.formatHex(text.getBytes(StandardCharsets.UTF_16BE));
    }

    /** A wheel of 10 slots with two of them set, a timer log of three units in two files of 160 bytes, a checkpoint. */
    private static String timer(String folder) throws Exception {
        TimerWheel wheel = new TimerWheel(folder + "/timerwheel", 5, 1000);
        wheel.putSlot(1700000001000L, 0, 52, 2, 0);
        wheel.putSlot(1700000013000L, 104, 104, 1, 0);
        wheel.shutdown();
        TimerLog log = new TimerLog(folder + "/timerlog", 160);
        for (int number = 0; number < 3; number++) {
            ByteBuffer unit = ByteBuffer.allocate(52);
            unit.putInt(52).putLong(number - 1).putInt(1).putLong(1700000000000L + number).putInt(1000 - number);
            unit.putLong(131L * number).putInt(131).putInt("TopicTest".hashCode()).putLong(0);
            log.append(unit.array());
        }
        log.shutdown();
        TimerCheckpoint checkpoint = new TimerCheckpoint(folder + "/timercheck");
        checkpoint.setLastReadTimeMs(1700000000000L);
        checkpoint.setLastTimerLogFlushPos(252);
        checkpoint.setLastTimerQueueOffset(3);
        checkpoint.setMasterTimerQueueOffset(4);
        checkpoint.getDataVersion().nextVersion(5);
        checkpoint.shutdown();
        return checkpoint.getDataVersion().getStateVersion() + " " + checkpoint.getDataVersion().getTimestamp() + " "
            + checkpoint.getDataVersion().getCounter();
    }

    /** Three units in ext files of 70 bytes; gives their addresses. */
    private static String ext(String folder) {
        ConsumeQueueExt ext = new ConsumeQueueExt("t", 0, folder, 70, 0);
        StringBuilder addresses = new StringBuilder();
        for (int number = 0; number < 3; number++) {
            addresses.append(ext.put(new ConsumeQueueExt.CqExtUnit(number - 7L, 1700000000000L, new byte[] {1, 2, 3, 4, 5})) + " ");
        }
        ext.flush(0);
        return addresses.toString();
    }
}
