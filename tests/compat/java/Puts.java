import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Puts messages into a store of RocketMQ's own, a request a line; bytes and texts come as hex.
 *
 * <p>open FOLDER FILE_SIZE MESSAGE_SIZE_MAX WITH_RECORD_CRC BATCH_TOPIC, then
 * put|batch TOPIC QUEUE FLAG SYS_FLAG BORN_MS BORN_HOST STORE_HOST RECONSUME_TIMES PREPARED_OFFSET PROPERTIES BODY.
 * What is put is in the files at once, so that the store need not be stopped, which takes seconds.
 */
public class Puts {
    private static final HexFormat HEX = HexFormat.of();
    private static DefaultMessageStore store;

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.US_ASCII);
        System.setOut(System.err);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            switch (words[0]) {
                case "open" -> {
                    open(words);
                    answers.println("open");
                }
                default -> answers.println(put(words));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void open(String[] words) throws Exception {
        var config = new MessageStoreConfig();
        config.setStorePathRootDir(words[1]);
        config.setStorePathCommitLog(Path.of(words[1], "commitlog").toString());
        config.setMappedFileSizeCommitLog(Integer.parseInt(words[2]));
        config.setMaxMessageSize(Integer.parseInt(words[3]));
        config.setEnabledAppendPropCRC(Boolean.parseBoolean(words[4]));
        config.setEnableLmq(true);
        config.setEnableMultiDispatch(true);
        config.setHaListenPort(0);
        var topic = new TopicConfig(words[5]);
        topic.setAttributes(Map.of("queue.type", "BatchCQ"));
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>(Map.of(words[5], topic));
        var broker = new BrokerConfig();
        store = new DefaultMessageStore(config, new BrokerStatsManager(broker), null, broker, topics);
        if (!store.load()) {
            throw new IllegalStateException("RocketMQ cannot make the store");
        }
        store.start();
    }

    private static String put(String[] words) throws Exception {
        boolean isBatch = words[0].equals("batch");
        MessageExtBrokerInner message = isBatch ? new MessageExtBatch() : new MessageExtBrokerInner();
        message.setTopic(text(words[1]));
        message.setQueueId(Integer.parseInt(words[2]));
        message.setFlag(Integer.parseInt(words[3]));
        message.setSysFlag(Integer.parseInt(words[4]));
        message.setBornTimestamp(Long.parseLong(words[5]));
        message.setBornHost(host(words[6]));
        message.setStoreHost(host(words[7]));
        message.setReconsumeTimes(Integer.parseInt(words[8]));
        message.setPreparedTransactionOffset(Long.parseLong(words[9]));
        MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(text(words[10])));
        message.setPropertiesString(text(words[10]));
        message.setBody(HEX.parseHex(words[11]));
        PutMessageResult result =
            isBatch ? store.putMessages((MessageExtBatch) message) : store.putMessage(message);
        var appended = result.getAppendMessageResult();
        if (!result.isOk()) {
            return result.getPutMessageStatus().name();
        }
        return result.getPutMessageStatus() + " " + appended.getWroteOffset() + " " + appended.getLogicsOffset() + " "
            + appended.getWroteBytes() + " " + appended.getStoreTimestamp() + " " + appended.getMsgId();
    }

    private static String text(String hex) {
        return new String(HEX.parseHex(hex), StandardCharsets.UTF_8);
    }

    private static InetSocketAddress host(String host) throws Exception {
        String[] parts = host.split(":");
        return new InetSocketAddress(InetAddress.getByAddress(HEX.parseHex(parts[0])), Integer.parseInt(parts[1]));
    }
}
