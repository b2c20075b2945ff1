package gputide;

import java.util.Arrays;

/** Rows of one identity since the last flush; mutable. Each has a time and a value per measure, NaN for none. */
final class Pending {
    final int kind;
    final long hash;
    final byte[] texts;
    final String cluster;
    final int width;
    int count;
    long[] times = new long[4];
    double[] values;
    private boolean isSorted = true;

    Pending(int kind, long hash, byte[] texts, String cluster, int width) {
        this.kind = kind;
        this.hash = hash;
        this.texts = texts;
        this.cluster = cluster;
        this.width = width;
        values = new double[4 * width];
    }

    /** Adds a row without values; says where in {@link #values} they go. */
    int add(long time) {
        if (count == times.length) {
            times = Arrays.copyOf(times, 2 * count);
            values = Arrays.copyOf(values, 2 * count * width);
        }
        isSorted &= count == 0 || times[count - 1] <= time;
        times[count] = time;
        int at = count * width;
        Arrays.fill(values, at, at + width, Double.NaN);
        count++;
        return at;
    }

    /** Sorts rows by time and makes one row of those of one time: per measure the largest value. */
    void merge() {
        if (!isSorted) {
            sort();
        }
        int last = 0;
        for (int row = 1; row < count; row++) {
            if (times[row] != times[last]) {
                last++;
                if (last != row) {
                    times[last] = times[row];
                    System.arraycopy(values, row * width, values, last * width, width);
                }
                continue;
            }
            for (int place = 0; place < width; place++) {
                double value = values[row * width + place];
                if (!Double.isNaN(value) && !(values[last * width + place] >= value)) {
                    values[last * width + place] = value;
                }
            }
        }
        count = last + 1;
    }

    /** Which measures a row has. */
    int mask(int row) {
        int found = 0;
        for (int place = 0; place < width; place++) {
            found |= Double.isNaN(values[row * width + place]) ? 0 : 1 << place;
        }
        return found;
    }

    private void sort() {
        Integer[] order = new Integer[count];
        for (int row = 0; row < count; row++) {
            order[row] = row;
        }
        long[] unsorted = times;
        Arrays.sort(order, (one, other) -> Long.compare(unsorted[one], unsorted[other]));
        long[] sorted = new long[times.length];
        double[] moved = new double[values.length];
        for (int row = 0; row < count; row++) {
            sorted[row] = times[order[row]];
            System.arraycopy(values, order[row] * width, moved, row * width, width);
        }
        times = sorted;
        values = moved;
    }
}
