import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.TreeSet;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** For each line "topic tab key": the word "answer" and the physical offsets that the broker gives, ascending. */
public class Query {
    public static void main(String[] args) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(args[0]);
        admin.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] asked = line.split("\t");
            TreeSet<Long> offsets = new TreeSet<>();
            try {
                for (MessageExt message : admin.queryMessage(asked[0], asked[1], 64, 0, Long.MAX_VALUE).getMessageList()) {
                    offsets.add(message.getCommitLogOffset());
                }
            } catch (MQClientException nothingFound) {
                // The client has no other way to say so.
            }
            StringBuilder answer = new StringBuilder("answer");
            for (long offset : offsets) {
                answer.append(' ').append(offset);
            }
            System.out.println(answer);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
