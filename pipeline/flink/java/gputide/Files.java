package gputide;

import java.io.IOException;
import java.io.Serializable;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.util.UUID;
import org.apache.flink.api.common.serialization.BulkWriter;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.fs.FSDataOutputStream;
import org.apache.flink.core.fs.Path;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.formats.parquet.ParquetWriterFactory;
import org.apache.flink.formats.parquet.row.ParquetRowDataBuilder;
import org.apache.flink.streaming.api.functions.sink.filesystem.BucketAssigner;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.SimpleVersionedStringSerializer;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.logical.RowType;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.io.OutputFile;

/**
 * The files of a job, Parquet with zstd, finished at each checkpoint.
 *
 * <pre>
 *     pod_usage/dt=2026-01-05/cluster=c1/window_seconds=60/part-…   rows of one day, cluster and level
 *     allocations/dt=2026-01-05/cluster=c1/part-…                   sightings
 *     tally/part-…                                                  what was counted
 *     unread/part-…                                                 what could not be read
 * </pre>
 */
final class Files {
    private Files() {}

    static FileSink<Outcome> sink(Layout layout, String folder) {
        return FileSink.forBulkFormat(new Path(folder), new Writers(layout))
                .withBucketAssigner(new Folders(layout)).build();
    }

    /** Makes writers of Parquet for whatever the first row of a file is of. */
    private static final class Writers implements BulkWriter.Factory<Outcome> {
        private static final long serialVersionUID = 1L;
        private final ParquetWriterFactory<RowData>[] factories;
        private final int tables;

        @SuppressWarnings({"unchecked", "rawtypes"})
        Writers(Layout layout) {
            tables = layout.tables.length;
            factories = new ParquetWriterFactory[tables + 2];
            for (int kind = 0; kind < tables; kind++) {
                factories[kind] = of(Layout.rowType(layout.tables[kind]));
            }
            factories[tables] = of(Layout.tallyType());
            factories[tables + 1] = of(Layout.unreadType());
        }

        private static ParquetWriterFactory<RowData> of(RowType type) {
            return new ParquetWriterFactory<>(out -> writer(out, type));
        }

        /** Dictionaries and statistics take most of the time that values take to write; zstd finds what repeats. */
        private static ParquetWriter<RowData> writer(OutputFile out, RowType type) throws IOException {
            Configuration options = new Configuration(false);
            options.set("parquet.compression.codec.zstd.level", "1");
            return new ParquetRowDataBuilder(out, type, true)
                    .withConf(options)
                    .withCompressionCodec(CompressionCodecName.ZSTD)
                    .withStatisticsEnabled(false)
                    .withSizeStatisticsEnabled(false)
                    .withDictionaryEncoding(false)
                    .build();
        }

        @Override
        public BulkWriter<Outcome> create(FSDataOutputStream stream) {
            return new BulkWriter<>() {
                private BulkWriter<RowData> writer;

                @Override
                public void addElement(Outcome outcome) throws IOException {
                    if (writer == null) {
                        writer = factories[outcome.kind >= 0 ? outcome.kind : tables - 1 - outcome.kind].create(stream);
                    }
                    writer.addElement(outcome.row);
                }

                @Override
                public void flush() throws IOException {
                    if (writer != null) {
                        writer.flush();
                    }
                }

                @Override
                public void finish() throws IOException {
                    if (writer != null) {
                        writer.finish();
                    }
                }
            };
        }
    }

    /** Says which folder a row goes to. */
    private static final class Folders implements BucketAssigner<Outcome, String> {
        private static final long serialVersionUID = 1L;
        private static final int NAME_MAX = 200;
        private final String[] names;
        private transient Place last;
        private transient String folder;

        private record Place(int kind, long day, String cluster, long levelMs) implements Serializable {}

        Folders(Layout layout) {
            names = new String[layout.tables.length];
            for (int kind = 0; kind < names.length; kind++) {
                names[kind] = layout.tables[kind].name();
            }
        }

        @Override
        public String getBucketId(Outcome outcome, Context context) {
            Place place = new Place(outcome.kind, outcome.day, outcome.cluster, outcome.levelMs);
            if (!place.equals(last)) {
                last = place;
                folder = folderOf(outcome);
            }
            return folder;
        }

        private String folderOf(Outcome outcome) {
            if (outcome.kind < 0) {
                return outcome.kind == Outcome.TALLY ? "tally" : "unread";
            }
            String below = names[outcome.kind] + "/dt=" + LocalDate.ofEpochDay(outcome.day) + "/cluster="
                    + nameOf(outcome.cluster);
            return outcome.levelMs == 0 ? below : below + "/window_seconds=" + outcome.levelMs / 1000;
        }

        /** A folder's name of a cluster; the rows say what it is really called. */
        private static String nameOf(String cluster) {
            String encoded = URLEncoder.encode(cluster, StandardCharsets.UTF_8);
            return encoded.length() <= NAME_MAX ? encoded
                    : "@" + UUID.nameUUIDFromBytes(cluster.getBytes(StandardCharsets.UTF_8));
        }

        @Override
        public SimpleVersionedSerializer<String> getSerializer() {
            return SimpleVersionedStringSerializer.INSTANCE;
        }
    }
}
