package gputide;

import java.util.Arrays;

/**
 * Which measures of an identity were counted at which times of one hour; mutable.
 *
 * <p>Stored as runs: how many milliseconds after the time before (after the begin of the hour for the first), mask of
 * measures, and how many further times follow in the same distance with the same mask; each a number of seven bits a
 * byte, lowest first, the highest bit saying that more follows. A source that keeps its step takes a few bytes an hour.
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
        long time = begin;
        while (in.at < stored.length) {
            long gap = number(in);
            int mask = (int) number(in);
            for (long more = number(in); more >= 0; more--) {
                time += gap;
                insert(count, time, mask);
            }
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
        long time = begin;
        for (int place = 0; place < count; ) {
            long gap = times[place] - time;
            int more = 0;
            while (place + more + 1 < count && times[place + more + 1] - times[place + more] == gap
                    && masks[place + more + 1] == masks[place]) {
                more++;
            }
            write(gap);
            write(masks[place] & 0xFFFFFFFFL);
            write(more);
            time = times[place + more];
            place += more + 1;
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
