/* One line of the text file: its `key=value` pairs, and the things that they describe. */
#include "datafile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Copies the value of a key out of a line; returns NULL where the line has no such key. */
static const char *text_of(const char *line, const char *key, char *out, size_t size) {
    size_t length = strlen(key);
    for (const char *at = line; (at = strstr(at, key)) != NULL; at += length) {
        if (at == line || (at[-1] != ' ' && at[-1] != '\t') || at[length] != '=')
            continue;
        at += length + 1;
        int is_quoted = *at == '"';
        if (is_quoted)
            at++;
        size_t n = 0;
        while (*at && *at != '\n' && (is_quoted ? *at != '"' : *at != ' ' && *at != '\t') && n + 1 < size)
            out[n++] = *at++;
        out[n] = 0;
        return out;
    }
    return NULL;
}

static Ulong number(const char *line, const char *key, Ulong otherwise) {
    char text[64];
    return text_of(line, key, text, sizeof text) ? strtoull(text, NULL, 0) : otherwise;
}

static int whole(const char *line, const char *key, int otherwise) {
    char text[64];
    return text_of(line, key, text, sizeof text) ? (int)strtol(text, NULL, 0) : otherwise;
}

static void list_of(const char *line, const char *key, struct List *list) {
    char text[2048];
    list->count = list->next = 0;
    if (!text_of(line, key, text, sizeof text))
        return;
    char *rest = NULL;
    for (char *part = strtok_r(text, ",", &rest); part && list->count < LIST_MAX; part = strtok_r(NULL, ",", &rest))
        list->value[list->count++] = strtod(part, NULL);
}

static void pairs_of(const char *line, const char *key, struct Pairs *pairs) {
    char text[2048];
    pairs->count = 0;
    if (!text_of(line, key, text, sizeof text))
        return;
    char *rest = NULL;
    for (char *part = strtok_r(text, ",", &rest); part && pairs->count < PAIRS_MAX; part = strtok_r(NULL, ",", &rest)) {
        char *colon = strchr(part, ':');
        if (colon == NULL)
            continue;
        pairs->id[pairs->count] = atoi(part);
        pairs->value[pairs->count++] = strtod(colon + 1, NULL);
    }
}

static void read_device(const char *line, int is_mig) {
    if (is_mig ? world.migs >= MIGS_MAX : world.cards >= CARDS_MAX)
        return;
    int index = is_mig ? world.migs++ : world.cards++;
    struct Device *d = &world.device[is_mig ? CARDS_MAX + index : index];
    char text[96];
    d->is_there = 1;
    d->index = index;
    d->parent = is_mig ? whole(line, "dev", 0) : -1;
    d->gi = whole(line, "gi", -1);
    d->ci = whole(line, "ci", -1);
    d->mig = whole(line, "mig", -1);
    d->maxmig = whole(line, "maxmig", 7);
    d->minor = whole(line, "minor", index);
    d->arch = whole(line, "arch", 9);
    d->brand = whole(line, "brand", 14);
    d->sm = whole(line, "sm", 132);
    d->gslices = whole(line, "gslices", 1);
    d->cslices = whole(line, "cslices", 1);
    d->profile = whole(line, "profile", 0);
    d->start = whole(line, "start", 0);
    d->size = whole(line, "size", 1);
    d->is_lost = whole(line, "lost", 0);
    d->is_accounting = whole(line, "accounting", 0);
    d->memutil = number(line, "memutil", 0);
    d->enc = number(line, "enc", 0);
    d->dec = number(line, "dec", 0);
    d->jpg = number(line, "jpg", 0);
    d->ofa = number(line, "ofa", 0);
    d->temp = number(line, "temp", 40);
    d->power = number(line, "power", 100000);
    d->limit = number(line, "limit", 400000);
    d->smclock = number(line, "smclock", 1410);
    d->memclock = number(line, "memclock", 1593);
    d->pstate = number(line, "pstate", 0);
    d->computemode = number(line, "computemode", 0);
    d->persistence = number(line, "persistence", 1);
    d->pcietx = number(line, "pcietx", 1000);
    d->pcierx = number(line, "pcierx", 1000);
    d->total = number(line, "total", 80ULL << 30);
    d->used = number(line, "used", 0);
    d->reserved = number(line, "reserved", 0);
    d->energy = number(line, "energy", 0);
    d->reasons = number(line, "reasons", 0);
    d->ecc = number(line, "ecc", 0);
    d->pciid = number(line, "pciid", 0x233010DE);
    list_of(line, "util", &d->util);
    list_of(line, "samples", &d->samples);
    pairs_of(line, "gpm", &d->gpm);
    pairs_of(line, "fields", &d->fields);
    d->cc_major = 9;
    if (text_of(line, "cc", text, sizeof text))
        sscanf(text, "%d.%d", &d->cc_major, &d->cc_minor);
    d->bus = index + 1;
    if (text_of(line, "bus", text, sizeof text))
        sscanf(text, "%x:%x:%x", &d->domain, &d->bus, &d->pcidev);
    if (!text_of(line, "uuid", d->uuid, sizeof d->uuid))
        snprintf(d->uuid, sizeof d->uuid, "GPU-00000000-0000-0000-0000-%012d", index);
    if (!text_of(line, "name", d->name, sizeof d->name))
        strcpy(d->name, "NVIDIA H100 80GB HBM3");
}

static void read_process(const char *line) {
    if (world.processes >= PROCESSES_MAX)
        return;
    struct Process *p = &world.process[world.processes++];
    char kind[16] = "compute";
    text_of(line, "kind", kind, sizeof kind);
    *p = (struct Process){
        .dev = whole(line, "dev", 0),
        .kind = kind[0] == 'g' ? KIND_GRAPHICS : kind[0] == 'm' ? KIND_MPS : KIND_COMPUTE,
        .is_late = whole(line, "late", 0),
        .pid = number(line, "pid", 1),
        .sm = number(line, "sm", 0),
        .memutil = number(line, "memutil", 0),
        .enc = number(line, "enc", 0),
        .dec = number(line, "dec", 0),
        .gi = (Uint)whole(line, "gi", -1),
        .ci = (Uint)whole(line, "ci", -1),
        .mem = number(line, "mem", 0),
    };
}

static void read_account(const char *line) {
    if (world.accounts < PROCESSES_MAX)
        world.account[world.accounts++] = (struct Account){
            .dev = whole(line, "dev", 0),
            .pid = number(line, "pid", 1),
            .util = number(line, "util", 0),
            .memutil = number(line, "memutil", 0),
            .running = number(line, "running", 1),
            .maxmem = number(line, "maxmem", 0),
            .time = number(line, "time", 0),
        };
}

static void read_instance_profile(const char *line) {
    if (world.profiles < RULES_MAX)
        world.instance_profile[world.profiles++] = (struct InstanceProfile){
            .dev = whole(line, "dev", -1),
            .profile = whole(line, "profile", 0),
            .id = whole(line, "id", 0),
            .slices = whole(line, "slices", 1),
            .count = whole(line, "count", 1),
            .sm = whole(line, "sm", 1),
            .megabytes = number(line, "memmb", 1),
        };
}

static void read_rule(const char *line, struct Rule *list, int *count) {
    char seconds[32] = "0";
    if (*count >= RULES_MAX)
        return;
    struct Rule *rule = &list[(*count)++];
    text_of(line, "seconds", seconds, sizeof seconds);
    rule->dev = whole(line, "dev", -1);
    rule->ret = whole(line, "ret", NOT_SUPPORTED);
    rule->of_cards_only = whole(line, "cardsonly", 0);
    rule->seconds = strtod(seconds, NULL);
    rule->function[0] = 0;
    text_of(line, "fn", rule->function, sizeof rule->function);
}

static void read_xid(const char *line) {
    if (world.xids < RULES_MAX)
        world.xid[world.xids++] = (struct Xid){
            .dev = whole(line, "dev", 0),
            .code = number(line, "code", 79),
            .gi = (Uint)whole(line, "gi", -1),
            .ci = (Uint)whole(line, "ci", -1),
        };
}

static void read_system(const char *line) {
    text_of(line, "driver", world.driver, sizeof world.driver);
    text_of(line, "nvml", world.nvml, sizeof world.nvml);
    world.cuda = whole(line, "cuda", world.cuda);
    world.init_result = whole(line, "init", OK);
    world.generation = whole(line, "generation", 0);
}

void standin_read_line(const char *line) {
    if (!strncmp(line, "sys ", 4))
        read_system(line);
    else if (!strncmp(line, "dev ", 4))
        read_device(line, 0);
    else if (!strncmp(line, "mig ", 4))
        read_device(line, 1);
    else if (!strncmp(line, "proc ", 5))
        read_process(line);
    else if (!strncmp(line, "acct ", 5))
        read_account(line);
    else if (!strncmp(line, "gip ", 4))
        read_instance_profile(line);
    else if (!strncmp(line, "err ", 4))
        read_rule(line, rules.error, &rules.errors);
    else if (!strncmp(line, "hang ", 5))
        read_rule(line, rules.hang, &rules.hangs);
    else if (!strncmp(line, "xid ", 4))
        read_xid(line);
}
