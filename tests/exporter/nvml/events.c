/* XID events: each line of the file is handed out once to every set that is there; a set made later hears what is new. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { XID = 8, POLL_MS = 20 };

struct EventSet {
    int is_registered[CARDS_MAX];
    int reading; /* of the file, that `has_heard` is about */
    int has_heard[RULES_MAX];
};

struct Event {
    Handle device;
    Ulong type, data;
    Uint gi, ci;
};

Return nvmlEventSetCreate(struct EventSet **out) {
    ENTER(NULL);
    struct EventSet *set = calloc(1, sizeof *set);
    standin_lock();
    set->reading = world.reading;
    for (int i = 0; i < world.xids; i++)
        set->has_heard[i] = world.xid[i].is_told;
    standin_unlock();
    *out = set;
    return OK;
}

Return nvmlEventSetFree(struct EventSet *set) {
    free(set);
    return OK;
}

Return nvmlDeviceGetSupportedEventTypes(Handle device, Ulong *out) {
    ENTER(device);
    *out = 0x1b;
    return OK;
}

Return nvmlDeviceRegisterEvents(Handle device, Ulong types, struct EventSet *set) {
    ENTER(device);
    if (types & XID)
        set->is_registered[device - world.device] = 1;
    return OK;
}

static int take(struct EventSet *set, struct Event *out) {
    int is_found = 0;
    standin_lock();
    if (set->reading != world.reading) {
        set->reading = world.reading;
        memset(set->has_heard, 0, sizeof set->has_heard);
    }
    for (int i = 0; i < world.xids && !is_found; i++) {
        struct Xid *xid = &world.xid[i];
        if (set->has_heard[i] || !set->is_registered[xid->dev])
            continue;
        set->has_heard[i] = xid->is_told = is_found = 1;
        *out = (struct Event){&world.device[xid->dev], XID, xid->code, xid->gi, xid->ci};
    }
    standin_unlock();
    return is_found;
}

Return nvmlEventSetWait_v2(struct EventSet *set, struct Event *out, Uint timeout_ms) {
    for (Uint waited_ms = 0;; waited_ms += POLL_MS) {
        ENTER(NULL);
        if (take(set, out))
            return OK;
        if (waited_ms >= timeout_ms)
            return TIMED_OUT;
        usleep(POLL_MS * 1000);
    }
}
Return nvmlEventSetWait(struct EventSet *set, struct Event *out, Uint timeout_ms) {
    return nvmlEventSetWait_v2(set, out, timeout_ms);
}
