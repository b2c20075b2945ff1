package gputide;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.flink.table.data.GenericMapData;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.StringData;

/** The sums of one identity in one window; mutable and used again for the next one. */
final class Window {
    private static final int BINS = 101;

    long start = -1;
    private final Layout.Table table;
    private final boolean[] hasHistogram;
    private final double[] scales;
    private long samples;
    private final long[] counts;
    private final long[] sums;
    private final long[] maxima;
    /** Per measure bins of hundredths, null where none are counted; what was touched lies from low to high. */
    private final int[][] bins;
    private final int[] lows;
    private final int[] highs;

    Window(Layout layout, Layout.Table table) {
        this.table = table;
        int measures = table.measures().length;
        counts = new long[measures];
        sums = new long[measures];
        maxima = new long[measures];
        bins = new int[measures][];
        lows = new int[measures];
        highs = new int[measures];
        scales = new double[measures];
        hasHistogram = new boolean[measures];
        for (int measure = 0; measure < measures; measure++) {
            scales[measure] = layout.scales[table.measures()[measure]];
            hasHistogram[measure] = layout.hasHistogram[table.measures()[measure]];
            bins[measure] = hasHistogram[measure] ? new int[BINS] : null;
        }
        clear();
    }

    boolean isEmpty() {
        return start < 0;
    }

    void begin(long start) {
        this.start = start;
    }

    void clear() {
        start = -1;
        samples = 0;
        Arrays.fill(counts, 0);
        Arrays.fill(sums, 0);
        Arrays.fill(maxima, Long.MIN_VALUE);
        for (int measure = 0; measure < bins.length; measure++) {
            if (hasHistogram[measure] && highs[measure] >= lows[measure]) {
                Arrays.fill(bins[measure], lows[measure], highs[measure] + 1, 0);
            }
            lows[measure] = BINS;
            highs[measure] = -1;
        }
    }

    /** Adds the new measures of one time. */
    void add(double[] values, int at, int mask, boolean isNew) {
        samples += isNew ? 1 : 0;
        for (int left = mask; left != 0; left &= left - 1) {
            int measure = Integer.numberOfTrailingZeros(left);
            double value = values[at + measure];
            long stored = (long) Math.floor(value * scales[measure]);
            counts[measure]++;
            sums[measure] += stored;
            maxima[measure] = Math.max(maxima[measure], stored);
            if (hasHistogram[measure]) {
                int bin = (int) Math.min(Math.max((long) Math.floor(100.0 * value), 0), BINS - 1);
                bins[measure][bin]++;
                lows[measure] = Math.min(lows[measure], bin);
                highs[measure] = Math.max(highs[measure], bin);
            }
        }
    }

    /** Adds a finer window that lies in this one. */
    void add(Window finer) {
        samples += finer.samples;
        for (int measure = 0; measure < counts.length; measure++) {
            counts[measure] += finer.counts[measure];
            sums[measure] += finer.sums[measure];
            maxima[measure] = Math.max(maxima[measure], finer.maxima[measure]);
            if (hasHistogram[measure]) {
                for (int bin = finer.lows[measure]; bin <= finer.highs[measure]; bin++) {
                    bins[measure][bin] += finer.bins[measure][bin];
                }
                lows[measure] = Math.min(lows[measure], finer.lows[measure]);
                highs[measure] = Math.max(highs[measure], finer.highs[measure]);
            }
        }
    }

    GenericRowData row(StringData[] texts, long levelMs) {
        Layout.Column[] columns = table.columns();
        GenericRowData row = new GenericRowData(columns.length);
        for (int place = 0; place < columns.length; place++) {
            int of = columns[place].place();
            row.setField(place, switch (columns[place].role()) {
                case START -> start;
                case LEVEL -> levelMs / 1000;
                case TEXT -> texts[of];
                case SAMPLES -> samples;
                case COUNT -> counts[of];
                case SUM -> counts[of] == 0 ? null : (Object) sums[of];
                case MAX -> counts[of] == 0 ? null : (Object) maxima[of];
                case HISTOGRAM -> counts[of] == 0 ? null : histogram(of);
                default -> throw new IllegalStateException(columns[place].name());
            });
        }
        return row;
    }

    private GenericMapData histogram(int measure) {
        Map<Integer, Long> found = new LinkedHashMap<>();
        for (int bin = lows[measure]; bin <= highs[measure]; bin++) {
            if (bins[measure][bin] != 0) {
                found.put(bin, (long) bins[measure][bin]);
            }
        }
        return new GenericMapData(found);
    }
}
