/* What the text file says that is no device: functions that fail, functions that hang. */
#ifndef STANDIN_DATAFILE_H
#define STANDIN_DATAFILE_H

#include "standin.h"

struct Rule {
    int dev, ret, of_cards_only;
    double seconds;
    char function[64];
};

struct Rules {
    int errors, hangs;
    struct Rule error[RULES_MAX], hang[RULES_MAX];
};

extern struct Rules rules;

void standin_read_line(const char *line);

#endif
