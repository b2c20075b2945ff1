package gputide;

import java.util.Arrays;

/**
 * Which measures of an identity were counted at which times of one hour; mutable.
 *
 * <p>Stored as how many times there are; then of each time by how much its distance from the one before (from the begin
 * of the hour for the first) differs from the distance before, zigzag, 0 standing for a run of equal distances and
 * followed by its length less 1; then runs of masks, each a mask and its length less 1. All are numbers of seven bits a
 * byte, lowest first, the highest bit saying that more follows. A source that keeps its step takes some twenty bytes an
 * hour, one whose step varies by milliseconds a byte per step.
 */
final class Seen {
    static final long SPAN_MS = 3_600_000;

    private long[] times = new long[64];
    private int[] masks = new int[64];
    private int count;
    private Bytes out = new Bytes(new byte[64]);
    private long begin;

    /** Begins with what is stored of an hour, null for nothing. */
    void load(long hour, byte[] stored) {
        begin = hour * SPAN_MS;
        count = 0;
        if (stored == null) {
            return;
        }
        Bytes in = new Bytes(stored);
        int all = (int) number(in);
        long time = begin;
        long gap = 0;
        while (count < all) {
            long change = number(in);
            gap += (change >>> 1) ^ -(change & 1);
            for (long left = change == 0 ? number(in) : 0; left >= 0; left--) {
                time += gap;
                insert(count, time, 0);
            }
        }
        for (int place = 0; place < all; ) {
            int mask = (int) number(in);
            int end = place + (int) number(in) + 1;
            Arrays.fill(masks, place, end, mask);
            place = end;
        }
    }

    /**
     * Adds times with their measures, and takes from these what was there before.
     *
     * @param from sorted times, each once, all in this hour
     * @param given masks; on return what is new of them
     * @param wasSeen on return whether a time was there before with any measure
     */
    void add(long[] from, int[] given, boolean[] wasSeen, int start, int end) {
        int place = 0;
        // Mostly everything is later than what is there.
        if (count > 0 && end > start && times[count - 1] < from[start]) {
            place = count;
        }
        for (int row = start; row < end; row++) {
            wasSeen[row] = false;
            if (given[row] == 0) {
                continue;
            }
            while (place < count && times[place] < from[row]) {
                place++;
            }
            if (place < count && times[place] == from[row]) {
                wasSeen[row] = true;
                int fresh = given[row] & ~masks[place];
                masks[place] |= given[row];
                given[row] = fresh;
            } else {
                insert(place, from[row], given[row]);
            }
        }
    }

    byte[] stored() {
        out.at = 0;
        write(count);
        long time = begin;
        long gap = 0;
        for (int place = 0; place < count; ) {
            long change = times[place] - time - gap;
            gap += change;
            int end = place + 1;
            if (change == 0) {
                while (end < count && times[end] - times[end - 1] == gap) {
                    end++;
                }
                write(0);
                write(end - place - 1);
            } else {
                write((change << 1) ^ (change >> 63));
            }
            time = times[end - 1];
            place = end;
        }
        for (int place = 0; place < count; ) {
            int end = place + 1;
            while (end < count && masks[end] == masks[place]) {
                end++;
            }
            write(masks[place] & 0xFFFFFFFFL);
            write(end - place - 1);
            place = end;
        }
        return out.written();
    }

    private void insert(int place, long time, int mask) {
        if (count == times.length) {
            times = Arrays.copyOf(times, 2 * count);
            masks = Arrays.copyOf(masks, 2 * count);
        }
        System.arraycopy(times, place, times, place + 1, count - place);
        System.arraycopy(masks, place, masks, place + 1, count - place);
        count++;
        times[place] = time;
        masks[place] = mask;
    }


    private static long number(Bytes in) {
        long found = 0;
        for (int shift = 0; ; shift += 7) {
            int next = in.readByte();
            found |= (long) (next & 127) << shift;
            if (next < 128) {
                return found;
            }
        }
    }

    private void write(long number) {
        for (; number > 127; number >>>= 7) {
            out.writeByte((int) (number & 127) | 128);
        }
        out.writeByte((int) number);
    }
}
