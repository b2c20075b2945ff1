import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/** Runs the statements of a file in batch mode, and prints the rows of the last one: fields with tabs between. */
final class Ask {
    public static void main(String[] arguments) throws Exception {
        TableEnvironment tables = TableEnvironment.create(EnvironmentSettings.inBatchMode());
        String[] statements = Files.readString(Path.of(arguments[0])).strip().split(";\\s*(?:\\n|$)");
        for (int place = 0; place < statements.length - 1; place++) {
            tables.executeSql(statements[place]);
        }
        try (CloseableIterator<Row> rows = tables.executeSql(statements[statements.length - 1]).collect()) {
            while (rows.hasNext()) {
                Row row = rows.next();
                StringBuilder line = new StringBuilder();
                for (int field = 0; field < row.getArity(); field++) {
                    line.append(field == 0 ? "" : "\t").append(row.getField(field));
                }
                System.out.println("ROW\t" + line);
            }
        }
    }
}
