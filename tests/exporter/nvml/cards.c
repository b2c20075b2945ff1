/* What a card is, and what it does. */
#include "standin.h"

#include <stdio.h>
#include <string.h>

/* --- identity --- */

Return nvmlDeviceGetName(Handle device, char *out, Uint size) {
    ENTER(device);
    if (device->parent < 0)
        return standin_text(out, size, device->name);
    char name[200];
    int gigabytes = (int)((device->total + (1 << 30) - 1) >> 30);
    snprintf(name, sizeof name, "%s MIG %dg.%dgb", standin_card(device)->name, device->gslices, gigabytes);
    return standin_text(out, size, name);
}

Return nvmlDeviceGetUUID(Handle device, char *out, Uint size) {
    ENTER(device);
    return standin_text(out, size, device->uuid);
}

Return nvmlDeviceGetSerial(Handle device, char *out, Uint size) {
    ENTER(device);
    char serial[32];
    snprintf(serial, sizeof serial, "%013d", 1000 + device->index);
    return standin_text(out, size, serial);
}

struct PciInfo {
    char legacy[16];
    Uint domain, bus, device, id, subsystem;
    char bus_id[32];
};

Return nvmlDeviceGetPciInfo_v3(Handle device, struct PciInfo *out) {
    ENTER(device);
    Handle card = standin_card(device);
    memset(out, 0, sizeof *out);
    out->domain = card->domain;
    out->bus = card->bus;
    out->device = card->pcidev;
    out->id = card->pciid;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", card->domain & 0xffff, card->bus & 0xff, card->pcidev & 0xff);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", card->domain, card->bus & 0xff, card->pcidev & 0xff);
    return OK;
}
Return nvmlDeviceGetPciInfo_v2(Handle device, struct PciInfo *out) { return nvmlDeviceGetPciInfo_v3(device, out); }
Return nvmlDeviceGetPciInfo(Handle device, struct PciInfo *out) { return nvmlDeviceGetPciInfo_v3(device, out); }

Return nvmlDeviceGetCudaComputeCapability(Handle device, int *major, int *minor) {
    ENTER(device);
    *major = standin_card(device)->cc_major;
    *minor = standin_card(device)->cc_minor;
    return OK;
}

/* A function that gives one unsigned number of the card. */
#define NUMBER(function, value)                    \
    Return function(Handle device, Uint *out) {    \
        ENTER(device);                             \
        const struct Device *card = standin_card(device); \
        (void)card;                                \
        *out = (Uint)(value);                      \
        return OK;                                 \
    }

NUMBER(nvmlDeviceGetMinorNumber, card->minor)
NUMBER(nvmlDeviceGetBrand, card->brand)
NUMBER(nvmlDeviceGetArchitecture, card->arch)
NUMBER(nvmlDeviceGetNumGpuCores, card->sm * 64)
NUMBER(nvmlDeviceGetComputeMode, card->computemode)
NUMBER(nvmlDeviceGetPersistenceMode, card->persistence)
NUMBER(nvmlDeviceGetPerformanceState, card->pstate)
NUMBER(nvmlDeviceGetPowerUsage, card->power)
NUMBER(nvmlDeviceGetPowerManagementLimit, card->limit)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, card->limit)
NUMBER(nvmlDeviceGetAccountingMode, card->is_accounting)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)

Return nvmlDeviceGetIndex(Handle device, Uint *out) {
    ENTER(device);
    *out = (Uint)device->index;
    return OK;
}

Return nvmlDeviceGetTopologyCommonAncestor(Handle one, Handle other, Uint *level) {
    ENTER(one);
    *level = one == other ? 0 : 40;
    return OK;
}

Return nvmlDeviceGetP2PStatus(Handle one, Handle other, Uint index, Uint *status) {
    (void)other;
    (void)index;
    ENTER(one);
    *status = 0;
    return OK;
}

/* --- framebuffer --- */

struct Memory {
    Ulong total, free, used;
};

/* The first version counts what the driver reserves as used. */
Return nvmlDeviceGetMemoryInfo(Handle device, struct Memory *out) {
    ENTER(device);
    Ulong used = device->used + device->reserved;
    *out = (struct Memory){.total = device->total, .used = used, .free = device->total - used};
    return OK;
}

Return nvmlDeviceGetBAR1MemoryInfo(Handle device, struct Memory *out) {
    ENTER(device);
    Ulong total = standin_card(device)->total;
    *out = (struct Memory){.total = total, .free = total};
    return OK;
}

#ifndef OLD_DRIVER
struct MemoryV2 {
    Uint version;
    Ulong total, reserved, free, used;
};

Return nvmlDeviceGetMemoryInfo_v2(Handle device, struct MemoryV2 *out) {
    ENTER(device);
    if (out->version != ((Uint)sizeof *out | 2u << 24))
        return VERSION_MISMATCH;
    out->total = device->total;
    out->reserved = device->reserved;
    out->used = device->used;
    out->free = device->total - device->used - device->reserved;
    return OK;
}
#endif

/* --- utilisation --- */

struct Utilization {
    Uint gpu, memory;
};

Return nvmlDeviceGetUtilizationRates(Handle device, struct Utilization *out) {
    ENTER(device);
    if (device->parent >= 0 || device->mig == 1)
        return NOT_SUPPORTED;
    standin_lock();
    *out = (struct Utilization){.gpu = (Uint)standin_next(&device->util), .memory = device->memutil};
    standin_unlock();
    return OK;
}

#define ENGINE(function, field)                                        \
    Return function(Handle device, Uint *out, Uint *period_us) {       \
        ENTER(device);                                                 \
        if (device->parent >= 0 || device->mig == 1)                   \
            return NOT_SUPPORTED;                                      \
        *out = device->field;                                          \
        *period_us = 167000;                                           \
        return OK;                                                     \
    }

ENGINE(nvmlDeviceGetEncoderUtilization, enc)
ENGINE(nvmlDeviceGetDecoderUtilization, dec)
#ifndef OLD_DRIVER
ENGINE(nvmlDeviceGetJpgUtilization, jpg)
ENGINE(nvmlDeviceGetOfaUtilization, ofa)
#endif

struct Sample {
    Ulong at_us;
    union {
        double real;
        Uint whole;
        Ulong large;
    } value;
};

/* Only the buffer of GPU utilisation (type 1) is there; six samples a second, the first one when the file was read. */
Return nvmlDeviceGetSamples(Handle device, Uint type, Ulong last_seen_us, Uint *value_type, Uint *count, struct Sample *out) {
    ENTER(device);
    if (type != 1 || device->samples.count == 0 || device->mig == 1)
        return NOT_SUPPORTED;
    *value_type = 1;
    Uint have = *count, found = 0;
    for (int i = 0; i < device->samples.count; i++) {
        Ulong at_us = world.loaded_us + (Ulong)i * 166667ULL;
        if (at_us <= last_seen_us)
            continue;
        if (out != NULL) {
            if (found >= have)
                return INSUFFICIENT_SIZE;
            out[found].at_us = at_us;
            out[found].value.large = 0;
            out[found].value.whole = (Uint)device->samples.value[i];
        }
        found++;
    }
    *count = found;
    return found == 0 ? NOT_FOUND : OK;
}

/* --- clocks, heat, power --- */

Return nvmlDeviceGetTemperature(Handle device, Uint sensor, Uint *out) {
    ENTER(device);
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *out = standin_card(device)->temp;
    return OK;
}

Return nvmlDeviceGetTotalEnergyConsumption(Handle device, Ulong *out) {
    ENTER(device);
    *out = standin_card(device)->energy;
    return OK;
}

Return nvmlDeviceGetClockInfo(Handle device, Uint type, Uint *out) {
    ENTER(device);
    *out = type == 2 ? standin_card(device)->memclock : standin_card(device)->smclock;
    return OK;
}

Return nvmlDeviceGetMaxClockInfo(Handle device, Uint type, Uint *out) {
    ENTER(device);
    *out = type == 2 ? 1593 : 1980;
    return OK;
}

Return nvmlDeviceGetCurrentClocksThrottleReasons(Handle device, Ulong *out) {
    ENTER(device);
    *out = standin_card(device)->reasons;
    return OK;
}

#ifndef OLD_DRIVER
Return nvmlDeviceGetCurrentClocksEventReasons(Handle device, Ulong *out) {
    ENTER(device);
    *out = standin_card(device)->reasons;
    return OK;
}
#endif

/* --- links and faults --- */

Return nvmlDeviceGetPcieThroughput(Handle device, Uint counter, Uint *out) {
    ENTER(device);
    if (counter > 1)
        return INVALID_ARGUMENT;
    *out = counter == 0 ? device->pcietx : device->pcierx;
    return OK;
}

Return nvmlDeviceGetTotalEccErrors(Handle device, Uint error_type, Uint counter_type, Ulong *out) {
    (void)counter_type;
    ENTER(device);
    *out = error_type == 0 ? device->ecc : 0;
    return OK;
}

Return nvmlDeviceGetRemappedRows(Handle device, Uint *correctable, Uint *uncorrectable, Uint *pending, Uint *failed) {
    ENTER(device);
    double value;
    *correctable = standin_pair(&device->fields, 142, &value) ? (Uint)value : 0;
    *uncorrectable = standin_pair(&device->fields, 143, &value) ? (Uint)value : 0;
    *pending = standin_pair(&device->fields, 144, &value) ? (Uint)value : 0;
    *failed = standin_pair(&device->fields, 145, &value) ? (Uint)value : 0;
    return OK;
}

struct FieldValue {
    Uint id, scope;
    long long at_us, latency_us;
    Uint value_type;
    Return result;
    union {
        double real;
        Ulong large;
    } value;
};

/* NVLink throughput (138-141) is of one link, or of all where the scope says so. */
static int scope_is_wrong(const struct FieldValue *field) {
    return field->id >= 138 && field->id <= 141 && field->scope != ~0u && field->scope >= 18;
}

Return nvmlDeviceGetFieldValues(Handle device, int count, struct FieldValue *fields) {
    ENTER(device);
    if (count < 1)
        return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        struct FieldValue *field = &fields[i];
        double value;
        field->at_us = (long long)standin_now_us();
        field->latency_us = 1;
        field->value_type = 3;
        if (scope_is_wrong(field))
            field->result = INVALID_ARGUMENT;
        else if (!standin_pair(&device->fields, (int)field->id, &value))
            field->result = NOT_SUPPORTED;
        else {
            field->result = OK;
            field->value.large = value < 0 ? ~0ULL : (Ulong)value;
        }
    }
    return OK;
}
