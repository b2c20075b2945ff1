/* A stand-in for libcuda.so.1 under an interception library: one card in host memory, with limits of our choosing.
 *
 *   PROBE_CARD_MIB       framebuffer of the card
 *   PROBE_LIMIT_MIB      limit on what a process may hold; 0 = none
 *   PROBE_CORE_PERCENT   share of the time in which kernels may run; 100 = no limit
 *   PROBE_GRAPH_ESCAPES  1: launches of graphs pass by that limit
 *   PROBE_SPILL          1: what does not fit the card is given all the same, and takes turns on it; 2: it is given, and
 *                        stays on the host
 *   PROBE_KEPT_MIB       of what a process allocates so much never leaves the card, beside its context
 *   PROBE_LINK_MB        megabytes that pass between card and host in a second, in either direction
 *   PROBE_MANAGED        1: unified memory passes by the limit
 *   PROBE_REGION         shared region (v1.2) whose first slot says whether this process sleeps
 *   PROBE_GATE           1: launches wait at the region's gate, and mark it, as HAMi-core did until 24fd045
 *   PROBE_NO_GRAPHS      1: graphs can't be recorded
 *
 * Time is real: a kernel of 2 ms takes 2 ms, a launch that is held back waits. Built by tests/enforcer/probe/conftest.py. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../regions/region_structs.h"

#define MIB (1024ULL * 1024ULL)
#define OUT_OF_MEMORY 2
#define NOT_SUPPORTED 801
#define CONTEXT_BYTES (300 * MIB)
#define ALLOCATIONS_MAX 4096

static struct {
    uint64_t address, bytes;
} held[ALLOCATIONS_MAX];
static uint64_t total = CONTEXT_BYTES, next_address = 1 << 20;

/* Pages, as CUDA's driver moves them: those that lie on the card and may leave it stand in a queue by when they came; a
 * page that is used does not move in it (open-gpu-kernel-modules:kernel-open/nvidia-uvm/uvm_pmm_gpu.c). */
#define PAGE_BYTES (2 * MIB)
#define PAGES_MAX 131072
enum place { ON_HOST, ON_CARD, STAYS };
static struct {
    uint32_t before, after;
    enum place place;
} pages[PAGES_MAX + 1]; /* 0 is the queue's head */
static struct {
    uint32_t first, many;
} of_allocation[ALLOCATIONS_MAX];
static uint64_t on_card = CONTEXT_BYTES, kept;
static uint32_t next_page = 1;
static double card_free_at, bucket_at;
static uint64_t recorded;
static struct region_v1_2 *region;

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static double now(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (double)moment.tv_sec + (double)moment.tv_nsec * 1e-9;
}

static void sleep_until(double moment) {
    double left = moment - now();
    if (left > 0) {
        struct timespec span = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        nanosleep(&span, NULL);
    }
}

/* The library sleeps in steps of a second; here they are short, so that tests are. */
static void ensure_running(void) {
    while (region && atomic_load((_Atomic int32_t *)&region->procs[0].status) != 1)
        usleep(2000);
}

static void wait_at_gate(void) {
    if (!region || !setting("PROBE_GATE", 0))
        return;
    while (atomic_load((_Atomic int32_t *)&region->recent_kernel) < 0)
        usleep(2000);
    atomic_store((_Atomic int32_t *)&region->recent_kernel, 2);
}

int cuInit(unsigned flags) {
    (void)flags;
    const char *path = getenv("PROBE_REGION");
    if (path && *path && !region) {
        int file = open(path, O_RDWR);
        if (file < 0)
            return 999;
        region = mmap(NULL, sizeof(*region), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = 0;
    return ordinal == 0 ? 0 : 101;
}

int cuDeviceGetUuid(unsigned char *uuid, int device) {
    (void)device;
    for (int byte = 0; byte < 16; byte++)
        uuid[byte] = (unsigned char)(byte * 17);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 16 ? 132 : 0;
    return 0;
}

int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    (void)flags, (void)device;
    *context = &held;
    return 0;
}

int cuCtxDestroy_v2(void *context) {
    (void)context;
    return 0;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    uint64_t limit = setting("PROBE_LIMIT_MIB", 0) * MIB, card = setting("PROBE_CARD_MIB", 80 * 1024) * MIB;
    *total_bytes = limit ? limit : card;
    *free_bytes = *total_bytes > total ? *total_bytes - total : 0;
    return 0;
}

static void leave_queue(uint32_t page) {
    pages[pages[page].before].after = pages[page].after;
    pages[pages[page].after].before = pages[page].before;
    pages[page].place = ON_HOST;
    on_card -= PAGE_BYTES;
}

static void enter_queue(uint32_t page) {
    pages[page].before = pages[0].before;
    pages[page].after = 0;
    pages[pages[0].before].after = page;
    pages[0].before = page;
    pages[page].place = ON_CARD;
    on_card += PAGE_BYTES;
}

/* Makes room for a page; how many bytes leave for it, or more than there are where none may. */
static uint64_t room_for_page(uint64_t card) {
    uint64_t left = 0;
    while (on_card + PAGE_BYTES > card) {
        if (pages[0].after == 0)
            return UINT64_MAX;
        leave_queue(pages[0].after);
        left += PAGE_BYTES;
    }
    return left;
}

static void take_pages(int number, size_t bytes) {
    uint32_t many = (uint32_t)((bytes + PAGE_BYTES - 1) / PAGE_BYTES);
    if (setting("PROBE_SPILL", 0) == 0 || many < 1 || next_page + many > PAGES_MAX) {
        of_allocation[number].many = 0;
        return;
    }
    of_allocation[number].first = next_page;
    of_allocation[number].many = many;
    uint64_t card = setting("PROBE_CARD_MIB", 80 * 1024) * MIB;
    for (uint32_t page = next_page; page < next_page + many; page++) {
        pages[page].place = ON_HOST;
        if (kept + PAGE_BYTES <= setting("PROBE_KEPT_MIB", 0) * MIB && room_for_page(card) != UINT64_MAX) {
            pages[page].place = STAYS;
            on_card += PAGE_BYTES;
            kept += PAGE_BYTES;
        }
    }
    next_page += many;
}

static void give_pages(int number) {
    for (uint32_t page = of_allocation[number].first; page < of_allocation[number].first + of_allocation[number].many;
         page++) {
        if (pages[page].place == ON_CARD)
            leave_queue(page);
        if (pages[page].place == STAYS) {
            on_card -= PAGE_BYTES;
            kept -= PAGE_BYTES;
        }
    }
    if (of_allocation[number].first + of_allocation[number].many == next_page)
        next_page = of_allocation[number].first;
    of_allocation[number].many = 0;
}

/* Bytes that pass over the link while so many bytes of an allocation are written. */
static uint64_t passes(int number, size_t bytes) {
    uint64_t card = setting("PROBE_CARD_MIB", 80 * 1024) * MIB, passed = 0;
    uint32_t first = of_allocation[number].first, many = (uint32_t)((bytes + PAGE_BYTES - 1) / PAGE_BYTES);
    for (uint32_t page = first; page < first + many && page < first + of_allocation[number].many; page++) {
        if (pages[page].place != ON_HOST)
            continue;
        passed += PAGE_BYTES;
        if (setting("PROBE_SPILL", 0) == 2 && on_card + PAGE_BYTES > card)
            continue;
        uint64_t left = room_for_page(card);
        if (left == UINT64_MAX)
            continue;
        passed += left;
        enter_queue(page);
    }
    return passed;
}

static int allocated(uint64_t *address, size_t bytes, int is_limited) {
    ensure_running();
    uint64_t limit = setting("PROBE_LIMIT_MIB", 0) * MIB, card = setting("PROBE_CARD_MIB", 80 * 1024) * MIB;
    if (is_limited && limit && total + bytes > limit)
        return OUT_OF_MEMORY;
    if (!setting("PROBE_SPILL", 0) && total + bytes > card)
        return OUT_OF_MEMORY;
    for (int number = 0; number < ALLOCATIONS_MAX; number++)
        if (held[number].address == 0) {
            held[number].address = *address = next_address;
            held[number].bytes = bytes;
            next_address += bytes + 512;
            total += bytes;
            take_pages(number, bytes);
            return 0;
        }
    return 999;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) { return allocated(address, bytes, 1); }

int cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned flags) {
    (void)flags;
    return allocated(address, bytes, !setting("PROBE_MANAGED", 0));
}

int cuMemFree_v2(uint64_t address) {
    for (int number = 0; number < ALLOCATIONS_MAX; number++)
        if (held[number].address == address) {
            total -= held[number].bytes;
            held[number].address = 0;
            give_pages(number);
            return 0;
        }
    return 1;
}

/* A card writes 2 TB/s, what lies there; the rest comes over the link first, and what makes room for it leaves. */
int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t bytes) {
    (void)value;
    uint64_t passed = 0;
    for (int number = 0; number < ALLOCATIONS_MAX; number++)
        if (held[number].address == address)
            passed = passes(number, bytes);
    double link = (double)setting("PROBE_LINK_MB", 10000) * 1e6;
    sleep_until(now() + (double)bytes / 2e12 + (double)passed / link);
    return 0;
}

int cuModuleLoadData(void **module, const char *image) {
    *module = &held;
    return strstr(image, ".visible .entry spin") ? 0 : 218;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module;
    *function = &held;
    return strcmp(name, "spin") == 0 ? 0 : 500;
}

int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    *stream = &held;
    return 0;
}

static void launch(uint64_t nanoseconds, int is_limited) {
    double seconds = (double)nanoseconds * 1e-9;
    double share = (double)setting("PROBE_CORE_PERCENT", 100) / 100.0;
    if (is_limited && share < 1.0) {
        /* held back until what was used so far is the share of the time that went by */
        if (bucket_at < now() - 0.2)
            bucket_at = now() - 0.2;
        sleep_until(bucket_at);
        bucket_at += seconds / share;
    }
    card_free_at = (card_free_at > now() ? card_free_at : now()) + seconds;
}

static int is_recording;

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    uint64_t nanoseconds = *(uint64_t *)arguments[0];
    if (is_recording) {
        recorded = nanoseconds;
        return 0;
    }
    ensure_running();
    wait_at_gate();
    launch(nanoseconds, 1);
    return 0;
}

int cuStreamBeginCapture_v2(void *stream, unsigned mode) {
    (void)stream, (void)mode;
    if (setting("PROBE_NO_GRAPHS", 0))
        return NOT_SUPPORTED;
    is_recording = 1;
    return 0;
}

int cuStreamEndCapture(void *stream, void **graph) {
    (void)stream;
    is_recording = 0;
    *graph = &recorded;
    return 0;
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, uint64_t flags) {
    (void)flags;
    *executable = graph;
    return 0;
}

int cuGraphLaunch(void *executable, void *stream) {
    (void)stream;
    int escapes = (int)setting("PROBE_GRAPH_ESCAPES", 0);
    if (!escapes)
        ensure_running();
    launch(*(uint64_t *)executable, !escapes);
    return 0;
}

int cuCtxSynchronize(void) {
    sleep_until(card_free_at);
    return 0;
}
