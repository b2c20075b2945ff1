package gputide;

import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Submits roll-ups and, without a cluster to send them to, runs them: a line of JSON per job on standard input, lines of
 * JSON on standard output; ends when standard input ends, and takes jobs in this process with it.
 *
 * <p>A line: {@code {"configuration": {"rest.bind-port": "40001"}, "source": {…}, "staging": "file:/…", "layout": {…}}}
 * (pipeline.flink.description). Answers: {@code {"job": ID}} once it is submitted, {@code {"ended": "FINISHED"}} when it is
 * over, {@code {"failed": REASON}}.
 */
public final class Job {
    private static final int REASON_CHARACTERS_MAX = 4000;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static PrintStream answers;

    private Job() {}

    public static void main(String[] none) throws Exception {
        answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                JobClient job = submit(JSON.readTree(line));
                say("job", job.getJobID().toString());
                CompletableFuture<?> end = job.getJobExecutionResult();
                end.whenComplete((result, failure) ->
                        say(failure == null ? "ended" : "failed", failure == null ? "FINISHED" : reasonOf(failure)));
            } catch (Exception exc) {
                // Whatever Flink throws goes to the caller, which decides.
                exc.printStackTrace();
                say("failed", reasonOf(exc));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static JobClient submit(JsonNode given) throws Exception {
        Configuration configuration = new Configuration();
        given.get("configuration").properties().forEach(
                each -> configuration.setString(each.getKey(), each.getValue().asText()));
        StreamExecutionEnvironment environment = new StreamExecutionEnvironment(configuration);
        Layout layout = new Layout(given.get("layout"));
        String staging = given.get("staging").asText();
        TypeInformation<Outcome> outcomes = TypeInformation.of(Outcome.class);
        var dealt = environment
                .fromSource(Topic.source(given.get("source")), WatermarkStrategy.noWatermarks(), "topic").uid("topic")
                .process(new Deal(layout), Types.TUPLE(Types.INT, Types.PRIMITIVE_ARRAY(Types.BYTE)))
                .name("deal").uid("deal");
        dealt.getSideOutput(Deal.UNREAD).sinkTo(Files.sink(layout, staging)).name("unread").uid("unread");
        dealt.keyBy(part -> part.f0, Types.INT)
                .transform("rollup", outcomes, new Rollup(layout)).uid("rollup")
                .sinkTo(Files.sink(layout, staging)).name("files").uid("files");
        return environment.executeAsync();
    }

    private static String reasonOf(Throwable failure) {
        StringBuilder found = new StringBuilder(failure.toString());
        for (Throwable cause = failure.getCause(); cause != null; cause = cause.getCause()) {
            found.append("; Caused by: ").append(cause);
        }
        return found.substring(0, Math.min(found.length(), REASON_CHARACTERS_MAX));
    }

    private static synchronized void say(String name, String value) {
        ObjectNode answer = JSON.createObjectNode().put(name, value);
        answers.println(answer);
    }
}
