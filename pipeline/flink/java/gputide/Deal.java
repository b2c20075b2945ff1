package gputide;

import java.util.Arrays;
import java.util.List;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/**
 * Reads records and deals their rows out to parts by the identities' hashes: rows of one identity always meet in the
 * same task. What can't be read goes aside, with its place on the topic.
 *
 * <p>A message to a part: kind (u8), whether it is the first of its record (u8), partition (i32), mask of columns (i32),
 * identities (i32), of each its hash, length and texts; rows (i32), of each its place in the identities, its time and
 * the values of the columns.
 */
final class Deal extends ProcessFunction<Topic.Message, Tuple2<Integer, byte[]>> {
    private static final long serialVersionUID = 1L;

    /** As many parts as groups of keys, so that any parallelism has its share of them. */
    static final int PARTS = 128;
    static final OutputTag<Outcome> UNREAD = new OutputTag<>("unread") {};

    private final Layout layout;
    private transient Identities.Memory memory;
    private transient int[] keys;
    private transient Bytes out;

    Deal(Layout layout) {
        this.layout = layout;
    }

    @Override
    public void open(OpenContext context) {
        memory = new Identities.Memory();
        keys = keysOfParts();
        out = new Bytes(new byte[1 << 16]);
    }

    /** Per part a key that Flink puts into the group of that number. */
    static int[] keysOfParts() {
        int[] keys = new int[PARTS];
        Arrays.fill(keys, -1);
        for (int key = 0, missing = PARTS; missing > 0; key++) {
            int group = KeyGroupRangeAssignment.assignToKeyGroup(key, PARTS);
            if (keys[group] < 0) {
                keys[group] = key;
                missing--;
            }
        }
        return keys;
    }

    @Override
    public void processElement(Topic.Message message, Context context, Collector<Tuple2<Integer, byte[]>> collector) {
        List<Record.Section> sections;
        try {
            sections = Record.read(message.payload, layout, memory);
        } catch (Unreadable why) {
            byte[] payload = message.payload == null ? new byte[0] : message.payload;
            context.output(UNREAD, new Outcome(Outcome.UNREAD, GenericRowData.of(
                    payload, StringData.fromString(why.getMessage()), message.partition, message.offset)));
            return;
        }
        boolean isFirst = true;
        for (Record.Section section : sections) {
            isFirst = deal(section, message.partition, isFirst, collector);
        }
    }

    private boolean deal(
            Record.Section section, int partition, boolean isFirst, Collector<Tuple2<Integer, byte[]>> collector) {
        long[] hashes = section.identities().hashes;
        int rows = section.places().length;
        int[] heads = new int[PARTS];
        Arrays.fill(heads, -1);
        int[] next = new int[rows];
        for (int row = rows - 1; row >= 0; row--) {
            int part = (int) (hashes[section.places()[row]] >>> 57);
            next[row] = heads[part];
            heads[part] = row;
        }
        int mask = 0;
        for (int column : section.columns()) {
            mask |= 1 << column;
        }
        int[] numbers = new int[hashes.length];
        Arrays.fill(numbers, -1);
        for (int part = 0; part < PARTS; part++) {
            if (heads[part] < 0) {
                continue;
            }
            out.at = 0;
            out.writeByte(section.kind());
            out.writeByte(isFirst ? 1 : 0);
            isFirst = false;
            out.writeInt(partition);
            out.writeInt(mask);
            int place = out.at;
            out.writeInt(0);
            int count = 0;
            int ofPart = 0;
            for (int row = heads[part]; row >= 0; row = next[row]) {
                ofPart++;
                int identity = section.places()[row];
                if (numbers[identity] < 0) {
                    numbers[identity] = count++;
                    byte[] texts = section.identities().texts[identity];
                    out.writeLong(hashes[identity]);
                    out.writeInt(texts.length);
                    out.write(texts, 0, texts.length);
                }
            }
            Bytes.setInt(out.data, place, count);
            out.writeInt(ofPart);
            for (int row = heads[part]; row >= 0; row = next[row]) {
                out.writeInt(numbers[section.places()[row]]);
                out.writeLong(section.timesMs()[row]);
                for (double[] column : section.values()) {
                    out.writeLong(Double.doubleToRawLongBits(column[row]));
                }
            }
            collector.collect(Tuple2.of(keys[part], out.written()));
        }
        return isFirst;
    }
}
