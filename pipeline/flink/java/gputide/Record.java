package gputide;

import java.util.ArrayList;
import java.util.List;

/**
 * One record of the bus, read: pipeline.records.rows says what a record is, pipeline.records.blocks what its blocks
 * are. What Python refuses is refused here, in the same words as far as a reader needs them.
 */
final class Record {
    private static final int HEADER = 32;
    private static final int SECTION = 13;
    private static final int BLOCKS_BYTES_MAX = 1 << 28;
    private static final int ROWS_MAX = 1 << 20;
    private static final int SAME = 1 << 31;
    private static final int PLACES = 0;
    private static final int TIMES = 1;
    private static final int COLUMNS = 2;

    /**
     * Rows of one table.
     *
     * @param kind place of the table in {@link Layout#tables}
     * @param columns usage: places of the measures; sightings: 0 for when it was last seen, 1 for when it ended
     * @param places per row its place in the identities
     * @param timesMs usage: end of the step; sightings: first seen
     * @param values per column and row, NaN where there is none
     */
    record Section(int kind, Identities identities, int[] columns, int[] places, long[] timesMs, double[][] values) {}

    private final byte[] blocks;
    /** Of each block of the section before, where it lies and how long it is; -1 where there was none. */
    private final int[] starts;
    private final int[] sizes;
    private int at;

    private Record(byte[] blocks, int measures) {
        this.blocks = blocks;
        starts = new int[COLUMNS + 2 * measures];
        sizes = new int[starts.length];
        java.util.Arrays.fill(starts, -1);
    }

    /** The sections of a record. */
    static List<Section> read(byte[] data, Layout layout, Identities.Memory memory) throws Unreadable {
        if (data == null || data.length < HEADER || data[0] != 'G' || data[1] != 'T' || data[2] != 'R' || data[3] != '2') {
            throw new Unreadable("it does not begin with GTR2");
        }
        int version = Bytes.getShort(data, 4);
        if (version > layout.schemaVersion) {
            throw new Unreadable(
                    "it is of schema version " + version + ", and this program knows versions up to " + layout.schemaVersion);
        }
        int count = Bytes.getShort(data, 6);
        long length = Bytes.getLong(data, 24);
        if (length < 0 || length > BLOCKS_BYTES_MAX) {
            throw new Unreadable("it declares " + Long.toUnsignedString(length) + " bytes: more than " + BLOCKS_BYTES_MAX);
        }
        long end = HEADER + (long) count * SECTION;
        for (int place = 0; place < count && end <= data.length; place++) {
            end += Bytes.getInt(data, HEADER + place * SECTION + 9) & 0xFFFFFFFFL;
        }
        if (end > data.length) {
            throw new Unreadable("it is cut");
        }
        // LZ4 makes 255 bytes of one at most: no memory for a length that is a lie.
        if (length > 255 * (data.length - end)) {
            throw new Unreadable("it declares " + length + " bytes in " + (data.length - end));
        }
        byte[] plain = length == 0 ? new byte[0] : Lz4.unpacked(data, (int) end, (int) length);
        Record record = new Record(plain, layout.scales.length);
        List<Section> sections = new ArrayList<>(count);
        int identities = HEADER + count * SECTION;
        for (int place = 0; place < count; place++) {
            int head = HEADER + place * SECTION;
            int kind = data[head] & 0xFF;
            int size = Bytes.getInt(data, head + 9);
            int mask = Bytes.getInt(data, head + 1);
            int rows = Bytes.getInt(data, head + 5);
            // A row takes a byte at least: no memory for a number that is a lie.
            if (kind >= layout.tables.length || mask >>> layout.scales.length != 0 || rows <= 0
                    || rows > Math.min(length, ROWS_MAX)) {
                throw new Unreadable("it has a section of kind " + kind + " with measures 0x" + Integer.toHexString(mask)
                        + " and " + Integer.toUnsignedString(rows) + " rows");
            }
            Layout.Table table = layout.tables[kind];
            sections.add(record.section(kind, table, mask, rows, memory.of(data, identities, size, table.texts()), layout));
            identities += size;
        }
        return sections;
    }

    private Section section(int kind, Layout.Table table, int mask, int rows, Identities identities, Layout layout)
            throws Unreadable {
        int[] columns = table.isUsage() ? bitsOf(mask) : new int[] {0, 1};
        int begin = at;
        try {
            int[] places = places(rows, identities.hashes.length);
            long[] times = times(rows);
            double[][] values = new double[columns.length][];
            for (int column = 0; column < columns.length; column++) {
                int block = COLUMNS + 2 * columns[column];
                open(block);
                int size = sizes[block];
                int bits = starts[block];
                if (size != 0 && size != (rows + 7) / 8) {
                    throw cut(begin);
                }
                open(block + 1);
                values[column] = values(starts[block + 1], sizes[block + 1], bits, size > 0, rows);
            }
            for (long time : times) {
                if (time < layout.timeMinMs || time > layout.timeMaxMs) {
                    throw new Unreadable("it has a row of time " + time);
                }
            }
            for (int row = 0; row < rows && !table.isUsage(); row++) {
                double last = values[0][row];
                double ended = values[1][row];
                if (!(last >= layout.timeMinMs && last <= layout.timeMaxMs)
                        || ended < layout.timeMinMs || ended > layout.timeMaxMs) {
                    throw new Unreadable("it has a sighting until " + last + " that ended " + ended);
                }
            }
            return new Section(kind, identities, columns, places, times, values);
        } catch (IndexOutOfBoundsException exc) {
            throw cut(begin);
        }
    }

    private Unreadable cut(int begin) {
        return new Unreadable("it has no whole section at byte " + begin + " of " + blocks.length);
    }

    private static int[] bitsOf(int mask) {
        int[] found = new int[Integer.bitCount(mask)];
        for (int place = 0, next = 0; next < found.length; place++) {
            if ((mask >>> place & 1) != 0) {
                found[next++] = place;
            }
        }
        return found;
    }

    private void open(int block) {
        int size = Bytes.getInt(blocks, at);
        at += 4;
        if (size == SAME) {
            if (starts[block] < 0) {
                throw new IndexOutOfBoundsException();
            }
            return;
        }
        if (size < 0 || size > blocks.length - at) {
            throw new IndexOutOfBoundsException();
        }
        starts[block] = at;
        sizes[block] = size;
        at += size;
    }

    private int[] places(int rows, int identities) {
        open(PLACES);
        int start = starts[PLACES];
        int width = blocks[start];
        int[] places = new int[rows];
        if (width == 0 ? sizes[PLACES] != 1 || identities != rows
                : (width != 1 && width != 2 && width != 4) || sizes[PLACES] != 1 + (long) rows * width) {
            throw new IndexOutOfBoundsException();
        }
        for (int row = 0; row < rows; row++) {
            long place = width == 0 ? row : number(start + 1 + row * width, width);
            if (place >= identities) {
                throw new IndexOutOfBoundsException();
            }
            places[row] = (int) place;
        }
        return places;
    }

    private long[] times(int rows) {
        open(TIMES);
        int start = starts[TIMES];
        int width = blocks[start];
        if ((width != 0 && width != 1 && width != 2 && width != 4 && width != 8)
                || sizes[TIMES] != 9 + (long) rows * width) {
            throw new IndexOutOfBoundsException();
        }
        long low = Bytes.getLong(blocks, start + 1);
        long[] times = new long[rows];
        for (int row = 0; row < rows; row++) {
            times[row] = low + (width == 0 ? 0 : number(start + 9 + row * width, width));
        }
        return times;
    }

    private double[] values(int start, int size, int bits, boolean hasBits, int rows) {
        int count = rows;
        if (hasBits) {
            count = 0;
            for (int row = 0; row < rows; row++) {
                count += blocks[bits + (row >>> 3)] >>> (row & 7) & 1;
            }
        }
        int width = blocks[start];
        if (width < 0 || width > 4 || size != (width == 0 ? 1 + 8L * count : 25 + (long) width * count)) {
            throw new IndexOutOfBoundsException();
        }
        double[] found = new double[rows];
        double per = 1;
        double factor = 1;
        long low = 0;
        if (width > 0) {
            per = Double.longBitsToDouble(Bytes.getLong(blocks, start + 1));
            factor = Double.longBitsToDouble(Bytes.getLong(blocks, start + 9));
            low = Bytes.getLong(blocks, start + 17);
            if (!(per > 0 && factor > 0)) {
                throw new IndexOutOfBoundsException();
            }
        }
        for (int row = 0, index = 0; row < rows; row++) {
            if (hasBits && (blocks[bits + (row >>> 3)] >>> (row & 7) & 1) == 0) {
                found[row] = Double.NaN;
                continue;
            }
            if (width == 0) {
                found[row] = Double.longBitsToDouble(Bytes.getLong(blocks, start + 1 + 8 * index));
            } else {
                long numerator = low;
                for (int plane = 0; plane < width; plane++) {
                    numerator += (blocks[start + 25 + plane * count + index] & 0xFFL) << (8 * plane);
                }
                found[row] = numerator / per * factor;
            }
            index++;
        }
        return found;
    }

    private long number(int start, int width) {
        return switch (width) {
            case 1 -> blocks[start] & 0xFFL;
            case 2 -> Bytes.getShort(blocks, start);
            case 4 -> Bytes.getInt(blocks, start) & 0xFFFFFFFFL;
            default -> Bytes.getLong(blocks, start);
        };
    }
}
