/* Processes on a card: their framebuffer, their utilisation, and what accounting kept of them. */
#include "standin.h"

struct ProcessV1 {
    Uint pid;
    Ulong mem;
};

struct ProcessV2 {
    Uint pid;
    Ulong mem;
    Uint gi, ci;
};

static int sits_on(const struct Process *process, Handle device) {
    if (process->is_late && !world.late_ones_are_there)
        return 0;
    if (device->parent < 0)
        return &world.device[process->dev] == device;
    return &world.device[process->dev] == standin_card(device) && (int)process->gi == device->gi && (int)process->ci == device->ci;
}

static Return list(Handle device, int kind, Uint *count, void *out, int is_v1) {
    standin_lock();
    Uint have = out == NULL ? 0 : *count, found = 0;
    for (int i = 0; i < world.processes; i++) {
        const struct Process *process = &world.process[i];
        if (process->kind != kind || !sits_on(process, device))
            continue;
        if (found < have) {
            if (is_v1)
                ((struct ProcessV1 *)out)[found] = (struct ProcessV1){process->pid, process->mem};
            else
                ((struct ProcessV2 *)out)[found] = (struct ProcessV2){process->pid, process->mem, process->gi, process->ci};
        }
        found++;
    }
    if (have == 0)
        world.late_ones_are_there = 1;
    *count = found;
    standin_unlock();
    return found > have ? INSUFFICIENT_SIZE : OK;
}

#define LIST(function, kind, is_v1)                             \
    Return function(Handle device, Uint *count, void *out) {    \
        ENTER(device);                                          \
        return list(device, kind, count, out, is_v1);           \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, KIND_COMPUTE, 1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, KIND_COMPUTE, 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses, KIND_GRAPHICS, 1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, KIND_GRAPHICS, 0)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, KIND_MPS, 1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, KIND_MPS, 0)
#ifndef OLD_DRIVER
LIST(nvmlDeviceGetComputeRunningProcesses_v3, KIND_COMPUTE, 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, KIND_GRAPHICS, 0)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, KIND_MPS, 0)
#endif

struct ProcessUse {
    Uint pid;
    Ulong at_us;
    Uint sm, memory, encoder, decoder;
};

Return nvmlDeviceGetProcessUtilization(Handle device, struct ProcessUse *out, Uint *count, Ulong last_seen_us) {
    ENTER(device);
    if (device->parent >= 0 || device->mig == 1)
        return NOT_SUPPORTED;
    standin_lock();
    Ulong now_us = standin_now_us();
    Uint have = out == NULL ? 0 : *count, found = 0;
    for (int i = 0; i < world.processes && now_us > last_seen_us; i++) {
        const struct Process *process = &world.process[i];
        if (!sits_on(process, device))
            continue;
        if (found < have)
            out[found] = (struct ProcessUse){process->pid, now_us, process->sm, process->memutil, process->enc, process->dec};
        found++;
    }
    if (have == 0)
        world.late_ones_are_there = 1;
    *count = found;
    standin_unlock();
    return found == 0 ? NOT_FOUND : found > have ? INSUFFICIENT_SIZE : OK;
}

Return nvmlDeviceGetAccountingBufferSize(Handle device, Uint *out) {
    ENTER(device);
    *out = 4000;
    return OK;
}

Return nvmlDeviceGetAccountingPids(Handle device, Uint *count, Uint *pids) {
    ENTER(device);
    Uint have = *count, found = 0;
    for (int i = 0; i < world.accounts; i++)
        if (&world.device[world.account[i].dev] == device) {
            if (found < have)
                pids[found] = world.account[i].pid;
            found++;
        }
    *count = found;
    return found > have ? INSUFFICIENT_SIZE : OK;
}

struct AccountingStats {
    Uint gpu, memory;
    Ulong max_memory, time_ms, started_us;
    Uint is_running, reserved[5];
};

Return nvmlDeviceGetAccountingStats(Handle device, Uint pid, struct AccountingStats *out) {
    ENTER(device);
    for (int i = 0; i < world.accounts; i++) {
        const struct Account *account = &world.account[i];
        if (&world.device[account->dev] != device || account->pid != pid)
            continue;
        *out = (struct AccountingStats){
            .gpu = account->util,
            .memory = account->memutil,
            .max_memory = account->maxmem,
            .time_ms = account->time,
            .is_running = account->running,
        };
        return OK;
    }
    return NOT_FOUND;
}
