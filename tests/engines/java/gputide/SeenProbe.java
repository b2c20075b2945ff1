package gputide;

import java.util.Map;
import java.util.Random;
import java.util.TreeMap;

/**
 * Plays random samples of one hour against a map, for tests/engines/test_flink_records.py; ends with a failure where
 * {@link Seen} says anything else, else prints how many bytes an hour of steps takes: of a step that is kept, and of one
 * that varies by five milliseconds.
 */
public final class SeenProbe {
    private static final long HOUR = 490_000;
    private static final int ROUNDS = 3000;
    private static final int STEPS = 240;
    private static final long STEP_MS = 15_000;

    private SeenProbe() {}

    public static void main(String[] none) {
        Random random = new Random(5);
        for (int round = 0; round < ROUNDS; round++) {
            TreeMap<Long, Integer> known = new TreeMap<>();
            byte[] stored = null;
            for (int piece = 0; piece < 6; piece++) {
                stored = added(stored, randomRows(random), known);
            }
        }
        System.out.println(bytesOf(random, 0) + " " + bytesOf(random, 5));
    }

    private static TreeMap<Long, Integer> randomRows(Random random) {
        TreeMap<Long, Integer> rows = new TreeMap<>();
        for (int left = random.nextInt(60); left > 0; left--) {
            long time = random.nextBoolean() ? STEP_MS * random.nextInt(STEPS) : random.nextInt((int) Seen.SPAN_MS);
            rows.put(HOUR * Seen.SPAN_MS + time, random.nextBoolean() ? 7 : random.nextInt(1 << 14));
        }
        return rows;
    }

    private static byte[] added(byte[] stored, TreeMap<Long, Integer> rows, TreeMap<Long, Integer> known) {
        long[] times = rows.keySet().stream().mapToLong(Long::longValue).toArray();
        int[] masks = rows.values().stream().mapToInt(Integer::intValue).toArray();
        boolean[] wasSeen = new boolean[times.length];
        Seen seen = new Seen();
        seen.load(HOUR, stored);
        seen.add(times, masks, wasSeen, 0, times.length);
        int row = 0;
        for (Map.Entry<Long, Integer> each : rows.entrySet()) {
            int before = known.getOrDefault(each.getKey(), 0);
            boolean wasThere = each.getValue() != 0 && before != 0;
            if (masks[row] != (each.getValue() & ~before) || wasSeen[row] != wasThere) {
                throw new AssertionError("row " + row + " of " + rows + " after " + known);
            }
            known.merge(each.getKey(), each.getValue(), (one, other) -> one | other);
            row++;
        }
        return seen.stored();
    }

    private static int bytesOf(Random random, int jitterMs) {
        TreeMap<Long, Integer> rows = new TreeMap<>();
        for (int step = 0; step < STEPS; step++) {
            rows.put(HOUR * Seen.SPAN_MS + step * STEP_MS + 7 + random.nextInt(jitterMs + 1), 8191);
        }
        return added(null, rows, new TreeMap<>()).length;
    }
}
