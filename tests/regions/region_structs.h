/* The regions that HAMi's library shares between the processes of a container, as C types: one struct per layout.
 *
 * Field order and types follow the facts of each release (Project-HAMi/HAMi-core, commit named per layout); the names
 * are the library's, because readers know them. Sizes are asserted against what those commits compile to. */

#ifndef REGION_STRUCTS_H
#define REGION_STRUCTS_H

#include <semaphore.h>
#include <stddef.h>
#include <stdint.h>

#define CARDS 16
#define SLOTS 1024
#define REGION_MAGIC 19920718

typedef char card_id[96];

struct memory_v0 {
    uint64_t context_size, module_size, data_size, offset, total;
};
struct memory_v1 {
    uint64_t context_size, module_size, data_size, offset, total, unused[3];
};
struct util_v0 {
    uint64_t dec_util, enc_util, sm_util;
};
struct util_v1 {
    uint64_t dec_util, enc_util, sm_util, unused[3];
};

struct slot_pre_v0 {
    int32_t pid, hostpid;
    struct memory_v0 used[CARDS];
    uint64_t monitorused[CARDS];
    int32_t status;
};
struct slot_v0 {
    int32_t pid, hostpid;
    struct memory_v0 used[CARDS];
    uint64_t monitorused[CARDS];
    struct util_v0 device_util[CARDS];
    int32_t status;
};
struct slot_v1_1 {
    int32_t pid, hostpid;
    struct memory_v1 used[CARDS];
    uint64_t monitorused[CARDS];
    struct util_v1 device_util[CARDS];
    int32_t status;
    uint64_t unused[3];
};
struct slot_v1_2 {
    int32_t pid, hostpid;
    struct memory_v1 used[CARDS];
    uint64_t monitorused[CARDS];
    struct util_v1 device_util[CARDS];
    int32_t status;
    uint64_t seqlock;
    uint64_t unused[2];
};
struct slot_early_seqlock {
    int32_t pid, hostpid;
    uint64_t seqlock;
    struct memory_v1 used[CARDS];
    uint64_t monitorused[CARDS];
    struct util_v1 device_util[CARDS];
    int32_t status;
    uint64_t unused[2];
};

/* 8b7cd78 */
struct region_pre_v0 {
    int32_t initialized_flag, sm_init_flag;
    size_t owner_pid;
    sem_t sem;
    uint64_t device_num;
    card_id uuids[CARDS];
    uint64_t limit[CARDS], sm_limit[CARDS];
    struct slot_pre_v0 procs[SLOTS];
    int32_t proc_num, utilization_switch, recent_kernel, priority;
};
/* 7a9c88b */
struct region_v0 {
    int32_t initialized_flag, sm_init_flag;
    size_t owner_pid;
    sem_t sem;
    uint64_t device_num;
    card_id uuids[CARDS];
    uint64_t limit[CARDS], sm_limit[CARDS];
    struct slot_v0 procs[SLOTS];
    int32_t proc_num, utilization_switch, recent_kernel, priority;
};
/* ec8979d, 24a0f49 */
struct region_v1_1 {
    int32_t initialized_flag;
    uint32_t major_version, minor_version;
    int32_t sm_init_flag;
    size_t owner_pid;
    sem_t sem;
    uint64_t device_num;
    card_id uuids[CARDS];
    uint64_t limit[CARDS], sm_limit[CARDS];
    struct slot_v1_1 procs[SLOTS];
    int32_t proc_num, utilization_switch, recent_kernel, priority;
    uint64_t last_kernel_time;
    uint64_t unused[4];
};
/* 1988c5d */
struct region_v1_1_dev {
    int32_t initialized_flag;
    uint32_t major_version, minor_version;
    int32_t sm_init_flag;
    size_t owner_pid;
    sem_t sem;
    uint64_t device_num;
    card_id uuids[CARDS];
    uint64_t limit[CARDS], sm_limit[CARDS];
    struct slot_early_seqlock procs[SLOTS];
    int32_t proc_num, utilization_switch, recent_kernel, priority;
    uint64_t last_kernel_time;
    uint64_t unused[4];
};
/* e200da2, 94fff56 */
struct region_v1_1_odd {
    int32_t initialized_flag;
    uint32_t major_version, minor_version;
    int32_t sm_init_flag;
    size_t owner_pid;
    sem_t sem, sem_postinit;
    uint64_t device_num;
    card_id uuids[CARDS];
    uint64_t limit[CARDS], sm_limit[CARDS];
    struct slot_early_seqlock procs[SLOTS];
    int32_t proc_num, utilization_switch, recent_kernel, priority;
    uint64_t last_kernel_time;
    uint64_t unused[4];
};
/* b69b1ea, b6afdd0, 5091a2f, 8f3a89c */
struct region_v1_2 {
    int32_t initialized_flag;
    uint32_t major_version, minor_version;
    int32_t sm_init_flag;
    size_t owner_pid;
    sem_t sem;
    uint64_t device_num;
    card_id uuids[CARDS];
    uint64_t limit[CARDS], sm_limit[CARDS];
    struct slot_v1_2 procs[SLOTS];
    int32_t proc_num, utilization_switch, recent_kernel, priority;
    uint64_t last_kernel_time;
    sem_t sem_postinit;
};

_Static_assert(sizeof(sem_t) == 32, "glibc on x86_64 or aarch64");
_Static_assert(sizeof(struct region_pre_v0) == 804680, "pre-v0");
_Static_assert(sizeof(struct region_v0) == 1197896, "v0");
_Static_assert(sizeof(struct region_v1_1) == 2008952, "v1.1");
_Static_assert(sizeof(struct region_v1_1_dev) == 2008952, "v1.1-dev");
_Static_assert(sizeof(struct region_v1_1_odd) == 2008984, "v1.1-odd");
_Static_assert(sizeof(struct region_v1_2) == 2008952, "v1.2");

#endif
