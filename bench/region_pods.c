/* Pods under HAMi's library, without a card: an online one that launches kernels in bursts, an offline one that always has
 * work. What they do to their region, in this order, is what Project-HAMi/HAMi-core:src/cuda/memory.c (cuLaunchKernel),
 * src/include/memory_limit.h (ENSURE_RUNNING) and src/multiprocess/multiprocess_utilization_watcher.c (rate_limiter,
 * utilization_watcher) do, for a container with a core limit and the policy `force`. Layout 1.2. A kernel is a sleep.
 *
 *   region_pods online PATH LOG BEGIN END SEED BURST_MIN BURST_MAX IDLE_MIN IDLE_MAX MANNER
 *   region_pods offline PATH LOG BEGIN END
 *
 * Times are seconds; BEGIN and END by CLOCK_MONOTONIC. The first burst lasts 1 s, and the idle spell behind it 5 s. MANNER:
 * `kernels` are all marked; of `graphs`, which bursts behind the first one replay, none, but one kernel every 1.5 s is;
 * `unmarked` kernels are those of a container without a core limit. The log has lines `work FROM UNTIL` (kernels less than a millisecond apart are one) and `status AT VALUE`.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define REGION_BYTES 2008953
#define SPANS_MAX 100000
#define KERNEL_SECONDS 0.003
#define GRAPH_SECONDS 0.02
#define MARK_SECONDS 1.5

static uint8_t *region;
static volatile int32_t *status, *recent_kernel;
static double until;
static double spans[SPANS_MAX][2];
static volatile int span_count;
static double changes[SPANS_MAX];
static int values[SPANS_MAX], change_count;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static void rest(double seconds) {
    if (seconds > 0) {
        struct timespec span = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
        nanosleep(&span, NULL);
    }
}

static double between(double least, double most) { return least + (most - least) * drand48(); }

static void work(double seconds) {
    double began = now();
    rest(seconds);
    int last = span_count - 1;
    if (last >= 0 && began - spans[last][1] < 0.001) {
        spans[last][1] = now();
    } else if (span_count < SPANS_MAX) {
        spans[span_count][0] = began;
        spans[span_count][1] = now();
        span_count++;
    }
}

/* One launch, and its kernel. */
static void launch(double seconds, int is_marked) {
    volatile uint64_t *last_kernel_time = (volatile uint64_t *)(region + 2008912);
    while (*status != 1 && now() < until)
        sleep(1);
    if ((uint64_t)time(NULL) > *last_kernel_time)
        *last_kernel_time = (uint64_t)time(NULL);
    while (is_marked && *recent_kernel < 0 && now() < until)
        sleep(1);
    if (now() >= until)
        return;
    if (is_marked)
        *recent_kernel = 2;
    work(seconds);
}

/* Every 120 ms: figures are emptied, the driver is asked, and its mean of the last second is filled in. */
static void *watch(void *unused) {
    volatile uint64_t *sm_util = (volatile uint64_t *)(region + 1856 + 1160 + 16);
    volatile uint64_t *monitor_used = (volatile uint64_t *)(region + 1856 + 1032);
    uint64_t used = *monitor_used;
    while (now() < until) {
        rest(0.12);
        *sm_util = 0;
        *monitor_used = 0;
        rest(0.002);
        double at = now(), busy = 0;
        for (int span = span_count - 1; span >= 0 && spans[span][1] > at - 1; span--)
            busy += spans[span][1] - (spans[span][0] > at - 1 ? spans[span][0] : at - 1);
        *monitor_used = used;
        *sm_util = busy > 1 ? 100 : (uint64_t)(busy * 100 + 0.999);
    }
    return unused;
}

/* Notes when the pod is paused and let go. */
static void *observe(void *unused) {
    int before = 0;
    while (now() < until) {
        if (*status != before && change_count < SPANS_MAX) {
            before = *status;
            changes[change_count] = now();
            values[change_count++] = before;
        }
        rest(0.001);
    }
    return unused;
}

int main(int count, char **words) {
    if (count < 6)
        return 2;
    int is_online = strcmp(words[1], "online") == 0;
    if (is_online && count != 12)
        return 2;
    int file = open(words[2], O_RDWR);
    region = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || region == MAP_FAILED)
        return 1;
    status = (volatile int32_t *)(region + 1856 + 1928);
    recent_kernel = (volatile int32_t *)(region + 2008904);
    until = atof(words[5]);
    rest(atof(words[4]) - now());
    pthread_t watcher, observer;
    pthread_create(&watcher, NULL, watch, NULL);
    pthread_create(&observer, NULL, observe, NULL);
    if (is_online) {
        srand48(atol(words[6]));
        double burst = 1, idle = 5, marked_at = 0;
        int is_marked = strcmp(words[11], "unmarked") != 0, has_graphs = 0;
        while (now() < until) {
            for (double end = now() + burst; now() < end && now() < until;) {
                if (has_graphs && now() - marked_at < MARK_SECONDS) {
                    work(GRAPH_SECONDS);
                    continue;
                }
                marked_at = now();
                launch(KERNEL_SECONDS, is_marked);
                if (!has_graphs)
                    rest(between(0, 0.04));
            }
            has_graphs = strcmp(words[11], "graphs") == 0;
            double left = until - now();
            rest(idle < left ? idle : left);
            burst = between(atof(words[7]), atof(words[8]));
            idle = between(atof(words[9]), atof(words[10]));
        }
    } else {
        while (now() < until)
            launch(KERNEL_SECONDS, 1);
    }
    pthread_join(observer, NULL);
    pthread_join(watcher, NULL);
    FILE *log = fopen(words[3], "w");
    if (log == NULL)
        return 1;
    for (int span = 0; span < span_count; span++)
        fprintf(log, "work %.6f %.6f\n", spans[span][0], spans[span][1]);
    for (int change = 0; change < change_count; change++)
        fprintf(log, "status %.6f %d\n", changes[change], values[change]);
    return fclose(log) != 0;
}
