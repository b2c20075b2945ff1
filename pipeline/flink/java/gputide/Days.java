package gputide;

import java.util.BitSet;
import org.apache.flink.api.java.tuple.Tuple4;

/**
 * Which days of a cluster take samples; mutable. Days are numbered from the first one in which a sample may be.
 *
 * <p>A day that has samples is closed when the newest day has gone on by more than {@code lateDays}: then it is forgotten
 * which of its samples were counted, and no more of them may be (pipeline.warehouse.compact: tidy_indexes). One without
 * samples stays open, however old: what was kept for weeks can still be sent once.
 */
final class Days {
    private final BitSet open;
    private final BitSet closed;
    private int newest;

    Days() {
        open = new BitSet();
        closed = new BitSet();
        newest = -1;
    }

    /** Continues from what several tasks have stored. */
    void add(Tuple4<String, Integer, long[], long[]> stored) {
        newest = Math.max(newest, stored.f1);
        open.or(BitSet.valueOf(stored.f2));
        closed.or(BitSet.valueOf(stored.f3));
        open.andNot(closed);
    }

    /** Adds the days whose further samples are still compared with those that were counted. */
    void addOpen(BitSet to) {
        to.or(open);
    }

    Tuple4<String, Integer, long[], long[]> stored(String place) {
        return Tuple4.of(place, newest, open.toLongArray(), closed.toLongArray());
    }

    /**
     * Whether a day takes a sample.
     *
     * @param now the day that it is: a clock that is ahead closes no day before its time
     */
    boolean take(int day, int now, int lateDays) {
        if (closed.get(day)) {
            return false;
        }
        open.set(day);
        int reached = Math.min(day, now);
        if (reached > newest) {
            newest = reached;
            for (int old = open.nextSetBit(0); old >= 0 && old < newest - lateDays; old = open.nextSetBit(old + 1)) {
                open.clear(old);
                closed.set(old);
            }
        }
        return true;
    }
}
