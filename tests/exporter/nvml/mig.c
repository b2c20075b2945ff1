/* MIG: which instances a card is cut into. A GPU instance is spoken of by the handle of one of its MIG devices. */
#include "standin.h"

static Handle mig_device(int number) { return &world.device[CARDS_MAX + number]; }

/* Slices of a compute-instance profile, by its number in nvml.h. */
static const int compute_slices[] = {1, 2, 3, 4, 7, 8, 6};
enum { COMPUTE_PROFILES = sizeof compute_slices / sizeof *compute_slices };

static int compute_profile(int slices) {
    for (int i = 0; i < COMPUTE_PROFILES; i++)
        if (compute_slices[i] == slices)
            return i;
    return 0;
}

static int profile_id(int profile) {
    for (int i = 0; i < world.profiles; i++)
        if (world.instance_profile[i].profile == profile)
            return world.instance_profile[i].id;
    return profile;
}

Return nvmlDeviceGetMigMode(Handle device, Uint *current, Uint *pending) {
    ENTER(device);
    if (device->parent >= 0 || device->mig < 0)
        return NOT_SUPPORTED;
    *current = *pending = (Uint)device->mig;
    return OK;
}

Return nvmlDeviceGetMaxMigDeviceCount(Handle device, Uint *count) {
    ENTER(device);
    *count = device->mig < 0 ? 0 : (Uint)device->maxmig;
    return OK;
}

Return nvmlDeviceGetMigDeviceHandleByIndex(Handle device, Uint index, Handle *out) {
    ENTER(device);
    Uint found = 0;
    for (int i = 0; i < world.migs; i++)
        if (mig_device(i)->parent == device->index && found++ == index) {
            *out = mig_device(i);
            return OK;
        }
    return NOT_FOUND;
}

Return nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle device, Handle *out) {
    ENTER(device);
    if (device->parent < 0)
        return INVALID_ARGUMENT;
    *out = standin_card(device);
    return OK;
}

Return nvmlDeviceIsMigDeviceHandle(Handle device, Uint *out) {
    ENTER(device);
    *out = device->parent >= 0;
    return OK;
}

Return nvmlDeviceGetGpuInstanceId(Handle device, Uint *out) {
    ENTER(device);
    if (device->parent < 0)
        return NOT_SUPPORTED;
    *out = (Uint)device->gi;
    return OK;
}

Return nvmlDeviceGetComputeInstanceId(Handle device, Uint *out) {
    ENTER(device);
    if (device->parent < 0)
        return NOT_SUPPORTED;
    *out = (Uint)device->ci;
    return OK;
}

struct Attributes {
    Uint sms, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    Ulong megabytes;
};

Return nvmlDeviceGetAttributes_v2(Handle device, struct Attributes *out) {
    ENTER(device);
    if (device->parent < 0)
        return NOT_SUPPORTED;
    *out = (struct Attributes){
        .sms = (Uint)device->sm,
        .copy_engines = 1,
        .gpu_slices = (Uint)device->gslices,
        .compute_slices = (Uint)device->cslices,
        .megabytes = device->total >> 20,
    };
    return OK;
}
Return nvmlDeviceGetAttributes(Handle device, struct Attributes *out) { return nvmlDeviceGetAttributes_v2(device, out); }

struct GpuInstanceProfile {
    Uint id, peer_to_peer, slices, count, sms, copy_engines, decoders, encoders, jpegs, ofas;
    Ulong megabytes;
};

Return nvmlDeviceGetGpuInstanceProfileInfo(Handle device, Uint profile, struct GpuInstanceProfile *out) {
    ENTER(device);
    for (int i = 0; i < world.profiles && device->mig >= 0; i++) {
        const struct InstanceProfile *known = &world.instance_profile[i];
        if ((known->dev >= 0 && known->dev != device->index) || known->profile != (int)profile)
            continue;
        *out = (struct GpuInstanceProfile){
            .id = (Uint)known->id,
            .slices = (Uint)known->slices,
            .count = (Uint)known->count,
            .sms = (Uint)known->sm,
            .copy_engines = 1,
            .megabytes = known->megabytes,
        };
        return OK;
    }
    return NOT_SUPPORTED;
}

Return nvmlDeviceGetGpuInstances(Handle device, Uint wanted, Handle *out, Uint *count) {
    ENTER(device);
    Uint found = 0;
    for (int i = 0; i < world.migs; i++) {
        Handle mig = mig_device(i);
        int is_there = 0;
        if (mig->parent != device->index || profile_id(mig->profile) != (int)wanted)
            continue;
        for (Uint k = 0; k < found; k++)
            is_there |= out[k]->gi == mig->gi;
        if (!is_there)
            out[found++] = mig;
    }
    *count = found;
    return OK;
}

Return nvmlDeviceGetGpuInstanceById(Handle device, Uint id, Handle *out) {
    ENTER(device);
    for (int i = 0; i < world.migs; i++)
        if (mig_device(i)->parent == device->index && mig_device(i)->gi == (int)id) {
            *out = mig_device(i);
            return OK;
        }
    return NOT_FOUND;
}

struct GpuInstanceInfo {
    Handle device;
    Uint id, profile, start, size;
};

Return nvmlGpuInstanceGetInfo(Handle instance, struct GpuInstanceInfo *out) {
    ENTER(instance);
    *out = (struct GpuInstanceInfo){
        .device = standin_card(instance),
        .id = (Uint)instance->gi,
        .profile = (Uint)profile_id(instance->profile),
        .start = (Uint)instance->start,
        .size = (Uint)instance->size,
    };
    return OK;
}

struct ComputeInstanceProfile {
    Uint id, slices, count, sms, copy_engines, decoders, encoders, jpegs, ofas;
};

Return nvmlGpuInstanceGetComputeInstanceProfileInfo(Handle instance, Uint profile, Uint engine,
                                                    struct ComputeInstanceProfile *out) {
    ENTER(instance);
    if (engine != 0 || profile >= COMPUTE_PROFILES || compute_slices[profile] > instance->gslices)
        return NOT_SUPPORTED;
    int slices = compute_slices[profile];
    *out = (struct ComputeInstanceProfile){
        .id = profile,
        .slices = (Uint)slices,
        .count = (Uint)(instance->gslices / slices),
        .sms = (Uint)instance->sm,
        .copy_engines = 1,
    };
    return OK;
}

Return nvmlGpuInstanceGetComputeInstances(Handle instance, Uint profile, Handle *out, Uint *count) {
    ENTER(instance);
    Uint found = 0;
    for (int i = 0; i < world.migs && profile < COMPUTE_PROFILES; i++) {
        Handle mig = mig_device(i);
        if (mig->parent == instance->parent && mig->gi == instance->gi && compute_slices[profile] == mig->cslices)
            out[found++] = mig;
    }
    *count = found;
    return OK;
}

Return nvmlGpuInstanceGetComputeInstanceById(Handle instance, Uint id, Handle *out) {
    ENTER(instance);
    for (int i = 0; i < world.migs; i++) {
        Handle mig = mig_device(i);
        if (mig->parent == instance->parent && mig->gi == instance->gi && mig->ci == (int)id) {
            *out = mig;
            return OK;
        }
    }
    return NOT_FOUND;
}

struct ComputeInstanceInfo {
    Handle device, instance;
    Uint id, profile, start, size;
};

Return nvmlComputeInstanceGetInfo_v2(Handle instance, struct ComputeInstanceInfo *out) {
    ENTER(instance);
    *out = (struct ComputeInstanceInfo){
        .device = standin_card(instance),
        .instance = instance,
        .id = (Uint)instance->ci,
        .profile = (Uint)compute_profile(instance->cslices),
        .size = (Uint)instance->cslices,
    };
    return OK;
}
Return nvmlComputeInstanceGetInfo(Handle instance, struct ComputeInstanceInfo *out) {
    return nvmlComputeInstanceGetInfo_v2(instance, out);
}
