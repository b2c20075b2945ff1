/* What the library does to a region, for one layout; included once per layout, with these names set:
 *
 *   LAYOUT          suffix of the struct region_…
 *   HAS_VERSIONS    1 where the layout has version fields, and last_kernel_time
 *   MINOR           minor version that it carries
 *   HAS_UTIL        1 where slots have utilisation
 *   HAS_SEQLOCK     1 where slots have a seqlock
 */

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(action) JOIN(action, LAYOUT)
#define REGION struct JOIN(region_, LAYOUT)

static void NAME(offsets_)(const char *layout) {
    REGION *region = NULL;
#define OFFSET(field) printf("%s " #field " %zu\n", layout, (size_t)&region->field)
    printf("%s = %zu\n", layout, sizeof(REGION));
    OFFSET(initialized_flag);
    OFFSET(sm_init_flag);
    OFFSET(owner_pid);
    OFFSET(sem);
    OFFSET(device_num);
    OFFSET(uuids[0]);
    OFFSET(uuids[15]);
    OFFSET(limit[0]);
    OFFSET(limit[15]);
    OFFSET(sm_limit[0]);
    OFFSET(sm_limit[15]);
    OFFSET(proc_num);
    OFFSET(utilization_switch);
    OFFSET(recent_kernel);
    OFFSET(priority);
    OFFSET(procs[1023].pid);
    OFFSET(procs[1023].hostpid);
    OFFSET(procs[1023].used[15].context_size);
    OFFSET(procs[1023].used[15].module_size);
    OFFSET(procs[1023].used[15].data_size);
    OFFSET(procs[1023].used[15].offset);
    OFFSET(procs[1023].used[15].total);
    OFFSET(procs[1023].monitorused[15]);
    OFFSET(procs[1023].status);
#if HAS_UTIL
    OFFSET(procs[1023].device_util[15].dec_util);
    OFFSET(procs[1023].device_util[15].enc_util);
    OFFSET(procs[1023].device_util[15].sm_util);
#endif
#if HAS_SEQLOCK
    OFFSET(procs[1023].seqlock);
#endif
#if HAS_VERSIONS
    OFFSET(major_version);
    OFFSET(minor_version);
    OFFSET(last_kernel_time);
#endif
#undef OFFSET
}

static REGION *NAME(create_)(const char *path, int cards) {
    REGION *region = map_file(path, sizeof(REGION));
#if HAS_VERSIONS
    region->major_version = 1;
    region->minor_version = MINOR;
    region->last_kernel_time = (uint64_t)time(NULL);
#endif
    sem_init(&region->sem, 1, 1);
    region->utilization_switch = 1;
    region->recent_kernel = 2;
    region->priority = 1;
    for (int card = 0; card < CARDS; card++) {
        region->limit[card] = (uint64_t)(card + 1) * 1000 * MIB;
        region->sm_limit[card] = 10 + card;
    }
    atomic_store((_Atomic int32_t *)&region->initialized_flag, REGION_MAGIC);
    /* the number first, then the ids: as the library does once NVML answers */
    region->device_num = (uint64_t)cards;
    for (int card = 0; card < cards; card++)
        snprintf(region->uuids[card], sizeof(card_id), "GPU-%08x-0000-4000-8000-%012x", card + 1, card + 1);
    return region;
}

/* Adds to the usage as the library does: total first, then the part. */
static void NAME(add_)(REGION *region, int slot, int card, int part, uint64_t bytes) {
#if HAS_SEQLOCK
    atomic_fetch_add((_Atomic uint64_t *)&region->procs[slot].seqlock, 1);
#endif
    atomic_fetch_add((_Atomic uint64_t *)&region->procs[slot].used[card].total, bytes);
    uint64_t *parts[] = {&region->procs[slot].used[card].context_size, &region->procs[slot].used[card].module_size,
                         &region->procs[slot].used[card].data_size};
    atomic_fetch_add((_Atomic uint64_t *)parts[part], bytes);
#if HAS_SEQLOCK
    atomic_fetch_add((_Atomic uint64_t *)&region->procs[slot].seqlock, 1);
#endif
}

static void NAME(join_)(REGION *region, int pid, int cards) {
    int slot = region->proc_num;
    memset(&region->procs[slot], 0, sizeof(region->procs[slot]));
    region->procs[slot].pid = pid;
    region->procs[slot].hostpid = 100000 + pid;
    region->procs[slot].status = 1;
    for (int card = 0; card < cards; card++) {
        NAME(add_)(region, slot, card, 0, (uint64_t)(pid * 10 + card) * MIB);
        NAME(add_)(region, slot, card, 1, (uint64_t)pid * MIB);
        NAME(add_)(region, slot, card, 2, (uint64_t)(pid * 100) * MIB);
        region->procs[slot].monitorused[card] = (uint64_t)(pid * 200) * MIB;
#if HAS_UTIL
        region->procs[slot].device_util[card].sm_util = (uint64_t)(20 + card);
#endif
    }
    atomic_store((_Atomic int32_t *)&region->proc_num, slot + 1);
}

/* The last process takes the place of the one that leaves: first the number, then the copy, as the library does. */
static void NAME(leave_)(REGION *region, int slot) {
    int last = atomic_fetch_sub((_Atomic int32_t *)&region->proc_num, 1) - 1;
    if (slot != last)
        memcpy(&region->procs[slot], &region->procs[last], sizeof(region->procs[slot]));
    memset(&region->procs[last], 0, sizeof(region->procs[last]));
}

static void NAME(write_)(const char *path, int cards, int processes) {
    REGION *region = NAME(create_)(path, cards);
    for (int process = 1; process <= processes; process++)
        NAME(join_)(region, process, cards);
}

/* Changes the region for as long as the process lives, in bursts of two dozen updates, ten thousand bursts a second: more
 * than any allocator does. A look that saw a whole state, and none in between, shows for
 * every card total = context + module + data, process 1 (which never leaves), 2 or 3 processes, and none of them twice. */
static void NAME(churn_)(const char *path, int cards) {
    REGION *region = NAME(create_)(path, cards);
    for (int process = 1; process <= 3; process++) {
        int slot = region->proc_num;
        region->procs[slot].pid = process;
        region->procs[slot].hostpid = 100000 + process;
        region->procs[slot].status = 1;
        region->proc_num = slot + 1;
    }
    printf("ready\n");
    fflush(stdout);
    for (uint64_t turn = 1;; turn++) {
        uint64_t bytes = (turn % 7 + 1) * 4096;
        int grows = turn % 64 < 32;
        for (int slot = 0; slot < region->proc_num; slot++)
            for (int card = 0; card < cards; card++) {
                uint64_t step = grows ? bytes : -(region->procs[slot].used[card].context_size / 2);
                NAME(add_)(region, slot, card, 0, step);
                NAME(add_)(region, slot, card, 1, step);
                NAME(add_)(region, slot, card, 2, step);
                NAME(add_)(region, slot, card, 2, step);
            }
        if (turn % 16 == 0) {
            NAME(leave_)(region, 1);
            NAME(join_)(region, 1000 + (int)(turn / 16 % 1000), 0);
        }
#if HAS_VERSIONS
        region->last_kernel_time = (uint64_t)time(NULL);
#endif
        region->recent_kernel = (int32_t)(turn % 3);
        usleep(50);
    }
}

/* Works as a process under the library does: sleeps while its slot says so, is refused what is above the limit, and says
 * each time what became of it. The library sleeps in steps of a second; here they are short, so that tests are. */
static void NAME(work_)(const char *path, int mib) {
    REGION *region = NAME(create_)(path, 1);
    NAME(join_)(region, 1, 0);
    uint64_t bytes = (uint64_t)mib * MIB;
    for (;;) {
        while (atomic_load((_Atomic int32_t *)&region->procs[0].status) != 1)
            usleep(5000);
        int fits = region->procs[0].used[0].total + bytes <= atomic_load((_Atomic uint64_t *)&region->limit[0]);
        if (fits) {
            NAME(add_)(region, 0, 0, 2, bytes);
            NAME(add_)(region, 0, 0, 2, -bytes);
        }
        printf(fits ? "launched\n" : "refused\n");
        fflush(stdout);
        usleep(5000);
    }
}

#undef LAYOUT
#undef HAS_VERSIONS
#undef MINOR
#undef HAS_UTIL
#undef HAS_SEQLOCK
#undef REGION
#undef NAME
#undef JOIN
#undef JOIN2
