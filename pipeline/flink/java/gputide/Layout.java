package gputide;

import java.io.Serializable;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.MapType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.VarBinaryType;
import org.apache.flink.table.types.logical.VarCharType;

/**
 * What a job is given: the tables and measures of fleet.schema, as pipeline.flink.description renders them, and how
 * the roll-up shall count. Columns and their order stand in Python alone.
 */
final class Layout implements Serializable {
    private static final long serialVersionUID = 1L;

    /** Where the value of a column comes from. */
    enum Role { START, LEVEL, TEXT, SAMPLES, COUNT, SUM, MAX, HISTOGRAM, FIRST_SEEN, LAST_SEEN, ENDED_AT }

    /** One column of a table. {@code place}: which text, or which of the table's measures; 0 for others. */
    record Column(String name, Role role, int place) implements Serializable {}

    /**
     * One table; its place in {@link #tables} is the kind of its sections in a record.
     *
     * @param texts columns of text that make an identity, the cluster first
     * @param measures places in {@link #scales} of the measures that its rows have; none for sightings
     */
    record Table(String name, int texts, int[] measures, Column[] columns) implements Serializable {
        boolean isUsage() {
            return measures.length > 0;
        }
    }

    final int schemaVersion;
    final Table[] tables;
    /** Per measure: a stored integer is floor(value * scale). */
    final double[] scales;
    /** Per measure: whether bins of hundredths are counted. */
    final boolean[] hasHistogram;
    /** Lengths of windows in milliseconds, finest first, each a multiple of the one before. */
    final long[] levelsMs;
    /** Whole days after which a day takes no further samples. */
    final int lateDays;
    final long timeMinMs;
    final long timeMaxMs;

    Layout(JsonNode given) {
        schemaVersion = given.get("schema_version").asInt();
        lateDays = given.get("late_days").asInt();
        timeMinMs = given.get("time_min_ms").asLong();
        timeMaxMs = given.get("time_max_ms").asLong();
        levelsMs = new long[given.get("levels_seconds").size()];
        for (int level = 0; level < levelsMs.length; level++) {
            levelsMs[level] = given.get("levels_seconds").get(level).asLong() * 1000;
        }
        JsonNode measures = given.get("measures");
        scales = new double[measures.size()];
        hasHistogram = new boolean[measures.size()];
        for (int place = 0; place < scales.length; place++) {
            scales[place] = measures.get(place).get("scale").asDouble();
            hasHistogram[place] = measures.get(place).get("has_histogram").asBoolean();
        }
        tables = new Table[given.get("tables").size()];
        for (int kind = 0; kind < tables.length; kind++) {
            tables[kind] = table(given.get("tables").get(kind));
        }
    }

    private static Table table(JsonNode given) {
        int[] measures = new int[given.get("measures").size()];
        for (int place = 0; place < measures.length; place++) {
            measures[place] = given.get("measures").get(place).asInt();
        }
        Column[] columns = new Column[given.get("columns").size()];
        for (int place = 0; place < columns.length; place++) {
            JsonNode column = given.get("columns").get(place);
            Role role = Role.valueOf(column.get("role").asText());
            columns[place] = new Column(column.get("name").asText(), role, column.get("place").asInt());
        }
        return new Table(given.get("name").asText(), given.get("texts").asInt(), measures, columns);
    }

    /** The columns of a table as its files have them: MAP&lt;INT, BIGINT&gt; for histograms, BIGINT for times. */
    static RowType rowType(Table table) {
        LogicalType[] types = new LogicalType[table.columns().length];
        String[] names = new String[types.length];
        for (int place = 0; place < types.length; place++) {
            Column column = table.columns()[place];
            names[place] = column.name();
            types[place] = switch (column.role()) {
                case TEXT -> new VarCharType(false, VarCharType.MAX_LENGTH);
                case SUM, MAX, ENDED_AT -> new BigIntType(true);
                case HISTOGRAM -> new MapType(true, new IntType(false), new BigIntType(false));
                default -> new BigIntType(false);
            };
        }
        return RowType.of(types, names);
    }

    /** Columns of the files of what could not be read. */
    static RowType unreadType() {
        return RowType.of(
                new LogicalType[] {
                    new VarBinaryType(false, VarBinaryType.MAX_LENGTH), new VarCharType(false, VarCharType.MAX_LENGTH),
                    new IntType(false), new BigIntType(false)
                },
                new String[] {"payload", "reason", "from_partition", "from_offset"});
    }

    /** Columns of the files that say what a flush has counted. */
    static RowType tallyType() {
        BigIntType number = new BigIntType(false);
        return RowType.of(
                new LogicalType[] {number, number, number, number},
                new String[] {"records", "samples", "repeats", "late"});
    }
}
