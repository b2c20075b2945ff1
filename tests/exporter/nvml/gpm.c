/* GPM: two samples of a card or of a GPU instance, and the metrics of the time between them. */
#include "standin.h"

#include <stdlib.h>

#ifndef OLD_DRIVER

struct GpmSample {
    Handle of;
};

struct GpmMetric {
    Uint id;
    Return result;
    double value;
    const char *words[3];
};

/* The real array is as long as the library's version knows metrics; callers say how many of them they ask for. */
struct GpmMetricsGet {
    Uint version, count;
    struct GpmSample *first, *second;
    struct GpmMetric metrics[];
};

struct GpmSupport {
    Uint version, is_supported;
};

Return nvmlGpmQueryDeviceSupport(Handle device, struct GpmSupport *out) {
    ENTER(device);
    if (out->version != 1)
        return VERSION_MISMATCH;
    out->is_supported = device->gpm.count > 0;
    for (int i = 0; i < world.migs; i++)
        if (standin_card(&world.device[CARDS_MAX + i]) == device && world.device[CARDS_MAX + i].gpm.count > 0)
            out->is_supported = 1;
    return OK;
}

Return nvmlGpmSampleAlloc(struct GpmSample **out) {
    ENTER(NULL);
    *out = calloc(1, sizeof **out);
    return OK;
}

Return nvmlGpmSampleFree(struct GpmSample *sample) {
    free(sample);
    return OK;
}

Return nvmlGpmSampleGet(Handle device, struct GpmSample *sample) {
    ENTER(device);
    if (device->gpm.count == 0)
        return NOT_SUPPORTED;
    sample->of = device;
    return OK;
}

Return nvmlGpmMigSampleGet(Handle device, Uint gpu_instance, struct GpmSample *sample) {
    ENTER(device);
    for (int i = 0; i < world.migs; i++) {
        Handle mig = &world.device[CARDS_MAX + i];
        if (standin_card(mig) == device && mig->gi == (int)gpu_instance && mig->gpm.count > 0) {
            sample->of = mig;
            return OK;
        }
    }
    return NOT_SUPPORTED;
}

Return nvmlGpmMetricsGet(struct GpmMetricsGet *get) {
    ENTER(NULL);
    if (get->version != 1)
        return VERSION_MISMATCH;
    if (get->first == NULL || get->second == NULL || get->first->of == NULL || get->first->of != get->second->of)
        return INVALID_ARGUMENT;
    for (Uint i = 0; i < get->count; i++) {
        struct GpmMetric *metric = &get->metrics[i];
        metric->result = standin_pair(&get->second->of->gpm, (int)metric->id, &metric->value) ? OK : NOT_SUPPORTED;
    }
    return OK;
}

#endif
