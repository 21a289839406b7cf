import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages of all sorts, numbered from args[1] on, until args[2] of them are sent or the broker is gone.
 *
 * For each one that was acknowledged it prints, between tabs: that word, sort, topic, key, offset ids, unique ids, queue,
 * queue offset. Its body is its key, as often as it takes to fill the size.
 */
public class Producer {
    static final String[] TOPICS = {"orders", "Order-Events_2"};

    public static void main(String[] args) throws Exception {
        int first = Integer.parseInt(args[1]);
        int count = Integer.parseInt(args[2]);
        long pauseMs = Long.parseLong(args[3]);
        DefaultMQProducer producer = new DefaultMQProducer("live-producer");
        TransactionMQProducer transactions = new TransactionMQProducer("live-transactions");
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object commit) {
                return (Boolean) commit ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        for (DefaultMQProducer each : new DefaultMQProducer[] {producer, transactions}) {
            each.setNamesrvAddr(args[0]);
            each.setRetryTimesWhenSendFailed(0);
            each.setSendMsgTimeout(5000);
            each.start();
        }
        try {
            for (int number = first; number < first + count; number++) {
                send(producer, transactions, number);
                Thread.sleep(pauseMs);
            }
            System.out.println("done");
        } catch (Exception error) {
            System.out.println("stopped\t" + error.getClass().getSimpleName());
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static void send(DefaultMQProducer producer, TransactionMQProducer transactions, int number) throws Exception {
        String topic = TOPICS[number % TOPICS.length];
        switch (number % 20) {
            case 3: {
                List<Message> batch = new ArrayList<>();
                for (int item = 0; item < 3; item++) {
                    batch.add(message(topic, "batch-" + number + "-" + item, 50, "batch"));
                }
                tell("batch", batch, producer.send(batch));
                break;
            }
            case 7:
            case 8: {
                boolean commit = number % 20 == 7;
                String key = (commit ? "commit-" : "rollback-") + number;
                Message half = message(topic, key, 80, null);
                tell(commit ? "commit" : "rollback", List.of(half), transactions.sendMessageInTransaction(half, commit));
                break;
            }
            case 11: {
                Message delayed = message(topic, "delay-" + number, 60, "late");
                delayed.setDelayTimeLevel(1);
                tell("delay", List.of(delayed), producer.send(delayed));
                break;
            }
            case 15: {
                Message compressed = message(topic, "long-" + number, 6000 + number % 7, "TagA");
                tell("compressed", List.of(compressed), producer.send(compressed));
                break;
            }
            default: {
                Message plain = message(topic, "key-" + number, number % 300, number % 3 == 0 ? "TagA" : null);
                plain.setKeys("key-" + number + " shared");
                tell("plain", List.of(plain), producer.send(plain));
            }
        }
    }

    static Message message(String topic, String key, int size, String tags) {
        String body = key.repeat(size / key.length() + 1);
        return new Message(topic, tags, key, body.getBytes(StandardCharsets.UTF_8));
    }

    static void tell(String sort, List<Message> messages, SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
        String[] offsetIds = result.getOffsetMsgId() == null ? new String[0] : result.getOffsetMsgId().split(",");
        String[] uniqueIds = result.getMsgId().split(",");
        for (int item = 0; item < messages.size(); item++) {
            Message message = messages.get(item);
            System.out.println(String.join("\t", "acknowledged", sort, message.getTopic(), message.getKeys().split(" ")[0],
                item < offsetIds.length ? offsetIds[item] : "", uniqueIds[item],
                String.valueOf(result.getMessageQueue().getQueueId()), String.valueOf(result.getQueueOffset() + item)));
        }
        System.out.flush();
    }
}
