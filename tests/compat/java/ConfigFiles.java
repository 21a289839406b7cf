import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.ConsumerOffsetSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;

/**
 * Reads and writes config files with RocketMQ's own JSON, a request a line: what, and bytes in hex.
 *
 * offsets JSON   prints "topic@group queue offset," of each offset, in order
 * topics JSON    prints "topic read write perm order," of each topic, in order
 * write TEXT     prints an object that has TEXT as a key and as a value, and a map with numbers as keys; in hex
 */
public class ConfigFiles {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 2);
            answers.println(answer(words[0], new String(HexFormat.of().parseHex(words[1]), StandardCharsets.UTF_8)));
        }
    }

    private static String answer(String what, String text) {
        StringBuilder answer = new StringBuilder();
        switch (what) {
            case "offsets":
                new TreeMap<>(RemotingSerializable.fromJson(text, ConsumerOffsetSerializeWrapper.class).getOffsetTable())
                    .forEach((name, offsets) -> new TreeMap<Integer, Long>(offsets).forEach(
                        (queue, offset) -> answer.append(name + " " + queue.intValue() + " " + offset.longValue() + ",")));
                return answer.toString();
            case "topics":
                for (TopicConfig topic : new TreeMap<>(
                    RemotingSerializable.fromJson(text, TopicConfigSerializeWrapper.class).getTopicConfigTable()).values()) {
                    answer.append(topic.getTopicName() + " " + topic.getReadQueueNums() + " " + topic.getWriteQueueNums()
                        + " " + topic.getPerm() + " " + topic.isOrder() + ",");
                }
                return answer.toString();
            default:
                Map<String, Object> config = new TreeMap<>();
                config.put("text", text);
                config.put("key" + text, 1);
                config.put("numbers", new TreeMap<>(Map.of(0, 12L, 10, 7L, -1, 0L)));
                return HexFormat.of().formatHex(
                    RemotingSerializable.toJson(config, true).getBytes(StandardCharsets.UTF_8));
        }
    }
}
