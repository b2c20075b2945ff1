/* A stand-in for NVIDIA's libnvidia-ml.so.1: the same entry points and structures, driven by a text file.
 *
 * It lets the real pynvml (and any other caller of NVML) meet what real cards rarely do on demand: a lost card, a call
 * that hangs, an old driver, processes that appear between two calls. Numbers and layouts are facts of nvml.h, as
 * pynvml states them; nothing is copied.
 *
 * The text file is named by NVML_STANDIN_DATA and read again whenever it changes. One thing per line, `key=value`
 * pairs, `#` starts a comment:
 *
 *   sys   driver=580.65.06 nvml=13.580.65.06 cuda=13000 init=0 generation=0
 *         init: what nvmlInit returns (18 = library and driver versions differ); when generation changes the driver has
 *         started anew, and every call is refused until the caller initialises again
 *   dev   uuid=GPU-.. name="NVIDIA H100 80GB HBM3" total=85899345920 used=1 reserved=0 util=5,90,0 memutil=2 enc=0 dec=0
 *         jpg=0 ofa=0 temp=40 power=250000 limit=400000 energy=1 smclock=1410 memclock=1593 reasons=0 ecc=0 pstate=0
 *         computemode=0 persistence=1 cc=9.0 arch=9 brand=14 minor=0 bus=0000:07:00.0 pciid=0x233010DE sm=132 mig=-1|0|1
 *         maxmig=7 pcietx=1000 pcierx=1000 accounting=0 lost=0 gpm=2:45.5,10:30 fields=82:45,83:99 samples=10,20,100
 *         util: one value per call, over and over; fields: nvmlDeviceGetFieldValues by id; gpm: metrics by id, and the
 *         card supports GPM only where there are some; samples: the utilisation buffer, stamped when the file is read
 *   mig   dev=0 uuid=MIG-.. gi=1 ci=0 total=.. used=.. sm=14 gslices=1 cslices=1 profile=0 start=0 size=1 gpm=..
 *   proc  dev=0 pid=100 mem=1073741824 kind=compute|graphics|mps sm=30 memutil=3 enc=0 dec=0 gi=-1 ci=-1 late=0
 *         late=1: there only after some caller has asked how many processes there are
 *   acct  dev=0 pid=100 util=30 memutil=3 maxmem=1 time=5000 running=1
 *   gip   dev=0 profile=0 id=19 slices=1 count=7 sm=14 memmb=4864    (a profile of GPU instances; dev=-1: all cards)
 *   err   dev=-1 fn=nvmlDeviceGetUtilizationRates ret=15 cardsonly=0
 *         what a function returns; dev=-1: for every card; cardsonly=1: but not for MIG devices
 *   hang  dev=1 fn=nvmlDeviceGetPowerUsage seconds=10                (or until the line is gone)
 *   xid   dev=0 code=79 gi=-1 ci=-1                                  (told once per reading of the file)
 *
 * NVML_STANDIN_TRACE names a file to which every call is appended as `pid function`. -DOLD_DRIVER leaves out what a
 * driver of 2020 (450) did not have. Build: gcc -O2 -Wall -Wextra -shared -fPIC -pthread
 * -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 *.c
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>

typedef int Return;
typedef unsigned int Uint;
typedef unsigned long long Ulong;
typedef struct Device *Handle;

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMED_OUT = 10,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25
};

enum { CARDS_MAX = 32, MIGS_MAX = 256, PROCESSES_MAX = 1024, RULES_MAX = 128, PAIRS_MAX = 64, LIST_MAX = 256 };

/* Numbers by id: fields and GPM metrics. */
struct Pairs {
    int count;
    int id[PAIRS_MAX];
    double value[PAIRS_MAX];
};

/* Values handed out one after the other. */
struct List {
    int count, next;
    double value[LIST_MAX];
};

/* A card, or one MIG device of a card; `parent` is -1 for a card. */
struct Device {
    int is_there, index, parent, gi, ci, mig, maxmig, minor, arch, brand, cc_major, cc_minor, sm, gslices, cslices, profile,
        start, size, is_lost, is_accounting;
    Uint memutil, enc, dec, jpg, ofa, temp, power, limit, smclock, memclock, pstate, computemode, persistence, pcietx, pcierx,
        pciid, domain, bus, pcidev;
    Ulong total, used, reserved, energy, reasons, ecc;
    struct List util, samples;
    struct Pairs gpm, fields;
    char uuid[96], name[96];
};

struct Process {
    int dev, kind, is_late;
    Uint pid, sm, memutil, enc, dec, gi, ci;
    Ulong mem;
};

struct Account {
    int dev;
    Uint pid, util, memutil, running;
    Ulong maxmem, time;
};

struct InstanceProfile {
    int dev, profile, id, slices, count, sm;
    Ulong megabytes;
};

struct Xid {
    int dev, is_told;
    Uint gi, ci;
    Ulong code;
};

struct World {
    char driver[80], nvml[80];
    int cuda, init_result, generation;
    Ulong loaded_us;
    int reading; /* how often the file was read */
    int cards, migs, processes, accounts, profiles, xids;
    int late_ones_are_there;
    struct Device device[CARDS_MAX + MIGS_MAX]; /* cards first, MIG devices from CARDS_MAX on */
    struct Process process[PROCESSES_MAX];
    struct Account account[PROCESSES_MAX];
    struct InstanceProfile instance_profile[RULES_MAX];
    struct Xid xid[RULES_MAX];
};

extern struct World world;

enum { KIND_COMPUTE, KIND_GRAPHICS, KIND_MPS };

/* Every entry point begins with it: reads the file where it changed, hangs or fails where the file says so. */
Return standin_enter(const char *function, Handle device);
#define ENTER(device)                                   \
    do {                                                \
        Return entered = standin_enter(__func__, device); \
        if (entered != OK)                              \
            return entered;                             \
    } while (0)

void standin_lock(void);
void standin_unlock(void);
void standin_load(void);
Ulong standin_now_us(void);
Return standin_text(char *out, Uint size, const char *text);

/* The card itself, or the card that a MIG device lies on. */
Handle standin_card(Handle device);
/* Value of an id; returns 0 where there is none. */
int standin_pair(const struct Pairs *pairs, int id, double *value);
/* The next value of a list, 0 where it is empty. */
double standin_next(struct List *list);

#endif
