import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/** For each line of hex: the UTF-16 units that the JDK reads in those bytes as UTF-8, in hex, and their hash. */
public class JavaStrings {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] data = new byte[line.length() / 2];
            for (int i = 0; i < data.length; i++) {
                data[i] = (byte) Integer.parseInt(line.substring(2 * i, 2 * i + 2), 16);
            }
            String text = new String(data, StandardCharsets.UTF_8);
            StringBuilder answer = new StringBuilder();
            for (char unit : text.toCharArray()) {
                answer.append(String.format("%04x", (int) unit));
            }
            System.out.println(answer + " " + text.hashCode());
        }
    }
}
