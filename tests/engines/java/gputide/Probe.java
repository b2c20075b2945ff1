package gputide;

import java.io.DataInputStream;
import java.io.EOFException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;

/**
 * Reads records as the job does, for tests/engines/test_flink_records.py: on standard input the layout as JSON behind its
 * length (i32), then records alike; answers a line for each, the SHA-256 of what it holds or why it can't be read.
 */
public final class Probe {
    private Probe() {}

    public static void main(String[] none) throws Exception {
        var in = new DataInputStream(System.in);
        var out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        Layout layout = new Layout(new ObjectMapper().readTree(in.readNBytes(in.readInt())));
        Identities.Memory memory = new Identities.Memory();
        while (true) {
            int length;
            try {
                length = in.readInt();
            } catch (EOFException end) {
                break;
            }
            byte[] record = in.readNBytes(length);
            String answer;
            try {
                answer = digest(record, layout, memory);
            } catch (Unreadable why) {
                answer = "unreadable: " + why.getMessage();
            } catch (RuntimeException bug) {
                answer = "bug: " + bug;
            }
            out.println(answer.replace('\n', ' '));
        }
        out.flush();
    }

    private static String digest(byte[] record, Layout layout, Identities.Memory memory) throws Exception {
        MessageDigest found = MessageDigest.getInstance("SHA-256");
        for (Record.Section section : Record.read(record, layout, memory)) {
            put(found, section.kind());
            for (int row = 0; row < section.places().length; row++) {
                int place = section.places()[row];
                put(found, section.identities().hashes[place]);
                found.update(section.identities().texts[place]);
                put(found, section.timesMs()[row]);
                for (int column = 0; column < section.columns().length; column++) {
                    put(found, section.columns()[column]);
                    put(found, Double.doubleToLongBits(section.values()[column][row]));
                }
            }
        }
        return HexFormat.of().formatHex(found.digest());
    }

    private static void put(MessageDigest found, long number) {
        found.update(ByteBuffer.allocate(8).putLong(number).array());
    }
}
