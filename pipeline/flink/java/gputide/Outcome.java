package gputide;

import org.apache.flink.table.data.RowData;

/** One row of a file: of a table, of what was counted, or of what could not be read. */
final class Outcome {
    static final int TALLY = -1;
    static final int UNREAD = -2;

    /** Place of the table in {@link Layout#tables}, {@link #TALLY} or {@link #UNREAD}. */
    final int kind;
    /** UTC day of the key time, in days since 1970; 0 where it is no row of a table. */
    final long day;
    /** Cluster, as it came; empty where it is no row of a table. */
    final String cluster;
    /** Length of the window in milliseconds; 0 where there is none. */
    final long levelMs;
    final RowData row;

    Outcome(int kind, long day, String cluster, long levelMs, RowData row) {
        this.kind = kind;
        this.day = day;
        this.cluster = cluster;
        this.levelMs = levelMs;
        this.row = row;
    }

    Outcome(int kind, RowData row) {
        this(kind, 0, "", 0, row);
    }
}
