import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.Map;

/**
 * One side of a benchmark, in a virtual machine that lives through all rounds and so warms up.
 *
 * <p>Reads lines "task round" from standard input, does the task, and answers "peer wall_ns cpu_ns check". The CPU time
 * is that of the whole process, so that collector and compiler are counted. The check is the same number that the
 * other side computes for that round.
 */
final class Peer {

    /** One piece of work. What {@link #prepare} does is not timed. */
    abstract static class Task {
        /** Nanoseconds of the run that made its input, where that is too large to be made before; not counted. */
        long uncounted;

        void prepare(int round) {}

        abstract long run() throws Exception;

        /** Ends what the run began; not timed either. */
        void finish() {}
    }

    private Peer() {}

    static void serve(Map<String, Task> tasks) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        var in = new BufferedReader(new InputStreamReader(System.in));
        out.println("peer ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            Task task = tasks.get(words[0]);
            task.prepare(Integer.parseInt(words[1]));
            task.uncounted = 0;
            long cpu = system.getProcessCpuTime();
            long wall = System.nanoTime();
            long check = task.run();
            wall = System.nanoTime() - wall - task.uncounted;
            cpu = system.getProcessCpuTime() - cpu - task.uncounted;
            task.finish();
            out.println("peer " + wall + " " + cpu + " " + check);
        }
        Runtime.getRuntime().halt(0); // no shutdown hooks: the store behind a task was never started
    }
}
