/* What is asked of the library and not of a card. */
#include "standin.h"

#include <stdio.h>
#include <string.h>

const char *nvmlErrorString(Return result) {
    static const char *const words[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout",
        "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "The operating system has blocked the request", "Driver/library version mismatch"};
    int known = (int)(sizeof words / sizeof *words);
    return result >= 0 && result < known ? words[result] : "Unknown Error";
}

Return nvmlSystemGetDriverVersion(char *out, Uint size) {
    ENTER(NULL);
    return standin_text(out, size, world.driver);
}

Return nvmlSystemGetNVMLVersion(char *out, Uint size) {
    ENTER(NULL);
    return standin_text(out, size, world.nvml);
}

Return nvmlSystemGetCudaDriverVersion(int *version) {
    ENTER(NULL);
    *version = world.cuda;
    return OK;
}

Return nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER(NULL);
    *version = world.cuda;
    return OK;
}

Return nvmlSystemGetProcessName(Uint pid, char *out, Uint size) {
    ENTER(NULL);
    char path[64], name[64] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return NOT_FOUND;
    if (fgets(name, sizeof name, file))
        name[strcspn(name, "\n")] = 0;
    fclose(file);
    return standin_text(out, size, name);
}

Return nvmlDeviceGetCount_v2(Uint *count) {
    ENTER(NULL);
    *count = (Uint)world.cards;
    return OK;
}
Return nvmlDeviceGetCount(Uint *count) { return nvmlDeviceGetCount_v2(count); }

Return nvmlDeviceGetHandleByIndex_v2(Uint index, Handle *device) {
    ENTER(index < (Uint)world.cards && !world.device[index].is_lost ? &world.device[index] : NULL);
    if (index >= (Uint)world.cards)
        return INVALID_ARGUMENT;
    if (world.device[index].is_lost)
        return GPU_IS_LOST;
    *device = &world.device[index];
    return OK;
}
Return nvmlDeviceGetHandleByIndex(Uint index, Handle *device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

Return nvmlDeviceGetHandleByUUID(const char *uuid, Handle *device) {
    ENTER(NULL);
    for (int i = 0; i < CARDS_MAX + MIGS_MAX; i++)
        if (world.device[i].is_there && !strcmp(world.device[i].uuid, uuid)) {
            *device = &world.device[i];
            return OK;
        }
    return NOT_FOUND;
}

Return nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Handle *device) {
    Uint domain, bus, number;
    ENTER(NULL);
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &number) != 3)
        return INVALID_ARGUMENT;
    for (int i = 0; i < world.cards; i++) {
        Handle card = &world.device[i];
        if (card->domain == domain && card->bus == bus && card->pcidev == number) {
            *device = card;
            return OK;
        }
    }
    return NOT_FOUND;
}
