/* Writes shared regions as HAMi's library does, in every layout, through C structs.
 *
 *   region_writer offsets                               where the compiler puts every field
 *   region_writer write LAYOUT PATH CARDS PROCESSES     one region with figures that follow from the process's id
 *   region_writer churn LAYOUT PATH CARDS               one region that keeps changing until the process is killed
 *   region_writer work LAYOUT PATH MIB                  a process that allocates that much, launches, frees, and again
 *
 * Built by tests/regions/writer.py. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "region_structs.h"

#define MIB (1024ULL * 1024ULL)

/* A file one byte longer than the region, as the library makes it: by a byte written behind the end. */
static void *map_file(const char *path, size_t bytes) {
    int file = open(path, O_RDWR | O_CREAT, 0666);
    if (file < 0 || lseek(file, (off_t)bytes, SEEK_SET) < 0 || write(file, "", 1) != 1) {
        perror(path);
        exit(1);
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    return memory;
}

#define LAYOUT pre_v0
#define HAS_VERSIONS 0
#define MINOR 0
#define HAS_UTIL 0
#define HAS_SEQLOCK 0
#include "region_actions.h"

#define LAYOUT v0
#define HAS_VERSIONS 0
#define MINOR 0
#define HAS_UTIL 1
#define HAS_SEQLOCK 0
#include "region_actions.h"

#define LAYOUT v1_1
#define HAS_VERSIONS 1
#define MINOR 1
#define HAS_UTIL 1
#define HAS_SEQLOCK 0
#include "region_actions.h"

#define LAYOUT v1_1_dev
#define HAS_VERSIONS 1
#define MINOR 1
#define HAS_UTIL 1
#define HAS_SEQLOCK 1
#include "region_actions.h"

#define LAYOUT v1_1_odd
#define HAS_VERSIONS 1
#define MINOR 1
#define HAS_UTIL 1
#define HAS_SEQLOCK 1
#include "region_actions.h"

#define LAYOUT v1_2
#define HAS_VERSIONS 1
#define MINOR 2
#define HAS_UTIL 1
#define HAS_SEQLOCK 1
#include "region_actions.h"

static const struct {
    const char *name;
    void (*offsets)(const char *);
    void (*write)(const char *, int, int);
    void (*churn)(const char *, int);
    void (*work)(const char *, int);
} LAYOUTS[] = {
    {"pre-v0", offsets_pre_v0, write_pre_v0, churn_pre_v0, work_pre_v0},
    {"v0", offsets_v0, write_v0, churn_v0, work_v0},
    {"v1.1", offsets_v1_1, write_v1_1, churn_v1_1, work_v1_1},
    {"v1.1-dev", offsets_v1_1_dev, write_v1_1_dev, churn_v1_1_dev, work_v1_1_dev},
    {"v1.1-odd", offsets_v1_1_odd, write_v1_1_odd, churn_v1_1_odd, work_v1_1_odd},
    {"v1.2", offsets_v1_2, write_v1_2, churn_v1_2, work_v1_2},
};

int main(int count, char **words) {
    const char *action = count > 1 ? words[1] : "";
    for (size_t layout = 0; layout < sizeof(LAYOUTS) / sizeof(LAYOUTS[0]); layout++) {
        if (strcmp(action, "offsets") == 0)
            LAYOUTS[layout].offsets(LAYOUTS[layout].name);
        else if (count > 4 && strcmp(words[2], LAYOUTS[layout].name) == 0) {
            if (strcmp(action, "write") == 0 && count > 5)
                LAYOUTS[layout].write(words[3], atoi(words[4]), atoi(words[5]));
            else if (strcmp(action, "churn") == 0)
                LAYOUTS[layout].churn(words[3], atoi(words[4]));
            else if (strcmp(action, "work") == 0)
                LAYOUTS[layout].work(words[3], atoi(words[4]));
            return 0;
        }
    }
    return strcmp(action, "offsets") != 0;
}
