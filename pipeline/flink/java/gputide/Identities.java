package gputide;

import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The identities of one section: a hash and texts of each.
 *
 * <p>In a record they are the length of an Arrow message (u32), then zstd over that message, which holds one record
 * batch: a column of 64-bit hashes and a column of UTF-8 per text (pipeline.records.label_rows; the message:
 * arrow.apache.org/docs/format/Columnar.html and apache/arrow:format/Message.fbs).
 */
final class Identities {
    private static final int BYTES_MAX = 1 << 28;
    private static final int RECORD_BATCH = 3;

    final long[] hashes;
    /** Per identity its texts, each as length (u32) and UTF-8. */
    final byte[][] texts;
    private final int columns;
    private final long bytes;

    private Identities(long[] hashes, byte[][] texts, int columns, long bytes) {
        this.hashes = hashes;
        this.texts = texts;
        this.columns = columns;
        this.bytes = bytes;
    }

    /** Sets that were read, by their bytes: senders repeat themselves. Mutable; of one task. */
    static final class Memory {
        private static final long REMEMBERED_BYTES_MAX = 64L << 20;
        private final LinkedHashMap<ByteBuffer, Identities> known = new LinkedHashMap<>(64, 0.75f, true);
        private long remembered;

        Identities of(byte[] record, int start, int size, int texts) throws Unreadable {
            Identities found = known.get(ByteBuffer.wrap(record, start, size));
            if (found != null && found.columns == texts) {
                return found;
            }
            found = read(record, start, size, texts);
            known.put(ByteBuffer.wrap(Arrays.copyOfRange(record, start, start + size)), found);
            remembered += found.bytes + size;
            for (var oldest = known.entrySet().iterator(); remembered > REMEMBERED_BYTES_MAX && known.size() > 1; ) {
                Map.Entry<ByteBuffer, Identities> gone = oldest.next();
                remembered -= gone.getValue().bytes + gone.getKey().capacity();
                oldest.remove();
            }
            return found;
        }
    }

    private static Identities read(byte[] record, int start, int size, int texts) throws Unreadable {
        if (size < 4) {
            throw new Unreadable("its identities are cut");
        }
        int length = Bytes.getInt(record, start);
        if (length < 0 || length > BYTES_MAX) {
            throw new Unreadable("its identities declare " + (length & 0xFFFFFFFFL) + " bytes: more than " + BYTES_MAX);
        }
        byte[] message = new byte[length];
        long written;
        try {
            written = Zstd.decompressByteArray(message, 0, length, record, start + 4, size - 4);
        } catch (ZstdException exc) {
            throw new Unreadable("its identities are no zstd: " + exc.getMessage());
        }
        try {
            return fromArrow(message, (int) written, texts);
        } catch (IndexOutOfBoundsException | ArithmeticException | CharacterCodingException exc) {
            throw new Unreadable("its identities are no Arrow record batch of " + texts + " texts");
        }
    }

    private static Identities fromArrow(byte[] data, int end, int texts) throws Unreadable, CharacterCodingException {
        // Encapsulated message: -1, length of the metadata, the metadata (a flatbuffer), the body.
        int begin = Bytes.getInt(data, 0) == -1 ? 8 : 4;
        int body = begin + Bytes.getInt(data, begin - 4);
        int message = begin + Bytes.getInt(data, begin);
        int batch = field(data, message, 2);
        int kind = field(data, message, 1);
        if (kind == 0 || data[kind] != RECORD_BATCH || batch == 0) {
            throw new Unreadable("its identities hold no record batch");
        }
        batch += Bytes.getInt(data, batch);
        int length = field(data, batch, 0);
        int nodes = field(data, batch, 1);
        int buffers = field(data, batch, 2);
        int rows = length == 0 ? 0 : Math.toIntExact(Bytes.getLong(data, length));
        nodes += Bytes.getInt(data, nodes);
        buffers += Bytes.getInt(data, buffers);
        // The hash has two buffers, whether a value is there and the values; a text has one more, of offsets.
        if (field(data, batch, 3) != 0 || Bytes.getInt(data, nodes) != 1 + texts
                || Bytes.getInt(data, buffers) != 2 + 3 * texts || rows < 0 || rows > end) {
            throw new Unreadable("its identities are of another shape");
        }
        for (int column = 0; column <= texts; column++) {
            if (Bytes.getLong(data, nodes + 4 + 16 * column) != rows || Bytes.getLong(data, nodes + 12 + 16 * column) != 0) {
                throw new Unreadable("its identities lack a text");
            }
        }
        long[] hashes = new long[rows];
        int at = body + place(data, buffers, 1);
        for (int row = 0; row < rows; row++) {
            hashes[row] = Bytes.getLong(data, at + 8 * row);
        }
        int[] offsets = new int[texts];
        int[] starts = new int[texts];
        for (int text = 0; text < texts; text++) {
            offsets[text] = body + place(data, buffers, 3 + 3 * text);
            starts[text] = body + place(data, buffers, 4 + 3 * text);
        }
        byte[][] found = new byte[rows][];
        long bytes = 0;
        for (int row = 0; row < rows; row++) {
            Bytes out = new Bytes(new byte[256]);
            for (int text = 0; text < texts; text++) {
                int first = Bytes.getInt(data, offsets[text] + 4 * row);
                int size = Bytes.getInt(data, offsets[text] + 4 * row + 4) - first;
                if (size < 0 || first < 0 || starts[text] + first + size > end) {
                    throw new Unreadable("its identities are cut");
                }
                StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(data, starts[text] + first, size));
                out.writeInt(size);
                out.write(data, starts[text] + first, size);
            }
            found[row] = out.written();
            bytes += 24 + found[row].length;
        }
        return new Identities(hashes, found, texts, bytes);
    }

    /** Where a field of a flatbuffer's table lies; 0 where it is left out (flatbuffers.dev/internals). */
    private static int field(byte[] data, int table, int number) {
        int layout = table - Bytes.getInt(data, table);
        int slot = 4 + 2 * number;
        int offset = slot < Bytes.getShort(data, layout) ? Bytes.getShort(data, layout + slot) : 0;
        return offset == 0 ? 0 : table + offset;
    }

    private static int place(byte[] data, int buffers, int number) {
        return Math.toIntExact(Bytes.getLong(data, buffers + 4 + 16 * number));
    }
}
