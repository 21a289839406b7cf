import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.zip.CRC32;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * A store folder in the hands of RocketMQ itself, 4.9 or 5: java StoreJudge FOLDER name=value...
 *
 * <p>The values are settings of MessageStoreConfig. Loads and starts the store, says "ready" and its offsets, then answers each
 * line with one. Words of a line are parted by spaces; keys, tags, bodies and properties are in hex, "-" is none.
 *
 * <pre>
 * offsets                                  smallest and largest physical offset, bytes that are not dispatched
 * queues                                   topic,queue,smallest,largest of each queue
 * read TOPIC QUEUE                         of each message that the queue gives:
 *                                          physical offset,size,queue offset,CRC-32 of its body,unique id,keys,tags
 * query TOPIC KEY BEGIN END                physical offsets that the index gives
 * look OFFSET                              the message at that physical offset, as read has it; "-" if there is none
 * put TOPIC QUEUE BODY KEYS TAGS PROPERTIES    status,physical offset,queue offset
 * batch TOPIC QUEUE BODY:KEYS...           status,physical offsets with ";" between,queue offset
 * flush                                    waits until the log is flushed
 * expire                                   one round of the service that deletes expired files
 * shutdown                                 stops cleanly
 * </pre>
 *
 * <p>The end of its input is a halt without any of that, as SIGKILL is.
 */
public final class StoreJudge {
    private static final HexFormat HEX = HexFormat.of();
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final long LOADING_LIMIT_MS = 60_000;

    private final DefaultMessageStore store;

    private StoreJudge(DefaultMessageStore store) {
        this.store = store;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        try {
            StoreJudge judge = new StoreJudge(open(Path.of(args[0]), args));
            answers.println("ready " + judge.answer("offsets"));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                answers.println(judge.answer(line.split(" ")));
                answers.flush();
            }
        } catch (Throwable error) { // threads of the store would keep the process, and who asked would wait
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private static DefaultMessageStore open(Path folder, String[] args) throws Exception {
        Properties settings = new Properties();
        for (int number = 1; number < args.length; number++) {
            String[] parts = args[number].split("=", 2);
            settings.setProperty(parts[0], parts[1]);
        }
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(folder.toString());
        config.setStorePathCommitLog(folder.resolve("commitlog").toString());
        config.setHaListenPort(0); // whatever port is free: there is no way to have none
        config.setDiskMaxUsedSpaceRatio(95);
        config.setFileReservedTime(720_000);
        MixAll.properties2Object(settings, config);
        DefaultMessageStore store = construct(config, folder);
        if (!store.load()) {
            throw new IllegalStateException("RocketMQ cannot load the store");
        }
        store.start();
        long deadline = System.currentTimeMillis() + LOADING_LIMIT_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException(store.dispatchBehindBytes() + " bytes are not dispatched");
            }
            Thread.sleep(10);
        }
        return store;
    }

    /** The constructors of 4.9 and 5 differ: the latter is given the topics, too. */
    private static DefaultMessageStore construct(MessageStoreConfig config, Path folder) throws Exception {
        BrokerConfig broker = new BrokerConfig();
        BrokerStatsManager stats = new BrokerStatsManager("judge", false);
        Constructor<?> constructor = DefaultMessageStore.class.getConstructors()[0];
        Object[] arguments = constructor.getParameterCount() == 4
            ? new Object[] {config, stats, null, broker}
            : new Object[] {config, stats, null, broker, topics(folder.resolve("config/topics.json"))};
        return (DefaultMessageStore) constructor.newInstance(arguments);
    }

    private static ConcurrentMap<?, ?> topics(Path path) throws Exception {
        if (!Files.exists(path)) {
            return new ConcurrentHashMap<>();
        }
        String packages = "org.apache.rocketmq.remoting.protocol.";
        Class<?> table = Class.forName(packages + "body.TopicConfigSerializeWrapper");
        Object read = Class.forName(packages + "RemotingSerializable").getMethod("fromJson", String.class, Class.class)
            .invoke(null, Files.readString(path), table);
        return (ConcurrentMap<?, ?>) table.getMethod("getTopicConfigTable").invoke(read);
    }

    private String answer(String... words) throws Exception {
        switch (words[0]) {
            case "offsets":
                return store.getMinPhyOffset() + " " + store.getMaxPhyOffset() + " " + store.dispatchBehindBytes();
            case "queues":
                return queues();
            case "read":
                return read(words[1], Integer.parseInt(words[2]));
            case "query":
                return query(words[1], text(words[2]), Long.parseLong(words[3]), Long.parseLong(words[4]));
            case "look": {
                MessageExt message = store.lookMessageByOffset(Long.parseLong(words[1]));
                return message == null ? "-" : shown(message);
            }
            case "put":
                return put(words);
            case "batch":
                return batch(words);
            case "flush": {
                long end = store.getMaxPhyOffset();
                while (store.flush() < end) {
                    Thread.sleep(1);
                }
                return "flushed";
            }
            case "expire":
                call(store, "cleanFilesPeriodically");
                if (queueStore() != null) {
                    call(queueStore(), "cleanQueueFilesPeriodically");
                }
                return "expired";
            case "shutdown":
                store.shutdown();
                return "stopped";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** What a running store does every ten seconds, from its first minute on. */
    private static void call(Object object, String name) throws Exception {
        Method method = object.getClass().getDeclaredMethod(name);
        method.setAccessible(true);
        method.invoke(object);
    }

    /** Only 5 has one; in 4.9 the store itself sees to its queues. */
    private Object queueStore() throws Exception {
        try {
            return DefaultMessageStore.class.getMethod("getQueueStore").invoke(store);
        } catch (NoSuchMethodException version4) {
            return null;
        }
    }

    private String queues() {
        StringJoiner shown = new StringJoiner(" ");
        for (String topic : new TreeSet<>(store.getConsumeQueueTable().keySet())) {
            Map<Integer, ?> queues = new TreeMap<>(store.getConsumeQueueTable().get(topic));
            for (int queue : queues.keySet()) {
                shown.add(topic + "," + queue + "," + store.getMinOffsetInQueue(topic, queue) + "," + largest(topic, queue));
            }
        }
        return shown.toString();
    }

    private long largest(String topic, int queue) {
        try {
            return store.getMaxOffsetInQueue(topic, queue);
        } catch (Exception error) { // only 5 declares it
            throw new IllegalStateException(error);
        }
    }

    private String read(String topic, int queue) {
        StringJoiner shown = new StringJoiner(" ");
        long offset = store.getMinOffsetInQueue(topic, queue);
        long end = largest(topic, queue);
        while (offset < end) {
            GetMessageResult result = store.getMessage("judge", topic, queue, offset, 32, null);
            try {
                for (ByteBuffer buffer : result.getMessageBufferList()) {
                    shown.add(shown(MessageDecoder.decode(buffer.duplicate(), true, false)));
                }
                if (result.getNextBeginOffset() <= offset) {
                    shown.add(result.getStatus().toString()); // and so the other side sees that something is wrong
                    break;
                }
                offset = result.getNextBeginOffset();
            } finally {
                result.release();
            }
        }
        return shown.toString();
    }

    private String query(String topic, String key, long begin, long end) {
        StringJoiner shown = new StringJoiner(" ");
        QueryMessageResult result = store.queryMessage(topic, key, 64, begin, end);
        try {
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                shown.add(String.valueOf(MessageDecoder.decode(buffer.duplicate()).getCommitLogOffset()));
            }
        } finally {
            result.release();
        }
        return shown.toString();
    }

    private static String shown(MessageExt message) {
        CRC32 crc = new CRC32();
        crc.update(message.getBody() == null ? new byte[0] : message.getBody());
        return String.join(",", String.valueOf(message.getCommitLogOffset()), String.valueOf(message.getStoreSize()),
            String.valueOf(message.getQueueOffset()), String.valueOf(crc.getValue()),
            hex(message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)), hex(message.getKeys()),
            hex(message.getTags()));
    }

    private String put(String[] words) throws Exception {
        Class<?> inner;
        try {
            inner = Class.forName("org.apache.rocketmq.common.message.MessageExtBrokerInner");
        } catch (ClassNotFoundException version4) {
            inner = Class.forName("org.apache.rocketmq.store.MessageExtBrokerInner");
        }
        MessageExt message = (MessageExt) inner.getConstructor().newInstance();
        address(message, words[1], Integer.parseInt(words[2]));
        message.setBody(HEX.parseHex(words[3].equals("-") ? "" : words[3]));
        MessageAccessor.setProperties(message, new HashMap<>());
        if (!words[6].equals("-")) {
            message.getProperties().putAll(MessageDecoder.string2messageProperties(text(words[6])));
        }
        if (!words[4].equals("-")) {
            message.setKeys(text(words[4]));
        }
        if (!words[5].equals("-")) {
            message.setTags(text(words[5]));
            inner.getMethod("setTagsCode", long.class).invoke(message, (long) text(words[5]).hashCode());
        }
        inner.getMethod("setPropertiesString", String.class)
            .invoke(message, MessageDecoder.messageProperties2String(message.getProperties()));
        return told((PutMessageResult) DefaultMessageStore.class.getMethod("putMessage", inner).invoke(store, message));
    }

    private String batch(String[] words) {
        List<Message> messages = new ArrayList<>();
        for (int number = 3; number < words.length; number++) {
            String[] parts = words[number].split(":");
            Message message = new Message(words[1], null, text(parts[1]), HEX.parseHex(parts[0]));
            message.putUserProperty("item", String.valueOf(number - 3));
            messages.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        address(batch, words[1], Integer.parseInt(words[2]));
        batch.setBody(MessageDecoder.encodeMessages(messages));
        return told(store.putMessages(batch));
    }

    private static void address(MessageExt message, String topic, int queue) {
        message.setTopic(topic);
        message.setQueueId(queue);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
    }

    private static String told(PutMessageResult result) {
        if (result.getAppendMessageResult() == null) {
            return result.getPutMessageStatus() + ",-1,-1";
        }
        StringJoiner offsets = new StringJoiner(";");
        for (String id : result.getAppendMessageResult().getMsgId().split(",")) { // the last 16 digits of an offset id
            offsets.add(String.valueOf(Long.parseLong(id.substring(id.length() - 16), 16)));
        }
        return result.getPutMessageStatus() + "," + offsets + "," + result.getAppendMessageResult().getLogicsOffset();
    }

    private static String text(String word) {
        return word.equals("-") ? null : new String(HEX.parseHex(word), StandardCharsets.UTF_8);
    }

    private static String hex(String text) {
        return text == null || text.isEmpty() ? "-" : HEX.formatHex(text.getBytes(StandardCharsets.UTF_8));
    }
}
