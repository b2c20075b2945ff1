package gputide;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.flink.api.common.TaskInfo;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.java.typeutils.TupleTypeInfo;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.StateInitializationContext;
import org.apache.flink.runtime.state.StateSnapshotContext;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.BoundedOneInput;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.StringData;

/**
 * Counts every sample once and adds them up; mutable, one per task.
 *
 * <p>Rows gather in memory until the next checkpoint, whose barrier they go before: then rows of one identity and time
 * become one, by the largest value; measures that were counted before are taken away; and what is left goes out as
 * additive rows of every level. So no sum is ever under way in a checkpoint: its only state is which samples were
 * counted ({@link Seen}), which is dropped with the days in which a sample may still come, and which days those are.
 * A row that is late by less makes one more additive row. These are the rules of pipeline.rollup.rollup_duckdb.
 */
final class Rollup extends AbstractStreamOperator<Outcome>
        implements OneInputStreamOperator<Tuple2<Integer, byte[]>, Outcome>, BoundedOneInput {
    private static final long serialVersionUID = 1L;

    /** Rows that wait in memory at most: some 40 MB. */
    private static final int ROWS_MAX = 250_000;
    private static final long DAY_MS = 86_400_000;
    private static final int NEVER = -1;
    /** Days after which what was counted goes though its day is open: nothing further came of its cluster. */
    private static final int SILENT_DAYS = 30;
    private static final TypeInformation<?> LONGS = Types.PRIMITIVE_ARRAY(Types.LONG);

    private final Layout layout;
    private transient int[] keys;
    private transient MapState<Tuple2<Long, Integer>, byte[]> seen;
    private transient ListState<Tuple4<String, Integer, long[], long[]>> storedDays;
    private transient Map<String, Days> days;
    /** Days of which something may be in {@link #seen}. */
    private transient BitSet kept;
    private transient Map<Key, Pending> pending;
    private transient int rows;
    private transient Seen hour;
    private transient Window[][] windows;
    private transient long records;
    private transient long samples;
    private transient long repeats;
    private transient long late;

    /** An identity of a table. */
    private record Key(int kind, long hash) {
        @Override
        public int hashCode() {
            return (int) hash ^ kind;
        }
    }

    Rollup(Layout layout) {
        this.layout = layout;
    }

    @Override
    public void initializeState(StateInitializationContext context) throws Exception {
        super.initializeState(context);
        keys = Deal.keysOfParts();
        MapStateDescriptor<Tuple2<Long, Integer>, byte[]> description = new MapStateDescriptor<>(
                "seen", new TupleTypeInfo<Tuple2<Long, Integer>>(Types.LONG, Types.INT),
                PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);
        // Days are closed by samples, not by the clock: a job that stood, or is behind, has to know what it counted.
        description.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofDays(layout.lateDays + SILENT_DAYS))
                .setStateVisibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
                .cleanupInRocksdbCompactFilter(10_000).build());
        seen = context.getKeyedStateStore().getMapState(description);
        storedDays = context.getOperatorStateStore().getUnionListState(new ListStateDescriptor<>(
                "days", Types.TUPLE(Types.STRING, Types.INT, LONGS, LONGS)));
        days = new HashMap<>();
        for (var each : storedDays.get()) {
            days.computeIfAbsent(each.f0, place -> new Days()).add(each);
        }
        kept = openDays();
        pending = new HashMap<>();
        hour = new Seen();
        windows = new Window[layout.tables.length][layout.levelsMs.length];
        for (int kind = 0; kind < windows.length; kind++) {
            for (int level = 0; level < layout.levelsMs.length; level++) {
                windows[kind][level] = new Window(layout, layout.tables[kind]);
            }
        }
    }

    @Override
    public void processElement(StreamRecord<Tuple2<Integer, byte[]>> element) throws Exception {
        Bytes in = new Bytes(element.getValue().f1);
        int kind = in.readByte();
        records += in.readByte();
        int partition = in.readInt();
        int[] columns = columnsOf(kind, in.readInt());
        Pending[] found = new Pending[in.readInt()];
        int width = layout.tables[kind].isUsage() ? layout.tables[kind].measures().length : 2;
        for (int place = 0; place < found.length; place++) {
            long hash = in.readLong();
            int size = in.readInt();
            Key key = new Key(kind, hash);
            Pending known = pending.get(key);
            if (known == null) {
                byte[] texts = new byte[size];
                System.arraycopy(in.data, in.at, texts, 0, size);
                String cluster = new String(texts, 4, Bytes.getInt(texts, 0), StandardCharsets.UTF_8);
                known = new Pending(kind, hash, texts, cluster, width);
                pending.put(key, known);
            }
            in.at += size;
            found[place] = known;
        }
        take(in, found, columns, partition);
        if (rows >= ROWS_MAX) {
            flush();
        }
    }

    private void take(Bytes in, Pending[] found, int[] columns, int partition) {
        String cluster = null;
        Days known = null;
        int now = dayOf(System.currentTimeMillis());
        boolean isUsage = found.length > 0 && layout.tables[found[0].kind].isUsage();
        for (int left = in.readInt(); left > 0; left--) {
            Pending of = found[in.readInt()];
            long time = in.readLong();
            if (isUsage) {
                samples++;
                if (!of.cluster.equals(cluster)) {
                    cluster = of.cluster;
                    // By lane of the bus: one that is behind after an outage loses nothing because another is ahead.
                    known = days.computeIfAbsent(partition + "/" + cluster, place -> new Days());
                }
                if (!known.take(dayOf(time), now, layout.lateDays)) {
                    late++;
                    in.at += 8 * columns.length;
                    continue;
                }
            }
            rows++;
            int at = of.add(time);
            for (int column : columns) {
                double value = Double.longBitsToDouble(in.readLong());
                if (column != NEVER) {
                    of.values[at + column] = value;
                }
            }
        }
    }

    /** The day whose window a time is in, from the first one that may be. */
    private int dayOf(long time) {
        return (int) (Math.floorDiv(time - 1, DAY_MS) - Math.floorDiv(layout.timeMinMs - 1, DAY_MS));
    }

    /** Where the columns of a message go: the table's own measures, or both values of a sighting. */
    private int[] columnsOf(int kind, int mask) {
        int[] columns = new int[Integer.bitCount(mask)];
        int[] measures = layout.tables[kind].measures();
        for (int place = 0, next = 0; next < columns.length; place++) {
            if ((mask >>> place & 1) == 0) {
                continue;
            }
            columns[next] = layout.tables[kind].isUsage() ? NEVER : place;
            for (int measure = 0; measure < measures.length; measure++) {
                if (measures[measure] == place) {
                    columns[next] = measure;
                }
            }
            next++;
        }
        return columns;
    }

    @Override
    public void prepareSnapshotPreBarrier(long checkpointId) throws Exception {
        flush();
        forget();
    }

    @Override
    public void endInput() throws Exception {
        flush();
    }

    @Override
    public void snapshotState(StateSnapshotContext context) throws Exception {
        super.snapshotState(context);
        var found = new ArrayList<Tuple4<String, Integer, long[], long[]>>(days.size());
        days.forEach((place, known) -> found.add(known.stored(place)));
        storedDays.update(found);
    }

    private void flush() throws Exception {
        for (Pending of : pending.values()) {
            if (of.count == 0) {
                continue;
            }
            if (layout.tables[of.kind].isUsage()) {
                int before = of.count;
                of.merge();
                repeats += before - of.count;
                count(of);
            } else {
                see(of);
            }
        }
        pending.clear();
        rows = 0;
        if (records + samples + late > 0) {
            output.collect(new StreamRecord<>(
                    new Outcome(Outcome.TALLY, GenericRowData.of(records, samples, repeats, late))));
            records = samples = repeats = late = 0;
        }
    }

    /** Forgets what was counted in days that every part of the bus has closed. */
    private void forget() throws Exception {
        BitSet open = openDays();
        kept.andNot(open);
        boolean isOver = !kept.isEmpty();
        kept = open;
        if (!isOver) {
            return;
        }
        TaskInfo task = getRuntimeContext().getTaskInfo();
        long forgotten = 0;
        for (int key : keys) {
            if (task.getIndexOfThisSubtask() != KeyGroupRangeAssignment.assignKeyToParallelOperator(
                    key, task.getMaxNumberOfParallelSubtasks(), task.getNumberOfParallelSubtasks())) {
                continue;
            }
            setCurrentKey(key);
            for (Iterator<Map.Entry<Tuple2<Long, Integer>, byte[]>> each = seen.iterator(); each.hasNext(); ) {
                long start = each.next().getKey().f1 * Seen.SPAN_MS;
                // The sample of midnight is of the day before.
                if (!open.get(dayOf(start)) && !open.get(dayOf(start + Seen.SPAN_MS - 1))) {
                    each.remove();
                    forgotten++;
                }
            }
        }
        LOG.info("forgot {} hours of days that are closed", forgotten);
    }

    private BitSet openDays() {
        BitSet found = new BitSet();
        days.values().forEach(known -> known.addOpen(found));
        return found;
    }

    private void count(Pending of) throws Exception {
        setCurrentKey(keys[(int) (of.hash >>> 57)]);
        int[] masks = new int[of.count];
        boolean[] wasSeen = new boolean[of.count];
        for (int row = 0; row < of.count; row++) {
            masks[row] = of.mask(row);
        }
        for (int start = 0; start < of.count; ) {
            int number = (int) Math.floorDiv(of.times[start], Seen.SPAN_MS);
            long until = (number + 1) * Seen.SPAN_MS;
            int end = start + 1;
            while (end < of.count && of.times[end] < until) {
                end++;
            }
            Tuple2<Long, Integer> place = Tuple2.of(of.hash, number);
            hour.load(number, seen.get(place));
            hour.add(of.times, masks, wasSeen, start, end);
            seen.put(place, hour.stored());
            start = end;
        }
        addUp(of, masks, wasSeen);
    }

    private void addUp(Pending of, int[] masks, boolean[] wasSeen) {
        Window[] levels = windows[of.kind];
        StringData[] texts = textsOf(of);
        for (int row = 0; row < of.count; row++) {
            if (masks[row] == 0) {
                repeats++;
                continue;
            }
            long start = Math.floorDiv(of.times[row] - 1, layout.levelsMs[0]) * layout.levelsMs[0];
            if (levels[0].start != start) {
                close(of, texts, levels, 0);
                levels[0].begin(start);
            }
            levels[0].add(of.values, row * of.width, masks[row], !wasSeen[row]);
        }
        for (int level = 0; level < levels.length; level++) {
            close(of, texts, levels, level);
        }
    }

    /** Sends a window out and adds it to the one above. */
    private void close(Pending of, StringData[] texts, Window[] levels, int level) {
        Window window = levels[level];
        if (window.isEmpty()) {
            return;
        }
        long levelMs = layout.levelsMs[level];
        long day = Math.floorDiv(window.start, DAY_MS);
        output.collect(new StreamRecord<>(
                new Outcome(of.kind, day, of.cluster, levelMs, window.row(texts, levelMs))));
        if (level + 1 < levels.length) {
            Window above = levels[level + 1];
            long start = Math.floorDiv(window.start, layout.levelsMs[level + 1]) * layout.levelsMs[level + 1];
            if (above.start != start) {
                close(of, texts, levels, level + 1);
                above.begin(start);
            }
            above.add(window);
        }
        window.clear();
    }

    /** Sends out when something was first and last seen, and when it ended, per day. */
    private void see(Pending of) {
        Layout.Column[] columns = layout.tables[of.kind].columns();
        StringData[] texts = textsOf(of);
        Map<Long, long[]> days = new HashMap<>();
        for (int row = 0; row < of.count; row++) {
            long last = (long) of.values[row * 2];
            double ended = of.values[row * 2 + 1];
            long[] found = days.computeIfAbsent(Math.floorDiv(last - 1, DAY_MS), day -> new long[] {
                Long.MAX_VALUE, Long.MIN_VALUE, Long.MIN_VALUE
            });
            found[0] = Math.min(found[0], of.times[row]);
            found[1] = Math.max(found[1], last);
            found[2] = Double.isNaN(ended) ? found[2] : Math.max(found[2], (long) ended);
        }
        days.forEach((day, found) -> {
            GenericRowData row = new GenericRowData(columns.length);
            for (int place = 0; place < columns.length; place++) {
                row.setField(place, switch (columns[place].role()) {
                    case TEXT -> texts[columns[place].place()];
                    case FIRST_SEEN -> found[0];
                    case LAST_SEEN -> found[1];
                    case ENDED_AT -> found[2] == Long.MIN_VALUE ? null : (Object) found[2];
                    default -> throw new IllegalStateException(columns[place].name());
                });
            }
            output.collect(new StreamRecord<>(new Outcome(of.kind, day, of.cluster, 0, row)));
        });
    }

    private StringData[] textsOf(Pending of) {
        StringData[] texts = new StringData[layout.tables[of.kind].texts()];
        Bytes in = new Bytes(of.texts);
        for (int place = 0; place < texts.length; place++) {
            int size = in.readInt();
            texts[place] = StringData.fromBytes(of.texts, in.at, size);
            in.at += size;
        }
        return texts;
    }
}
